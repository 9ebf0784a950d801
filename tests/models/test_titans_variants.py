"""Titans MAC, MAG and MAL: one function in every form and cut, and what a schedule may touch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hybrid_models import CASES, LENGTH, NAMES, D, P, build, config, gap, ids, mixer, tensors, tokens
from torch import Tensor

from proteus_bench.schedules import Capacity
from proteus_kernels import titans_linear
from proteus_models.check import check_model
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM, DecoderState
from proteus_models.titans_hybrid import primed
from proteus_models.zoo import split_name, zoo_root


def warm(model: DecoderLM, n: int) -> DecoderState:
    """A state in the middle of things: caches filled, a segment begun."""
    return model.prefill(ids(n))[1].detach()


def everything(model: DecoderLM, start: DecoderState, form: str) -> list[Tensor]:
    """Logits, final state, and the gradient of a random functional of both for every parameter and start tensor."""
    g = torch.Generator().manual_seed(1)
    leaves = [x.requires_grad_() for x in tensors(start.layers)]
    logits, end = model(ids(), start, return_state=True, form=form)
    outs = [logits, *tensors(end.layers)]
    loss = torch.stack([(x * torch.randn(x.shape, generator=g, dtype=x.dtype)).sum() for x in outs]).sum()
    inputs = [*model.parameters(), *leaves]
    return [*outs, *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize(("name", "axis"), CASES)
def test_the_fast_form_is_the_definition_from_a_cold_and_a_warm_state(name: str, axis: str) -> None:
    model = build(config(name, axis))
    for start in (model.init_state(2).detach(), warm(model, 8)):
        fast, slow = (everything(model, start, form) for form in ("chunk", "recurrent"))
        worst = max(gap(a, b) / max(1.0, float(b.detach().abs().max())) for a, b in zip(fast, slow, strict=True) if a.numel())
        assert worst <= 1e-10


@pytest.mark.parametrize("choices", [{"gate": "write", "m0": "learned"}, {"gate": "read"}, {"key_norm": "compensated"},
                                     {"read": "pre"}, {"key_norm": "after_mask"}])  # fmt: skip
def test_the_other_choices_are_exact_too(choices: dict[str, str]) -> None:
    for name in NAMES:
        model = build(config(name, **choices))
        start = warm(model, 4)
        fast, slow = (everything(model, start, form) for form in ("chunk", "recurrent"))
        assert max(gap(a, b) for a, b in zip(fast, slow, strict=True) if a.numel()) <= 1e-10


@pytest.mark.parametrize(("name", "axis"), [(n, a) for n in NAMES for a in ("key", "hidden")])
@torch.no_grad()
def test_a_pass_cut_anywhere_continues_exactly(name: str, axis: str) -> None:
    """27 tokens from the fifth on: every cut, so every edge of a segment, a window, an inner chunk and an unlock."""
    model = build(config(name, axis))
    start = warm(model, 4)
    whole, end = model(ids(), start, return_state=True)
    for cut in range(1, LENGTH):
        left, state = model(ids()[:, :cut], start, return_state=True)
        right, state = model.prefill(ids()[:, cut:], state)
        assert gap(left, whole[:, :cut]) < 1e-12 and gap(right, whole[:, -1]) < 1e-12, cut
        assert gap(state.layers, end.layers) < 1e-12 and state.position == end.position, cut


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_one_token_at_a_time_is_one_pass_and_the_state_keeps_its_size(name: str) -> None:
    model = build(config(name))
    state, size, outs = model.init_state(2), model.init_state(2).nbytes, []
    for t in range(LENGTH):
        logits, state = model(ids()[:, t : t + 1], state, return_state=True)
        outs.append(logits)
        assert state.nbytes == size
    assert gap(torch.cat(outs, 1), model(ids())) < 1e-12


@pytest.mark.parametrize(("name", "axis"), [(n, a) for n in NAMES for a in ("value", "hidden")])
@torch.no_grad()
def test_no_token_sees_a_later_one(name: str, axis: str) -> None:
    model, x = build(config(name, axis)), ids(20)
    base = model(x)
    for t in range(20):
        other = x.clone()
        other[:, t] = (other[:, t] + 1) % 40
        change = (model(other) - base).abs().amax((0, 2))
        assert float(change[:t].max()) == 0.0 if t else True
        assert float(change[t]) > 0


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_rows_of_a_batch_do_not_mix_and_forks_answer_apart(name: str) -> None:
    model, x = build(config(name)), ids(LENGTH, 3)
    assert gap(model(x), torch.cat([model(row[None]) for row in x])) < 1e-12
    _, state = model.prefill(x[:1, :20])
    asks = ids(4, 3)
    alone = torch.cat([model(torch.cat([x[0, :20], ask])[None])[:, -4:] for ask in asks])
    assert gap(model(asks, state.fork(3)), alone) < 1e-12
    assert gap(model(asks[1:2], state.fork(3).select([1])), alone[1:2]) < 1e-12


@pytest.mark.parametrize(("name", "axis"), CASES)
@torch.no_grad()
def test_one_block_is_the_static_model_bit_for_bit(name: str, axis: str) -> None:
    one = config(name, axis, blocks=1)
    static = replace(one, capacity=Capacity.static(axis=axis, span=6, m0=one.capacity.m0))
    assert torch.equal(build(one)(ids()), build(static)(ids()))
    assert not torch.equal(build(config(name, axis))(ids()), build(static)(ids()))


@pytest.mark.parametrize("name", ["titans-mag", "titans-mal"])
def test_the_memory_begins_with_the_persistent_tokens(name: str) -> None:
    """M([p | x]): the memory over one sequence (P fills an inner chunk), p under the blocks of position 1."""
    m, x = mixer(config(name, inner=P)), tokens(14, 2)
    active = [4] * 6 + [8] * 8
    state, outputs = primed(m, 2)
    assert state[1].offset == 0
    together, end = m.lmm(torch.cat([m.persistent.expand(2, -1, -1), x], 1), m.lmm.init_state(2), [4] * P + active)
    apart, state = m.lmm(x, state, active)
    assert gap(torch.cat([outputs, apart], 1), together) < 1e-12
    assert gap(state[1].weights, end[1].weights) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_persistent_tokens_are_seen_from_everywhere_and_never_masked(name: str) -> None:
    """Under the narrowest schedule each position's output still moves with each persistent token."""
    m, x = mixer(config(name)), tokens(LENGTH)
    active = [1] * LENGTH
    for i in range(P):
        base, _ = m(x, m.init_state(1), active)
        with torch.no_grad():
            m.persistent[i] += 1
        moved, _ = m(x, m.init_state(1), active)
        assert float((moved - base).detach().abs().amax(-1).min()) > 1e-6


