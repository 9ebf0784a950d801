"""Decayed linear attention with a window of writes (RetNet, SWLA): chunk = definition, tap order, window in the state."""

from __future__ import annotations

import pytest
import torch
from helpers import B, H, K, V, everything, leaves, qkv, staircase, worst
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from proteus_kernels import linear
from proteus_kernels.linear import LinearState

DIM = {"key": K, "value": V, "head": H}
BLOCK = {"key": 2, "value": 2, "head": 1}
PLACE = {"head": 1, "key": 2, "value": 3}


def inputs(
    length: int, taps: int, *, start: str, dtype: torch.dtype = torch.float64
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """(q, k, v, decay, weights; memory and, with a window, its keys and values)."""
    g = torch.Generator().manual_seed(3)
    named = qkv(length, g) | {"log_decay_BTH": -torch.rand(B, length, H, generator=g, dtype=torch.float64)}
    if taps > 1:
        named["weights_BTHC"] = torch.rand(B, length, H, taps, generator=g, dtype=torch.float64)
    shapes = [(B, H, K, V)] + ([(B, taps - 1, H, K), (B, taps - 1, H, V)] if taps > 1 else [])
    state = [torch.randn(s, generator=g, dtype=torch.float64) * (start == "random") for s in shapes]
    return leaves(named, dtype), [x.to(dtype).requires_grad_() for x in state]


def state_of(tensors: list[Tensor]) -> LinearState:
    return LinearState(**dict(zip(("memory_BHKV", "keys_BWHK", "values_BWHV"), tensors, strict=False)))


def tensors_of(state: LinearState) -> list[Tensor]:
    return [x for x in (state.memory_BHKV, state.keys_BWHK, state.values_BWHV) if x is not None]


def gap(
    length: int, taps: int, start: str, active: list[int] | None, dtype: torch.dtype = torch.float64, **choices: str
) -> float:
    def run(form: str, **extra: int) -> list[Tensor]:
        x, state = inputs(length, taps, start=start, dtype=dtype)

        def outputs() -> list[Tensor]:
            y, end = getattr(linear, form)(**x, state=state_of(state), active=active, **choices, **extra)
            return [y, *tensors_of(end)]

        return everything(outputs, [*x.values(), *state])

    return worst(run("chunk", chunk_size=5), run("recurrent"))


@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("taps", [1, 2, 3])
def test_chunk_equals_definition_for_every_axis_gate_read_and_start(taps: int, axis: str, gate: str) -> None:
    active = staircase(17, 6, BLOCK[axis], DIM[axis])
    for start, read, decay_locked in (
        ("zero", "post", "masked"), ("random", "pre", "masked"), ("random", "post", "unmasked"),
    ):  # fmt: skip
        error = gap(17, taps, start, active, axis=axis, gate=gate, read=read, decay_locked=decay_locked)
        assert error < 1e-11, (start, read, decay_locked)


@pytest.mark.parametrize("taps", [1, 2, 7])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 7, 12, 13, 18, 19])
def test_chunk_equals_definition_at_ragged_lengths_around_every_unlock(length: int, taps: int) -> None:
    assert gap(length, taps, "random", staircase(length, 6, 2, K), axis="key") < 1e-11


