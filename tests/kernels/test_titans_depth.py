"""MLP Titans memories of depth 2, 3 and 4, and the parts of the dual form that a short inner chunk does not reach."""

from __future__ import annotations

import pytest
import torch
from helpers import H, K, N, V, everything, staircase, titans_inputs, titans_state, worst
from torch import Tensor

from proteus_kernels import titans_linear, titans_mlp, titans_runs
from proteus_kernels.titans_common import TitansState, coefficients

DEEP = ["mlp3", "mlp4"]


def run(kind: str, form: str, length: int, *, inner: int, offset: int = 0, **choices: object) -> list[Tensor]:
    """y, the final state and every gradient, from a random start."""
    x, state = titans_inputs(length, kind, start="random")
    call = getattr(titans_mlp, form)

    def outputs() -> list[Tensor]:
        y, s = call(**x, state=titans_state(state, offset), inner=inner, **choices)
        assert s.offset == (offset + length) % inner
        return [y, *s.weights, *s.momentum, *s.anchor]

    return everything(outputs, [*x.values(), *state])


def same(kind: str, length: int, **choices: object) -> None:
    chunk, definition = (run(kind, form, length, **choices) for form in ("chunk", "recurrent"))
    assert worst(chunk, definition) < 1e-10


@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
@pytest.mark.parametrize("kind", DEEP)
def test_chunk_equals_definition_at_every_depth(kind: str, gate: str) -> None:
    active = staircase(14, 6, 2, N)
    for read, decay_locked, offset in (("post", "masked", 0), ("pre", "unmasked", 3)):
        same(kind, 14, inner=4, offset=offset, active=active, gate=gate, read=read, decay_locked=decay_locked)


@pytest.mark.parametrize(("kind", "offset", "read"), [("mlp", 0, "post"), ("mlp", 30, "pre"), ("mlp3", 30, "post")])
def test_a_chunk_that_is_cut_into_blocks_is_the_same_function(kind: str, offset: int, read: str) -> None:
    """Two blocks of 17 an inner chunk, several chunks, an unlock inside a chunk; then static."""
    assert titans_runs.block_length(34, K) == 17
    same(kind, 74, inner=34, offset=offset, read=read, active=staircase(74, 50, 4, N))
    same(kind, 68, inner=34, read=read)


def test_blocks_divide_a_chunk_and_grow_with_the_head() -> None:
    sizes = {(64, 32): 32, (64, 64): 64, (64, 128): 64, (128, 128): 128, (48, 32): 24, (37, 32): 37, (5, 8): 5}
    assert {k: titans_runs.block_length(*k) for k in sizes} == sizes


@pytest.mark.parametrize("kind", DEEP)
def test_locked_units_keep_weights_and_momentum_of_every_layer(kind: str) -> None:
    x, tensors = titans_inputs(9, kind, start="random")
    start, n = titans_state(tensors, 0), 2
    for form in (titans_mlp.recurrent, titans_mlp.chunk):
        _, end = form(**x, state=start, inner=4, active=[n] * 9)
        for before, after in ((start.weights, end.weights), (start.momentum, end.momentum)):
            for i, (a, b) in enumerate(zip(before, after, strict=True)):
                opened = torch.zeros(a.shape[2:], dtype=torch.bool)
                opened[slice(None) if i == len(before) - 1 else slice(n), slice(None) if i == 0 else slice(n)] = True
                assert torch.equal(a[..., ~opened], b[..., ~opened])
                assert (a[..., opened] != b[..., opened]).all()


@pytest.mark.parametrize("kind", DEEP)
def test_continuing_a_deep_memory_equals_one_pass(kind: str) -> None:
    x, tensors = titans_inputs(13, kind, start="random")
    active = staircase(13, 5, 2, N)
    whole, end = titans_mlp.chunk(**x, state=titans_state(tensors, 0), inner=4, active=active)
    for cut in (1, 4, 6, 11):
        state, parts = titans_state(tensors, 0), []
        for s in (slice(0, cut), slice(cut, 13)):
            y, state = titans_mlp.chunk(**{n: t[:, s] for n, t in x.items()}, state=state, inner=4, active=active[s])
            parts.append(y)
        got = [torch.cat(parts, 1), *state.weights, *state.momentum, *state.anchor]
        assert worst(got, [whole, *end.weights, *end.momentum, *end.anchor]) < 1e-12


def small(kind: str, length: int = 6) -> list[Tensor]:
    """One batch row and head, no two widths alike: K = 3, V = 2, N = 4."""
    x, state = titans_inputs(length, kind, start="random")
    depth = len(state) // 3
    leaves = [t[:1, :, :1, : 2 if n == "v_BTHV" else 3] if t.dim() == 4 else t[:1, :, :1] for n, t in x.items()]
    for i, t in enumerate(state):
        rows, cols = (2 if i % depth == depth - 1 else 4), (3 if i % depth == 0 else 4)
        leaves.append(t[:1, :1, :rows, :cols])
    return [t.detach().clone().requires_grad_() for t in leaves]