@pytest.mark.parametrize("name", ["titans-mag", "titans-mal"])
def test_a_schedule_does_not_touch_the_attention(name: str) -> None:
    m, x, seen = mixer(config(name)), tokens(LENGTH), []
    m.lmm.forward = lambda x, state, *rest: (x, state)  # what the memory says is taken out
    m.attention.register_forward_hook(lambda module, args, out: seen.append(out[0]))
    for active in (None, [1] * LENGTH):
        m(x, m.init_state(1), active)
    assert torch.equal(*seen)


def test_equivalent_gates_are_equal_for_hybrids_too() -> None:
    """From a zero start `write` is `both`; the persistent tokens are written first and must not break that."""
    for name in NAMES:
        outs = [build(config(name, gate=gate))(ids()) for gate in ("both", "write", "read")]
        assert gap(outs[0], outs[1]) < 1e-12 and gap(outs[0], outs[2]) > 1e-4


def test_a_kernel_that_ignores_the_lock_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("chunk", "recurrent"):
        right = getattr(titans_linear, form)
        monkeypatch.setattr(titans_linear, form, lambda right=right, **x: right(**(x | {"gate": "read"})))
    for name in NAMES[:2]:
        assert "lock invariant" in {r.name for r in check_model(build(config(name)), length=12) if not r.passed}


