"""delta-mem on frozen language models: identity at the start, the paper's equations, where corrections land, refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from delta_mem_models import CONFIGS, MODES, SCHEDULE, WIDTH, adapted, base, gap, random_state, stir, tokens
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPTNeoXConfig

from proteus_bench.errors import UsageError
from proteus_models.delta_mem import ARCHITECTURES, DeltaMem, DeltaMemLayer, Step
from proteus_models.delta_mem_state import DeltaMemConfig, DeltaMemState, Segments

pytestmark = pytest.mark.hf


def literal(
    layer: DeltaMemLayer, x_TD: Tensor, ids: Tensor, real: Tensor, state: DeltaMemState, row: int
) -> tuple[Tensor, Tensor, list[Tensor], Tensor | None]:
    """One row of the batch by the paper's equations, a token and a matrix at a time: (query, output, [S], open sum)."""
    config, cap = layer.config, layer.config.capacity
    sizes = (config.states, config.rank)
    s = list(state.memory[0][row])
    total = state.sums[0][row] if state.sums else None
    t, held = int(state.position[row]), int(state.pending[row])
    reads = []

    def unit(z: Tensor) -> Tensor:
        return z.tanh() / (z.tanh().square().sum(-1, keepdim=True) + 1e-6).sqrt()

    def write(x: Tensor, opened: int) -> None:
        k, v = unit((layer.key.weight @ x).view(sizes)), (layer.value.weight @ x).view(sizes)
        beta = torch.sigmoid(layer.beta.weight @ x + layer.beta.bias).view(sizes)
        mask = (torch.arange(config.rank) < opened).to(x.dtype)
        beta = beta if cap.gate not in ("both", "write") else beta * mask
        for n in range(config.states):
            b = torch.diag(beta[n])
            s[n] = s[n] - b @ s[n] - b @ torch.outer(s[n] @ k[n], k[n]) + b @ torch.outer(v[n], k[n])

    for x, token, is_real in zip(x_TD, ids, real, strict=True):
        t += int(is_real)
        opened = config.rank if cap.is_static else int(cap.active_coords_range(max(t, 1) - 1, 1, config.rank)[0])
        q = unit((layer.query.weight @ x).view(sizes))
        r = torch.stack([s[n] @ q[n] for n in range(config.states)])
        reads.append((r * (torch.arange(config.rank) < opened) if cap.gate in ("both", "read") else r).flatten())
        if not is_real:
            continue
        if config.write == "token":
            write(x, opened)
            continue
        total, held = total + x, held + 1
        if held == config.segment or int(token) in config.segment_tokens:
            write(total / held, opened)
            total, held = torch.zeros_like(x), 0
    scaled = torch.stack(reads) * (config.alpha / config.rank)
    return scaled @ layer.to_query.weight.T, scaled @ layer.to_output.weight.T, s, total


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_is_the_papers_equations_with_every_gradient(mode: str) -> None:
    _, memory = adapted(mode)
    layer, config, batch, length = memory.layers[0], MODES[mode], 3, 23
    ids, real = tokens(batch, length), torch.ones(batch, length, dtype=torch.bool)
    real[1, :6], real[2, 9:13] = False, False
    state = random_state(memory, batch)
    x = torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    inputs = [x.requires_grad_(), state.memory[0].requires_grad_(), *(t.requires_grad_() for t in state.sums[:1])]
    wanted = [*inputs, *layer.parameters()]
    position = state.position[:, None] + real.cumsum(1)
    segments = Segments.cut(config, real, ids, state.pending) if config.write == "segment" else None
    step = Step(state=state, real=real, active=config.active(position), segments=segments, after=state)
    fast = [y for y in layer(x, step, 0) if y is not None]
    rows = [literal(layer, x[b], ids[b], real[b], state, b) for b in range(batch)]
    slow = [torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])]
    slow.append(torch.stack([torch.stack(r[2]) for r in rows]))
    slow += [torch.stack([r[3] for r in rows])] if segments is not None else []
    assert len(fast) == len(slow) == (4 if segments is not None else 3)
    grads = []
    for outs in (fast, slow):
        g = torch.Generator().manual_seed(4)
        loss = sum((y * torch.randn(y.shape, generator=g, dtype=y.dtype)).sum() for y in outs)
        grads.append(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    pairs = [*zip(fast, slow, strict=True), *zip(*grads, strict=True)]
    assert max(gap(a, b) / max(float(b.detach().abs().max()), 1e-6) for a, b in pairs) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_new_adapter_changes_nothing_bit_for_bit_while_it_writes(kind: str) -> None:
    model, ids = base(kind, torch.float32), tokens(2, 17)
    plain = model(ids).logits
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, pad_token_id=0)
    memory = DeltaMem(model)
    assert torch.equal(model(ids).logits, plain)
    assert all(bool(s.any()) for s in memory.last.memory) and memory.last.position.tolist() == [17, 17]
    assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, pad_token_id=0), answer)
    stir(memory)
    assert gap(model(ids).logits, plain) > 1e-3
    memory.remove()
    assert torch.equal(model(ids).logits, plain)


