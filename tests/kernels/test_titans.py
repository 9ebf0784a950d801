"""Both Titans memories: the chunked form IS the definition, momentum and anchor included."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from helpers import H, K, N, V, everything, staircase, titans_inputs, titans_state, worst
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from proteus_kernels import titans_linear, titans_mlp

DIM = {"key": K, "value": V, "head": H, "hidden": N}
BLOCK = {"key": 2, "value": 2, "head": 1, "hidden": 2}
CASES = [(titans_linear, "linear", a) for a in ("key", "value", "head")] + [(titans_mlp, "mlp", "hidden")]
IDS = ["linear-key", "linear-value", "linear-head", "mlp-hidden"]


def run(
    module: ModuleType, kind: str, form: str, length: int, *, start: str, offset: int = 0,
    dtype: torch.dtype = torch.float64, **choices: object,
) -> list[Tensor]:  # fmt: skip
    x, state = titans_inputs(length, kind, start=start, dtype=dtype)

    def outputs() -> list[Tensor]:
        y, s = getattr(module, form)(**x, state=titans_state(state, offset), inner=5, **choices)
        assert s.offset == (offset + length) % 5
        return [y, *s.weights, *s.momentum, *s.anchor]

    return everything(outputs, [*x.values(), *state])


@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_chunk_equals_definition_for_every_gate_read_start_and_offset(
    module: ModuleType, kind: str, axis: str, gate: str
) -> None:
    active = staircase(18, 7, BLOCK[axis], DIM[axis])
    for start in ("zero", "random"):
        for read, decay_locked, offset in (("post", "masked", 0), ("pre", "masked", 3), ("post", "unmasked", 3)):
            choices = {"active": active, "axis": axis, "gate": gate, "read": read, "decay_locked": decay_locked}
            a, b = (run(module, kind, f, 18, start=start, offset=offset, **choices) for f in ("chunk", "recurrent"))
            assert worst(a, b) < 1e-10, (start, read, decay_locked, offset)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 7, 8, 14, 15, 22])
@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_ragged_lengths_around_every_unlock(module: ModuleType, kind: str, axis: str, length: int) -> None:
    active = staircase(length, 7, BLOCK[axis], DIM[axis])
    a, b = (run(module, kind, f, length, start="random", active=active, axis=axis) for f in ("chunk", "recurrent"))
    assert worst(a, b) < 1e-10


@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_float32_agrees_to_1e_5(module: ModuleType, kind: str, axis: str) -> None:
    active = staircase(20, 7, BLOCK[axis], DIM[axis])
    a, b = (
        run(module, kind, f, 20, start="zero", dtype=torch.float32, active=active, axis=axis)
        for f in ("chunk", "recurrent")
    )
    assert worst(a, b) < 1e-5


@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_fully_open_is_bit_equal_to_static(module: ModuleType, kind: str, axis: str) -> None:
    open_all = [DIM[axis]] * 17
    a, b = (run(module, kind, "chunk", 17, start="random", active=x, axis=axis) for x in (None, open_all))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_continuing_equals_one_pass_at_every_cut(module: ModuleType, kind: str, axis: str) -> None:
    x, tensors = titans_inputs(17, kind, start="random")
    active = staircase(17, 6, BLOCK[axis], DIM[axis])
    whole, end = module.chunk(**x, state=titans_state(tensors, 0), inner=5, active=active, axis=axis)
    for cut in range(1, 17):
        state, parts = titans_state(tensors, 0), []
        for s in (slice(0, cut), slice(cut, 17)):
            piece = {n: t[:, s] for n, t in x.items()}
            y, state = module.chunk(**piece, state=state, inner=5, active=active[s], axis=axis)
            parts.append(y)
        got = [torch.cat(parts, 1), *state.weights, *state.momentum, *state.anchor]
        assert worst(got, [whole, *end.weights, *end.momentum, *end.anchor]) < 1e-12


@pytest.mark.parametrize("gate", ["both", "write"])
@pytest.mark.parametrize(("module", "kind", "axis"), CASES, ids=IDS)
def test_locked_memory_and_locked_momentum_never_change(module: ModuleType, kind: str, axis: str, gate: str) -> None:
    x, tensors = titans_inputs(12, kind, start="random")
    start, n = titans_state(tensors, 0), BLOCK[axis]
    for form in (module.recurrent, module.chunk):
        _, end = form(**x, state=start, inner=5, active=[n] * 12, axis=axis, gate=gate)
        for before, after in ((start.weights, end.weights), (start.momentum, end.momentum)):
            for i, (a, b) in enumerate(zip(before, after, strict=True)):
                place = {"head": 1, "key": 2, "value": 3, "hidden": 2 + i}[axis]
                assert torch.equal(a.narrow(place, n, DIM[axis] - n), b.narrow(place, n, DIM[axis] - n))
                assert not torch.equal(a.narrow(place, 0, n), b.narrow(place, 0, n))


def test_masking_only_the_inputs_is_wrong_with_a_learned_start() -> None:
    """Why the row mask is needed: with decay and a non-zero M_0, masked q and k alone differ by O(1)."""
    x, tensors = titans_inputs(20, "linear", start="random")
    active = staircase(20, 5, 2, K)
    right, _ = titans_linear.recurrent(**x, state=titans_state(tensors, 0), inner=5, active=active, axis="key")
    mask = (torch.arange(K) < torch.tensor(active)[:, None])[:, None, :]
    masked = x | {"q_BTHK": x["q_BTHK"] * mask, "k_BTHK": x["k_BTHK"] * mask}
    naive, _ = titans_linear.recurrent(**masked, state=titans_state(tensors, 0), inner=5, axis="key")
    assert float((right - naive).abs().max()) > 0.1


def test_locked_hidden_units_are_not_multiplied() -> None:
    totals = []
    for n in (2, N):
        x, tensors = titans_inputs(20, "mlp", start="random")
        with FlopCounterMode(display=False) as counter:
            titans_mlp.chunk(**x, state=titans_state(tensors, 0), inner=5, active=[n] * 20)
        totals.append(counter.get_total_flops())
    assert totals[0] < 0.5 * totals[1]
