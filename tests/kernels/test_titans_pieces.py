"""Linear Titans under a schedule as one function over pieces: every gradient, wherever it is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import H, K, V, everything, staircase, titans_inputs, titans_state, worst
from torch import Tensor

from proteus_kernels import pieces, titans_linear, titans_pieces

DIM = {"key": K, "value": V, "head": H}
LENGTH = 42


@pytest.fixture(params=[1, 2**11, 2**19], ids=["one chunk", "few chunks", "whole pieces"])
def group(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titans_pieces, "GROUP", request.param)
    monkeypatch.setattr(pieces, "LEAST", (8, 8))


def run(
    form: str, axis: str, delta: int, *, inner: int, start: str, offset: int = 0, fixed: bool = False, **choices: Any
) -> list[Tensor]:
    """y, the final state and every gradient; fixed: the start is a constant."""
    x, state = titans_inputs(LENGTH, "linear", start=start)
    active = staircase(LENGTH, delta, 1 if axis == "head" else 2, DIM[axis])
    leaves = [*x.values(), *([] if fixed else state)]
    given = titans_state([t.detach() for t in state] if fixed else state, offset)

    def outputs() -> list[Tensor]:
        y, s = getattr(titans_linear, form)(**x, state=given, inner=inner, active=active, axis=axis, **choices)
        return [y, *s.weights, *s.momentum, *s.anchor]

    return everything(outputs, leaves)


@pytest.mark.parametrize("axis", DIM)
def test_every_gradient_for_unlocks_inside_chunks_and_between_them(group: None, axis: str) -> None:
    """inner = 5 divides 10 and not 7; from a random state, whose locked part wants its gradient too."""
    for delta, offset, read in ((10, 0, "post"), (7, 0, "pre"), (7, 3, "post"), (10, 2, "pre")):
        choices = {"inner": 5, "start": "random", "offset": offset, "read": read}
        chunk, definition = (run(f, axis, delta, **choices) for f in ("chunk", "recurrent"))
        assert worst(chunk, definition) < 1e-10, (delta, offset, read)


@pytest.mark.parametrize("axis", DIM)
def test_shared_pieces_and_chunks_of_two_blocks(group: None, axis: str) -> None:
    for inner, start, delta in ((5, "zero", 7), (5, "zero", 3), (34, "random", 15), (34, "zero", 9)):
        choices: dict[str, Any] = {"inner": inner, "start": start, "fixed": start == "zero"}
        chunk, definition = (run(f, axis, delta, **choices) for f in ("chunk", "recurrent"))
        assert worst(chunk, definition) < 1e-10, (inner, start, delta)


@pytest.mark.parametrize("axis", DIM)
def test_the_backward_by_hand_passes_gradcheck(axis: str) -> None:
    x, state = titans_inputs(7, "linear", start="random")
    leaves = [t[:1, :, :2, :3] if t.dim() == 4 else t[:1, :, :2] for t in x.values()] + [t[:1, :2, :3, :3] for t in state]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    active = [1, 1, 1, 1, 2, 2, 2] if axis == "head" else [1, 1, 1, 2, 2, 3, 3]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        given, begun = dict(zip(x, tensors, strict=False)), titans_state(list(tensors[6:]), 1)
        y, s = titans_linear.chunk(**given, state=begun, inner=2, active=active, axis=axis)
        return y, *s.weights, *s.momentum, *s.anchor

    assert torch.autograd.gradcheck(call, leaves, atol=1e-7, fast_mode=True)


def test_a_second_backward_and_one_of_the_output_alone_give_the_same_gradients() -> None:
    x, state = titans_inputs(LENGTH, "linear", start="random")
    active, leaves = staircase(LENGTH, 7, 2, K), [*x.values(), *state[:2]]
    ys = [f(**x, state=titans_state(state, 0), inner=5, active=active)[0] for f in (titans_linear.chunk, titans_linear.recurrent)]
    first, second = (torch.autograd.grad(ys[0].square().sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert worst(list(first), list(torch.autograd.grad(ys[1].square().sum(), leaves))) < 1e-10


def test_nothing_is_kept_without_a_backward_and_nothing_given_is_changed() -> None:
    x, state = titans_inputs(LENGTH, "linear", start="random")
    before, kept = [t.detach().clone() for t in (*x.values(), *state)], []
    active = staircase(LENGTH, 7, 2, K)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        with torch.no_grad():
            quiet, _ = titans_linear.chunk(**x, state=titans_state(state, 0), inner=5, active=active)
        assert not kept
        loud, _ = titans_linear.chunk(**x, state=titans_state(state, 0), inner=5, active=active)
        assert kept
    loud.sum().backward()
    assert torch.equal(quiet, loud)
    assert all(torch.equal(a, b) for a, b in zip(before, (*x.values(), *state), strict=True))


def test_what_the_axis_does_not_have_is_refused() -> None:
    x, state = titans_inputs(4, "linear", start="zero")
    for active in ([K + 1] * 4, [0, 2, 2, 2]):
        with pytest.raises(ValueError, match=r"must lie in 1\.\.8"):
            titans_linear.chunk(**x, state=titans_state(state, 0), inner=2, active=active)
    with pytest.raises(ValueError, match="3 entries for 4"):
        titans_linear.chunk(**x, state=titans_state(state, 0), inner=2, active=[K] * 3)


@pytest.mark.parametrize("size", [1, 4, 5])
def test_rectangles_tile_their_positions(size: int) -> None:
    for start in range(9):
        for stop in range(start, 17):
            found = titans_pieces.rectangles(start, stop, size)
            seen = [b * size + i for (a, e), (s, t) in found for b in range(a, e) for i in range(s, t)]
            assert seen == list(range(start, stop))