@torch.no_grad()
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_corrections_land_on_query_and_output_and_nowhere_else(kind: str) -> None:
    model, memory = adapted(kind=kind)
    places = ARCHITECTURES[kind]
    attention = model.get_submodule(places.layers)[1].get_submodule(places.attention)
    query, output = (attention.get_submodule(n) for n in (places.query, places.output))
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in (("query", query), ("output", output)):
        module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: (args[0], out)}))
    ids = tokens(1, 9)
    model(ids)
    x = seen["query"][0]
    to_query, to_output, _, _ = literal(
        memory.layers[1], x[0], ids[0], torch.ones(9, dtype=torch.bool), memory.empty(1), 0
    )
    memory.remove()
    changed = seen["query"][1] - query(x)
    assert gap(changed[0, :, : to_query.shape[1]], to_query) < 1e-13
    assert not changed[0, :, to_query.shape[1] :].any(), "keys and values of a fused projection are untouched"
    assert gap((seen["output"][1] - output(seen["output"][0]))[0], to_output) < 1e-13


def test_only_the_adapter_trains_and_what_was_written_before_gets_gradients() -> None:
    model, memory = adapted()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(memory.parameters(), 1e-2)
    history, query = tokens(2, 12, seed=5), tokens(2, 8, seed=6)
    losses = []
    for _ in range(12):
        memory.reset()
        model(history)
        memory.commit()
        out = model(query, labels=query)
        out.loss.backward()
        losses.append(out.loss.item())
        assert all(p.grad is None for p in model.parameters())
        assert all(bool(layer.key.weight.grad.any()) for layer in memory.layers)
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.05
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert {id(p) for p in memory.parameters()}.isdisjoint({id(p) for p in model.parameters()})


@torch.no_grad()
def test_impossible_uses_are_refused_with_the_reason() -> None:
    model = base()
    filled = model(tokens(1, 3)).past_key_values
    memory = DeltaMem(model)
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    neox = AutoModelForCausalLM.from_config(GPTNeoXConfig(**sizes))
    cache = model(tokens(2, 3)).past_key_values
    uses: list[tuple[str, Any]] = [
        ("gpt_neox", lambda: DeltaMem(neox)),
        ("Linear", lambda: DeltaMem(nn.Linear(2, 2))),
        ("already", lambda: DeltaMem(model)),
        ("without the memory", lambda: model(tokens(1, 1), past_key_values=filled)),
        ("by itself", lambda: model.model(tokens(1, 3))),
        ("forget", lambda: cache.crop(1)),
        ("no session", lambda: memory.save_session(Path("x.safetensors"))),
        ("layers", lambda: DeltaMem(base(), DeltaMemConfig(layers=(0, 2)))),
        ("2-D", lambda: model(tokens(1, 3), attention_mask=torch.zeros(1, 1, 3, 3))),
    ]
    for message, use in uses:
        with pytest.raises((UsageError, ValueError), match=message):
            use()
    memory.session = memory.empty(2)
    with pytest.raises(ValueError, match="2 rows and the batch 3"):
        model(tokens(3, 3))
    memory.reset()
    model.gradient_checkpointing_enable()
    with pytest.raises(UsageError, match="twice"):
        model.train()(tokens(1, 3))
    config: list[tuple[str, dict[str, Any]]] = [
        ("axis must be row", {"capacity": replace(SCHEDULE, axis="key")}),
        ("read must be pre", {"capacity": replace(SCHEDULE, read="post")}),
        ("do not divide", {"capacity": SCHEDULE, "rank": 6}),
        ("write mode", {"write": "message"}),
        ("rank", {"rank": 0}),
    ]
    for message, choice in config:
        with pytest.raises((UsageError, ValueError), match=message):
            DeltaMemConfig(**choice)
    with pytest.raises(ValueError, match="rnak"):
        DeltaMemConfig.from_dict(DeltaMemConfig().as_dict() | {"rnak": 3})


@torch.no_grad()
def test_half_precision_models_keep_a_32_bit_memory_and_a_choice_of_layers() -> None:
    model = base(dtype=torch.bfloat16)
    plain = model(tokens(1, 9)).logits
    memory = DeltaMem(model, DeltaMemConfig(layers=(1,)))
    assert torch.equal(model(tokens(1, 9)).logits, plain)
    assert [s.dtype for s in memory.last.memory] == [torch.float32] and len(memory.layers) == 1
