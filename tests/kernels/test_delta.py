"""The chunked gated delta rule IS its definition, under every mask; locked coordinates cost nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import H, K, V, delta_inputs, everything, staircase, worst
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from proteus_kernels import delta

DIM = {"key": K, "value": V, "head": H}
BLOCK = {"key": 2, "value": 2, "head": 1}


def both(
    length: int, start: str, active: list[int] | None, dtype: torch.dtype = torch.float64, **choices: object
) -> float:
    def run(form: Callable[..., tuple[Tensor, Tensor]], **extra: object) -> list[Tensor]:
        x = delta_inputs(length, start=start, dtype=dtype)
        return everything(lambda: list(form(**x, active=active, **choices, **extra)), list(x.values()))

    return worst(run(delta.chunk, chunk_size=5), run(delta.recurrent))


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("read", ["post", "pre"])
@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_chunk_equals_definition_for_every_axis_gate_read_and_start(
    axis: str, gate: str, read: str, start: str
) -> None:
    active = staircase(23, 6, BLOCK[axis], DIM[axis])
    for decay_locked in ("masked", "unmasked"):
        assert both(23, start, active, axis=axis, gate=gate, read=read, decay_locked=decay_locked) < 1e-11


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 7, 12, 13, 18, 19, 31])
def test_chunk_equals_definition_at_ragged_lengths_around_every_unlock(length: int) -> None:
    assert both(length, "random", staircase(length, 6, 2, K), axis="key") < 1e-11


@pytest.mark.parametrize("gate", ["both", "write", "read"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_a_schedule_that_closes_again_is_exact_too(axis: str, gate: str) -> None:
    """A block that closes keeps what it holds, undecayed and unread, until it opens again."""
    active = [n * BLOCK[axis] for n in [4] * 5 + [3] * 5 + [1] * 5 + [2] * 5]
    assert both(20, "random", active, axis=axis, gate=gate) < 1e-11


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_without_decay_it_is_deltanet(axis: str) -> None:
    """No log decay is the rule with a decay of one in every mask, and its chunked form makes no exponential."""
    active = staircase(23, 6, BLOCK[axis], DIM[axis])

    def run(form: Callable[..., tuple[Tensor, Tensor]], decay: str, **choices: object) -> list[Tensor]:
        x = delta_inputs(23, start="random")
        g = 0 * x.pop("log_decay_BTH") if decay == "one" else None
        x.pop("log_decay_BTH", None)
        return everything(lambda: list(form(**x, log_decay_BTH=g, active=active, axis=axis, **choices)), [*x.values()])

    for gate in ("both", "write", "read"):
        for read in ("post", "pre"):
            none = run(delta.chunk, "none", gate=gate, read=read, chunk_size=5)
            assert worst(none, run(delta.recurrent, "none", gate=gate, read=read)) < 1e-11
            assert worst(none, run(delta.recurrent, "one", gate=gate, read=read)) < 1e-11


def test_masking_only_the_inputs_is_exact_for_deltanet_and_wrong_with_decay() -> None:
    """Without decay locked rows stand still by themselves, from any start; with it they need the row gate."""
    active = staircase(20, 5, 2, K)
    mask = torch.arange(K) < torch.tensor(active)[:, None, None]
    errors = {}
    for decay in (False, True):
        x = delta_inputs(20, start="random")
        if not decay:
            del x["log_decay_BTH"]
        masked = x | {n: x[n] * mask for n in ("q_BTHK", "k_BTHK")}
        errors[decay] = worst([delta.chunk(**masked)[0]], [delta.recurrent(**x, active=active)[0]])
    assert errors[False] < 1e-13
    assert errors[True] > 1e-2


def test_float32_agrees_to_1e_5() -> None:
    assert both(40, "zero", staircase(40, 10, 2, K), torch.float32, axis="key") < 1e-5


def test_fully_open_is_bit_equal_to_static() -> None:
    x = delta_inputs(21, start="random", dtype=torch.float32)
    for axis, dim in DIM.items():
        a, sa = delta.chunk(**x, active=None, axis=axis)
        b, sb = delta.chunk(**x, active=[dim] * 21, axis=axis)
        assert torch.equal(a, b) and torch.equal(sa, sb)


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_continuing_from_the_state_equals_one_pass_at_every_cut(axis: str) -> None:
    x = delta_inputs(19, start="random")
    active = staircase(19, 5, BLOCK[axis], DIM[axis])
    whole, end = delta.chunk(**x, active=active, axis=axis)
    for cut in range(1, 19):
        parts, state = [], x["state_BHKV"]
        for s in (slice(0, cut), slice(cut, 19)):
            piece = {n: t[:, s] for n, t in x.items() if n != "state_BHKV"}
            y, state = delta.chunk(**piece, state_BHKV=state, active=active[s], axis=axis)
            parts.append(y)
        assert worst([torch.cat(parts, 1), state], [whole, end]) < 1e-12


@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("gate", ["both", "write"])
def test_locked_coordinates_never_change(axis: str, gate: str) -> None:
    x = delta_inputs(12, start="random")
    n = BLOCK[axis]
    for form in (delta.recurrent, delta.chunk):
        _, state = form(**x, active=[n] * 12, axis=axis, gate=gate)
        place = {"head": 1, "key": 2, "value": 3}[axis]
        before, after = (s.narrow(place, n, DIM[axis] - n) for s in (x["state_BHKV"], state))
        assert torch.equal(before, after)
        assert not torch.equal(x["state_BHKV"].narrow(place, 0, n), state.narrow(place, 0, n))


def test_write_and_both_are_one_function_only_from_a_zero_start() -> None:
    active = staircase(20, 5, 2, K)
    gaps = {}
    for start in ("zero", "random"):
        x = delta_inputs(20, start=start)
        a, b = (delta.chunk(**x, active=active, axis="key", gate=g)[0] for g in ("both", "write"))
        gaps[start] = float((a - b).abs().max())
    assert gaps["zero"] < 1e-14
    assert gaps["random"] > 1e-2


def test_an_unlock_one_position_late_is_seen() -> None:
    """Negative control: the comparison above would catch an off-by-one schedule."""
    x = delta_inputs(20, start="zero")
    right, late = staircase(20, 5, 2, K), [2, *staircase(20, 5, 2, K)[:-1]]
    a, b = delta.recurrent(**x, active=right)[0], delta.chunk(**x, active=late)[0]
    assert worst([a], [b]) > 1e-3


def _flops(axis: str, open_coords: int) -> int:
    x = delta_inputs(40, start="zero")
    with FlopCounterMode(display=False) as counter:
        delta.chunk(**x, active=[open_coords] * 40, axis=axis)
    return counter.get_total_flops()


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_locked_coordinates_are_not_multiplied(axis: str) -> None:
    quarter, full = _flops(axis, DIM[axis] // 4), _flops(axis, DIM[axis])
    # head: exactly a quarter; key and value: the C x C products of the other axis remain (three with the key, two with the value)
    assert quarter < {"head": 0.2501, "key": 0.55, "value": 0.8}[axis] * full


def test_a_wrong_axis_or_gate_is_refused_by_name() -> None:
    x = delta_inputs(3, start="zero")
    with pytest.raises(ValueError, match="hidden"):
        delta.chunk(**x, axis="hidden")
    with pytest.raises(ValueError, match="sideways"):
        delta.chunk(**x, active=[2, 2, 2], gate="sideways")