def call(*tensors: Tensor, form: str = "chunk", **choices: object) -> tuple[Tensor, ...]:
    """A kernel on the leaves of `small`, inner chunks of 2."""
    names = ("q_BTHK", "k_BTHK", "v_BTHV", "log_keep_BTH", "log_eta_BTH", "theta_BTH")
    inputs, state = dict(zip(names, tensors, strict=False)), titans_state(list(tensors[6:]), 0)
    y, s = getattr(titans_mlp, form)(**inputs, state=state, inner=2, **choices)
    return y, *s.weights, *s.momentum, *s.anchor


@pytest.mark.parametrize("gate", ["both", "write", "read"])
@pytest.mark.parametrize("kind", ["mlp", "mlp3", "mlp4"])
def test_widths_that_differ_are_kept_apart(kind: str, gate: str) -> None:
    leaves, active = small(kind), [1, 1, 1, 2, 4, 4]
    forms = ("chunk", "recurrent")
    a, b = (everything(lambda f=f: list(call(*leaves, form=f, active=active, gate=gate)), leaves) for f in forms)
    assert worst(a, b) < 1e-10


@pytest.mark.parametrize("kind", ["mlp", "mlp3"])
def test_the_backward_by_hand_passes_gradcheck(kind: str) -> None:
    assert torch.autograd.gradcheck(call, small(kind), atol=1e-7)


def test_a_second_backward_through_the_same_graph_gives_the_same_gradients() -> None:
    leaves = small("mlp")
    loss, used = sum(x.square().sum() for x in call(*leaves)), leaves[:10]  # a fresh chunk does not read the old anchor
    first, second = (torch.autograd.grad(loss, used, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_coefficients_pass_gradcheck() -> None:
    g = torch.Generator().manual_seed(0)
    gates = [(s * torch.rand(2, 5, generator=g, dtype=torch.float64)).requires_grad_() for s in (-1.0, -1.0, 0.3)]
    for pre in (False, True):
        assert torch.autograd.gradcheck(lambda *x, pre=pre: tuple(vars(coefficients(*x, pre=pre)).values()), gates)


def test_nothing_is_kept_without_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prefill holds one chunk: under no_grad, and when no input asks for a gradient."""
    x, state = titans_inputs(20, "mlp", start="random")
    kept: list[int] = []
    saved = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t)
    still = {n: t.detach() for n, t in x.items()}
    with saved:
        with torch.no_grad():
            titans_mlp.chunk(**x, state=titans_state(state, 0), inner=5)
        titans_mlp.chunk(**still, state=titans_state([t.detach() for t in state], 0), inner=5)
        assert not kept
        titans_mlp.chunk(**x, state=titans_state(state, 0), inner=5)
        assert kept


def test_active_parameters_grow_with_the_square_of_the_open_units() -> None:
    """What a schedule's `active fraction` means: units. Counted here on the masks that the definition applies."""
    for kind, depth in (("mlp", 2), ("mlp3", 3), ("mlp4", 4)):
        x, tensors = titans_inputs(6, kind, start="random")
        start = titans_state(tensors, 0)
        _, end = titans_mlp.recurrent(**x, state=start, inner=2, active=[3] * 6)
        changed = sum(int((a != b)[0, 0].sum()) for a, b in zip(start.weights, end.weights, strict=True))
        whole = sum(w[0, 0].numel() for w in start.weights)
        stated = titans_mlp.parameter_fraction(3, hidden=N, key=K, value=V, depth=depth)
        assert changed / whole == pytest.approx(stated, abs=1e-12)
    assert titans_mlp.parameter_fraction(3, hidden=N, key=K, value=V, depth=2) == 3 / N


def test_one_layer_and_other_axes_are_refused_in_one_line() -> None:
    x, tensors = titans_inputs(4, "linear", start="random")
    y, _ = titans_linear.chunk(**x, state=titans_state(tensors, 0), inner=2)
    assert y.shape == (2, 4, H, V)
    for form in (titans_mlp.chunk, titans_mlp.recurrent):
        with pytest.raises(ValueError, match="at least two layers"):
            form(**x, state=titans_state(tensors, 0), inner=2)
        with pytest.raises(ValueError, match="not along 'flat'"):
            form(**x, state=TitansState.start((torch.ones(1, 1, N, K), torch.ones(1, 1, V, N))), axis="flat")


def test_an_unused_output_needs_no_gradient() -> None:
    """Only y of the first chunk: the gradients of states and later chunks arrive as zeros."""
    x, state = titans_inputs(15, "mlp", start="random")
    inputs = [*x.values(), *state]
    grads = [
        torch.autograd.grad(
            form(**x, state=titans_state(state, 0), inner=5)[0][:, :5].sum(), inputs, allow_unused=True,
            materialize_grads=True,
        )
        for form in (titans_mlp.chunk, titans_mlp.recurrent)
    ]  # fmt: skip
    assert worst(list(grads[0]), list(grads[1])) < 1e-10