@pytest.mark.parametrize("name", NAMES)
def test_edges_of_the_configuration_pass_every_check(name: str) -> None:
    for fields in ({"persistent": 0, "n_layers": 2}, {"window": 1, "segment": 1}, {"qk_norm": True, "segment": 50, "window": 50}):
        rows = check_model(build(config(name, **fields)), length=12)
        assert {row.name for row in rows if not row.passed} == set(), fields


@pytest.mark.parametrize(
    ("name", "parts"),
    [("titans-mac", 4 + 5 + 3), ("titans-mag", 4 + 5 + 1), ("titans-mal", 4 + 5)],
)
def test_parameters_are_those_of_attention_memory_and_gate(name: str, parts: int) -> None:
    """In d x d matrices (all heads together are as wide as the model), then the vectors by name."""
    shapes = {n: p.shape for n, p in mixer(config(name)).named_parameters()}
    matrices = [s for n, s in shapes.items() if n.endswith("weight") and len(s) == 2 and "conv" not in n and "gates" not in n]
    assert sum(s.numel() for s in matrices) == parts * D * D
    assert shapes["persistent"] == (P, D) and "persistent" not in dict(mixer(config(name, persistent=0)).named_parameters())


@pytest.mark.parametrize(("name", "axis"), CASES)
def test_gradients_reach_every_parameter(name: str, axis: str) -> None:
    model = build(config(name, axis))
    model(ids()).logsumexp(-1).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)] == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"axis": "hidden", "memory": "linear"}, "memory=linear has no hidden axis; one of key, value, head"),
     ({"axis": "key", "memory": "mlp", "m0": "learned"}, "memory=mlp has no key axis; one of hidden"),
     ({"axis": "hidden", "m0": "zero"}, "m0=learned"), ({"memory": "deep"}, "memory must be linear or mlp, got 'deep'"),
     ({"persistent": -1}, "persistent must be at least 0"), ({"window": 0}, "window must be at least 1"),
     ({"segment": 0}, "segment must be at least 1"), ({"head_k": 7, "axis": "value"}, "head_k must be even"),
     ({"axis": "row"}, "no row axis")],
)  # fmt: skip
def test_impossible_hybrids_are_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match=message) as refusal:
            build(config(name, **fields))
        assert "\n" not in str(refusal.value)


def test_another_axis_on_the_same_weights() -> None:
    for name in NAMES:
        model, other = build(config(name)), config(name, "value")
        model.set_capacity(other.capacity)
        assert torch.equal(model(ids()), build(other)(ids()))
        with pytest.raises(ValueError, match="no hidden axis"):
            model.set_capacity(replace(other.capacity, axis="hidden"))


def test_configurations_of_the_zoo_that_know_nothing_of_attention_still_load() -> None:
    paths = sorted(zoo_root().glob("*/seed*/config.json"))
    assert paths
    for path in paths:
        data = json.loads(path.read_text())
        old = {k: v for k, v in data.items() if k not in ("window", "segment", "persistent", "memory", "qk_norm", "rope_base")}
        loaded = ModelConfig.from_dict(old)
        assert (loaded.mixer, loaded.memory) == (data["mixer"], "linear")
        assert ModelConfig.from_dict(loaded.as_dict()) == loaded
    c = config("titans-mac", window=9, qk_norm=True)
    assert ModelConfig.from_dict(json.loads(json.dumps(c.as_dict()))) == c


def test_a_backbone_whose_name_ends_in_plus_signs_has_a_folder() -> None:
    cases = {"titans-mac": ("titans-mac", "static"), "titans-mac+proteus": ("titans-mac", "proteus"),
             "transformer++": ("transformer++", "static"), "gdn+late(start=0.5)": ("gdn", "late(start=0.5)")}  # fmt: skip
    assert {stem: split_name(stem) for stem in cases} == cases