@pytest.mark.parametrize("taps", [1, 2])
@pytest.mark.parametrize("gate", ["both", "write", "read"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_a_schedule_that_closes_again_is_exact_too(axis: str, gate: str, taps: int) -> None:
    active = [n * BLOCK[axis] for n in [4] * 4 + [3] * 3 + [1] * 5 + [2] * 4]
    assert gap(16, taps, "random", active, axis=axis, gate=gate) < 1e-11


def test_float32_agrees_to_1e_5() -> None:
    assert gap(30, 2, "zero", staircase(30, 10, 2, K), torch.float32, axis="key") < 1e-5


def test_one_tap_from_a_zero_start_is_retention_in_its_parallel_form() -> None:
    """Y = (Q K^T . D) V with D_ts = gamma^(t - s), RetNet Eq. 5."""
    x, state = inputs(23, 1, start="zero")
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    ages = torch.arange(23)[:, None] - torch.arange(23)
    decays = torch.where(ages >= 0, gamma[:, None, None] ** ages.clamp_min(0), 0.0)
    q, k, v = (x[n].transpose(1, 2) for n in ("q_BTHK", "k_BTHK", "v_BTHV"))
    parallel = (((q @ k.mT) * decays) @ v * K**-0.5).transpose(1, 2)
    y, _ = linear.chunk(**x | {"log_decay_BTH": gamma.log().expand(B, 23, H)}, state=state_of(state), chunk_size=5)
    assert worst([y], [parallel]) < 1e-13


@pytest.mark.parametrize("taps", [2, 4])
def test_a_window_of_c_writes_is_c_passes_over_shifted_keys_and_values(taps: int) -> None:
    x, state = inputs(20, taps, start="zero")
    y, end = linear.chunk(**x, state=state_of(state), chunk_size=6)

    def shifted(z: Tensor, j: int) -> Tensor:
        return torch.cat([torch.zeros_like(z[:, :j]), z[:, : z.shape[1] - j]], 1)

    passes = []
    for j in range(taps):
        one = {"q_BTHK": x["q_BTHK"], "log_decay_BTH": x["log_decay_BTH"], "k_BTHK": shifted(x["k_BTHK"], j)}
        v = shifted(x["v_BTHV"], j) * x["weights_BTHC"][..., j, None]
        passes.append(linear.recurrent(**one, v_BTHV=v, state=LinearState(memory_BHKV=state[0])))
    total = [sum(p[0] for p in passes), sum(p[1].memory_BHKV for p in passes)]
    assert worst([y, end.memory_BHKV], total) < 1e-13


def test_masking_before_the_shift_is_wrong_from_the_first_unlock_on_and_stays_wrong() -> None:
    """The right order (shift, then mask with the mask of time t) is exact from a zero start; the other one is not."""
    active = staircase(20, 5, 2, K)
    mask = torch.arange(K) < torch.tensor(active)[:, None, None]
    x, state = inputs(20, 2, start="zero")
    right, end = linear.recurrent(**x, state=state_of(state), active=active)
    masked_first = x | {n: x[n] * mask for n in ("q_BTHK", "k_BTHK")}
    wrong, wrong_end = linear.recurrent(**masked_first, state=state_of(state))
    differ = ((right - wrong).detach().abs().amax((0, 2, 3)) > 1e-6).tolist()
    assert differ == [False] * 5 + [True] * 15
    assert worst([wrong_end.memory_BHKV], [end.memory_BHKV]) > 1e-2


def test_fully_open_is_bit_equal_to_static() -> None:
    for taps in (1, 2):
        x, state = inputs(21, taps, start="random", dtype=torch.float32)
        for axis, dim in DIM.items():
            a, b = (linear.chunk(**x, state=state_of(state), active=n, axis=axis) for n in (None, [dim] * 21))
            assert torch.equal(a[0], b[0]) and torch.equal(a[1].memory_BHKV, b[1].memory_BHKV)


@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("taps", [1, 2, 4])
def test_continuing_from_the_state_equals_one_pass_at_every_cut(axis: str, taps: int) -> None:
    """Pieces shorter than the window too: the first has one or two positions, the window three."""
    x, start = inputs(14, taps, start="random")
    active = staircase(14, 4, BLOCK[axis], DIM[axis])
    whole, end = linear.chunk(**x, state=state_of(start), active=active, axis=axis)
    for cut in range(1, 13):
        for form in (linear.chunk, linear.recurrent):
            parts, state = [], state_of(start)
            for s in (slice(0, cut), slice(cut, cut + 1), slice(cut + 1, 14)):
                y, state = form(**{n: t[:, s] for n, t in x.items()}, state=state, active=active[s], axis=axis)
                parts.append(y)
            assert worst([torch.cat(parts, 1), *tensors_of(state)], [whole, *tensors_of(end)]) < 1e-12


@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("gate", ["both", "write"])
def test_locked_coordinates_never_change(axis: str, gate: str) -> None:
    x, state = inputs(12, 2, start="random")
    n = BLOCK[axis]
    for form in (linear.recurrent, linear.chunk):
        _, end = form(**x, state=state_of(state), active=[n] * 12, axis=axis, gate=gate)
        before, after = (s.narrow(PLACE[axis], n, DIM[axis] - n) for s in (state[0], end.memory_BHKV))
        assert torch.equal(before, after)
        assert not torch.equal(state[0].narrow(PLACE[axis], 0, n), end.memory_BHKV.narrow(PLACE[axis], 0, n))


def test_the_window_holds_whole_keys_whatever_is_open() -> None:
    x, state = inputs(6, 3, start="random")
    _, end = linear.chunk(**x, state=state_of(state), active=[2] * 6)
    assert end.keys_BWHK is not None and torch.equal(end.keys_BWHK, x["k_BTHK"][:, -2:])


def _flops(taps: int, open_rows: int) -> int:
    x, state = inputs(40, taps, start="zero")
    with FlopCounterMode(display=False) as counter:
        linear.chunk(**x, state=state_of(state), active=[open_rows] * 40, chunk_size=20)
    return int(counter.get_total_flops())


def test_locked_rows_are_not_multiplied_and_a_second_tap_costs_one_column() -> None:
    assert _flops(2, 2) < 0.6 * _flops(2, K)
    assert _flops(2, K) < 1.06 * _flops(1, K)


def test_a_state_without_the_taps_window_is_refused() -> None:
    x, state = inputs(3, 2, start="zero")
    for form in (linear.chunk, linear.recurrent):
        with pytest.raises(ValueError, match="2 taps need the last 1 keys and values in the state, it holds 0"):
            form(**x, state=LinearState(memory_BHKV=state[0]))
    assert LinearState.start(state[0], 3).keys_BWHK.shape == (B, 2, H, K)  # type: ignore[union-attr]
