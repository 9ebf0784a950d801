"""Attention: one function as definition, blocks and cuts; positions, cache and memory; and Transformer++ in the decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from proteus_bench.schedules import Capacity, CapacityError, Uniform
from proteus_models.attention import Attention, AttentionCache, Queries, chunk, recurrent, rotate
from proteus_models.check import check_model
from proteus_models.checkpoint import save_checkpoint
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

D, H, K, V = 12, 3, 4, 6
FORMS = {"chunk": chunk, "recurrent": recurrent}


def config(mixer: str = "transformer++", capacity: Capacity | None = None, **fields: Any) -> ModelConfig:
    capacity = capacity or Capacity.static(span=64)
    sizes = {"d_model": D, "n_heads": H, "head_k": K, "head_v": V, "mlp_hidden": 16, "n_layers": 2} | fields
    return ModelConfig(mixer=mixer, vocab_size=40, train_length=64, capacity=capacity, **sizes)  # type: ignore[arg-type]


def layer(window: int | None = None, **fields: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(config(**fields), window).double()


def tokens(n: int, batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def near(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return a.shape == b.shape and (a.numel() == 0 or float((a - b).detach().abs().max()) <= tolerance)


def everything(form: str, window: int | None, prefix: int, earlier: int, n: int, queries: int) -> list[Tensor]:
    """Output, cache and every gradient of one call that continues from `earlier` tokens."""
    g = torch.Generator().manual_seed(7)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    slots = earlier if window is None else window - 1
    old = [leaf(2, slots, H, K), leaf(2, slots, H, V)]
    q = [leaf(2, queries, H, K), leaf(2, queries, H, K)]
    new = [leaf(2, n, H, K), leaf(2, n, H, V)]
    front = [leaf(2, prefix, H, K), leaf(2, prefix, H, V)] if prefix else []
    y, cache = FORMS[form](
        q=Queries(rotated=q[0], free=q[1]), k_BTHK=new[0], v_BTHV=new[1], window=window,
        cache=AttentionCache(k_BSHK=old[0], v_BSHV=old[1], position=earlier), prefix=(front[0], front[1]) if prefix else None,
    )  # fmt: skip
    assert cache.position == earlier + n
    out = [y, cache.k_BSHK, cache.v_BSHV]
    loss = torch.stack([(x * torch.randn(x.shape, generator=g, dtype=x.dtype)).sum() for x in out]).sum()
    leaves = [*old, *q, *new, *front]
    return [*out, *torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_the_fast_form_is_the_definition(window: int | None, prefix: int) -> None:
    for earlier in (0, 1, 4, 9):
        for n, queries in ((1, 1), (4, 4), (5, 5), (6, 6), (17, 17), (17, 1), (17, 8)):
            pairs = zip(*(everything(form, window, prefix, earlier, n, queries) for form in FORMS), strict=True)
            assert all(near(a, b) for a, b in pairs), (earlier, n, queries)


@pytest.mark.parametrize("window", [None, 4])
def test_attention_is_one_masked_softmax_over_everything(window: int | None) -> None:
    """Against the whole T x T matrix with positions as rotations of complex numbers: no cache, no blocks, no cut."""
    a, x, p = layer(window), tokens(19), tokens(3, 1, 2)
    at, past = torch.arange(19)[:, None], torch.arange(19)[None, :]
    seen = (past <= at) if window is None else (past <= at) & (past > at - window)
    q, k, v = a.project(x)
    _, kp, vp = a.project(p)

    def turned(z: Tensor) -> Tensor:
        pairs = torch.complex(z[..., : K // 2], z[..., K // 2 :])
        rates = 10000.0 ** (-torch.arange(K // 2, dtype=torch.float64) / (K // 2))
        return pairs * torch.exp(1j * torch.arange(19, dtype=torch.float64)[:, None, None] * rates)

    scores = torch.einsum("bthc,bshc->bhts", turned(q), turned(k).conj()).real.masked_fill(~seen, -torch.inf)
    both = torch.cat([torch.einsum("bthk,xphk->bhtp", q, kp), scores], -1) / K**0.5
    values = torch.cat([vp.expand(2, -1, -1, -1), v], 1)
    expected = a.out(torch.einsum("bhts,bshv->bthv", both.softmax(-1), values).flatten(2))
    y, _ = a(x, a.init_cache(2), prefix=p)
    assert near(y, expected)


@pytest.mark.parametrize("window", [None, 5])
def test_a_pass_cut_anywhere_continues_exactly(window: int | None) -> None:
    a, x, p = layer(window, qk_norm=True), tokens(16), tokens(2, 1, 3)
    whole, end = a(x, a.init_cache(2), prefix=p)
    for cut in range(1, 16):
        left, cache = a(x[:, :cut], a.init_cache(2), prefix=p)
        right, cache = a(x[:, cut:], cache, prefix=p)
        assert near(torch.cat([left, right], 1), whole)
        assert near(cache.k_BSHK, end.k_BSHK) and near(cache.v_BSHV, end.v_BSHV) and cache.position == 16
        last, _ = a(x[:, :cut], a.init_cache(2), prefix=p, last_only=True)
        assert near(last, left[:, -1:])


def test_a_clock_that_restarts_is_another_function() -> None:
    """The control of the test above: with positions counted from the cut, continuing is wrong."""
    a, x = layer(), tokens(12)
    whole, _ = a(x, a.init_cache(2))
    _, cache = a(x[:, :7], a.init_cache(2))
    k, v = cache.k_BSHK, cache.v_BSHV
    q_new, k_new, v_new = a.project(x[:, 7:])
    y, _ = chunk(q=a.queries(q_new, 0), k_BTHK=rotate(k_new, 0, a.base), v_BTHV=v_new, cache=cache)
    assert k.shape[1] == v.shape[1] == 7
    assert not near(a.out(y.flatten(2)), whole[:, 7:], 1e-3)


def test_only_distances_matter_and_a_prefix_has_none() -> None:
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    dots = [float((rotate(q, s, 1e4) * rotate(k, s - 9, 1e4)).sum()) for s in (9, 10, 1000, 10**7)]
    assert max(dots) - min(dots) < 1e-6
    assert abs(dots[0] - float((rotate(q, 9, 1e4) * rotate(k, 1, 1e4)).sum())) > 1e-3
    a, p = layer(window=2), tokens(2, 1, 3)
    same = tokens(1).expand(2, 40, D)  # one token again and again: what the window holds is the same everywhere
    y, _ = a(same, a.init_cache(2), prefix=p)
    assert near(y[:, 1:], y[:, 1:2].expand(2, 39, D))


def test_nothing_before_the_window_and_nothing_after_the_token_is_seen() -> None:
    a, x = layer(window=4), tokens(20)
    base, _ = a(x, a.init_cache(2))
    for t in range(20):
        other = x.clone()
        other[:, t] += 1
        changed = (a(other, a.init_cache(2))[0] - base).detach().abs().amax((0, 2)) > 0
        assert changed.nonzero().flatten().tolist() == list(range(t, min(20, t + 4)))


def test_a_window_cache_has_one_size_and_a_full_one_grows() -> None:
    a, b = layer(window=5), layer()
    sizes = []
    for n in (0, 1, 3, 30):
        short, whole = a.init_cache(2), b.init_cache(2)
        if n:
            short, whole = a(tokens(n), short)[1], b(tokens(n), whole)[1]
        assert short.k_BSHK.shape == (2, 4, H, K) and whole.v_BSHV.shape == (2, n, H, V)
        # nothing of a long pass stays alive behind a short cache
        sizes.append(short.k_BSHK.untyped_storage().nbytes())
    assert sizes == [2 * 4 * H * K * 8] * 4


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation makes, the backward pass included."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.size = max([self.size, *(x.untyped_storage().nbytes() // x.element_size() for x in made)])
        return out


def largest(window: int | None, n: int) -> int:
    a, x, p = layer(window), tokens(n, 1), tokens(2, 1, 3)
    with Largest() as seen:
        a(x, a.init_cache(1), prefix=p)[0].sum().backward()
    return seen.size


def test_a_window_costs_time_and_memory_linear_in_the_length() -> None:
    small, large = largest(8, 128), largest(8, 512)
    assert large <= 4.2 * small and large < 512 * 512 / 4
    assert largest(None, 512) >= 512 * 512  # the control: this measure does see a T x T matrix


def test_normalised_queries_and_keys_have_no_scale() -> None:
    for normed in (True, False):
        a = layer(qk_norm=normed)
        y, _ = a(tokens(9), a.init_cache(2))
        with torch.no_grad():
            a.qkv.weight[: 2 * H * K] *= 10
        assert near(a(tokens(9), a.init_cache(2))[0], y, 1e-3) is normed


def test_rotary_positions_need_pairs() -> None:
    with pytest.raises(ValueError, match="head_k must be even, got 5"):
        layer(head_k=5)


def transformer() -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(config()).double()


def test_transformer_passes_every_check_and_nothing_is_locked() -> None:
    rows = {row.name: row for row in check_model(transformer(), length=24)}
    assert all(row.passed for row in rows.values())
    assert "nothing is locked" in rows["lock invariant"].detail


def test_transformer_has_the_parameters_of_attention_and_swiglu() -> None:
    model = transformer()
    per_layer = D * H * (2 * K + V) + H * V * D + 3 * D * 16 + 2 * D
    assert sum(p.numel() for p in model.parameters()) == 40 * D + 2 * per_layer + D


def test_transformer_answers_from_forked_caches_as_from_separate_runs() -> None:
    model, context, asks = transformer(), torch.arange(13)[None], torch.tensor([[1, 2, 3], [9, 8, 7], [4, 4, 4]])
    _, state = model.prefill(context)
    assert state.nbytes == 2 * 13 * H * (K + V) * 8
    forked = model(asks, state.fork(3))
    alone = torch.cat([model(torch.cat([context[0], ask])[None])[:, -3:] for ask in asks])
    assert near(forked, alone)
    assert near(model(asks[1:2], state.fork(3).select([1])), alone[1:2])


def test_transformer_refuses_a_schedule_and_says_why() -> None:
    capacity = Capacity(schedule=Uniform(blocks=2, span=64))
    with pytest.raises(CapacityError, match="no fixed state to open block by block") as refusal:
        DecoderLM(config(capacity=capacity))
    assert refusal.value.exit_code == 2 and "\n" not in str(refusal.value)
    model = transformer()
    with pytest.raises(CapacityError, match="no fixed state"):
        model.set_capacity(capacity)
    model.set_capacity(Capacity.static(axis="value", span=128))  # one block is no schedule, whatever the axis says


def test_transformer_at_the_command_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from proteus_bench.cli import invoke

    zoo = tmp_path / "zoo"
    torch.manual_seed(0)
    from proteus_models.zoo import zoo_root

    zoo.mkdir()
    (zoo / "tokenizer.json").write_bytes((zoo_root() / "tokenizer.json").read_bytes())
    card = {"name": "transformer++", "seed": 0, "status": "complete", "train_length": 64, "tokens": 0}
    save_checkpoint(zoo / "transformer++" / "seed0", DecoderLM(config()), card)
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(zoo))
    assert invoke(["check", "transformer++", "--json"]) == 0
    assert '"passed": true' in capfd.readouterr().out
    assert invoke(["check", "transformer+++proteus"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and "Traceback" not in err
    assert "transformer++ has no fixed state to open block by block: it takes no schedule" in err


def test_gradients_reach_every_parameter() -> None:
    model = transformer()
    model(torch.arange(20)[None] % 40).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
    assert isinstance(model.stack[0].mixer.attention, nn.Module)
