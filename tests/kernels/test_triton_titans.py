"""The Triton kernels of linear Titans ARE the definition, under the interpreter: outputs, states, every gradient.

The kernels run in float32, the definition in float64. Scratch memory begins as NaN: what a kernel reads without having
written it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import everything, leaves, staircase, titans_state, unit, worst
from torch import Tensor

pytest.importorskip("triton")

from proteus_kernels import dispatch, titans_linear
from proteus_kernels.triton import titans
from proteus_kernels.triton.titans_plan import plan

pytestmark = pytest.mark.triton

K, V, HEADS, INNER = 40, 48, 2, 16  # key tiles of 16, 32 and 64 rows, two tiles of columns, none of the last ones full
DIM = {"key": K, "value": V, "head": HEADS}
BLOCK = {"key": 10, "value": 12, "head": 1}


@pytest.fixture(autouse=True)
def poisoned_scratch() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


def inputs(
    length: int, dtype: torch.dtype, *, start: str = "random", batch: int = 1, heads: int = 1
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """q, k, v and gates; weights, momentum and anchor."""
    g = torch.Generator().manual_seed(length)

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k, v = unit(r(batch, length, heads, K)), unit(r(batch, length, heads, K)), r(batch, length, heads, V)
    keep, eta, theta = torch.rand(3, batch, length, heads, generator=g, dtype=torch.float64)
    named = {"q_BTHK": q, "k_BTHK": k, "v_BTHV": v, "log_keep_BTH": -0.3 * keep, "log_eta_BTH": -eta, "theta_BTH": 0.2 * theta}
    state = [(0.5 * r(batch, heads, K, V) * (start == "random")).to(dtype).requires_grad_() for _ in range(3)]
    return leaves(named, dtype), state


def run(form: Any, x: dict[str, Tensor], state: list[Tensor], *, offset: int = 0, **choices: Any) -> list[Tensor]:
    """y, weights, momentum and anchor."""
    y, s = form(**x, state=titans_state(state, offset), **choices)
    assert s.offset == (offset + y.shape[1]) % choices["inner"]
    return [y, *s.weights, *s.momentum, *s.anchor]


def error(length: int, *, wrong: list[int] | None = None, **choices: Any) -> float:
    """Largest relative difference of anything; `wrong` gives the kernels another count than the definition."""
    made = {n: choices.pop(n) for n in ("start", "batch") if n in choices}
    made["heads"] = HEADS if choices.get("axis") == "head" or "batch" in made else 1
    choices = {"inner": INNER} | choices
    mine = choices | ({"active": wrong} if wrong else {})
    x, state = inputs(length, torch.float32, **made)
    a = everything(lambda: run(titans.chunk, x, state, **mine), [*x.values(), *state])
    x, state = inputs(length, torch.float64, **made)
    return worst(a, everything(lambda: run(titans_linear.recurrent, x, state, **choices), [*x.values(), *state]))


def unlocking(axis: str, length: int) -> list[int]:
    """A new block every 11 positions: never where an inner chunk begins."""
    return staircase(length, 11, BLOCK[axis], DIM[axis])


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_kernels_equal_the_definition_through_unlocks_inside_chunks(axis: str, start: str) -> None:
    assert error(40, active=unlocking(axis, 40), axis=axis, start=start) < 1e-5


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_unlocks_on_the_grid_carry_no_anchor(axis: str) -> None:
    assert error(40, active=staircase(40, INNER, BLOCK[axis], DIM[axis]), axis=axis) < 1e-5


@pytest.mark.parametrize("length", [1, 15, 16, 17])
def test_ragged_lengths(length: int) -> None:
    assert error(length, active=unlocking("key", length)) < 1e-5


@pytest.mark.parametrize("axis", ["key", "value"])
def test_a_pass_that_begins_inside_an_inner_chunk_goes_on_from_its_anchor(axis: str) -> None:
    assert error(30, offset=7, active=unlocking(axis, 30), axis=axis) < 1e-5


def test_128_positions_in_inner_chunks_of_64() -> None:
    assert error(128, inner=64, active=staircase(128, 50, 10, K)) < 1e-5


def test_a_batch_is_its_rows() -> None:
    assert error(20, batch=2, active=unlocking("key", 20)) < 1e-5


@pytest.mark.parametrize("gate", ["read", "none"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_gates_that_write_everything(axis: str, gate: str) -> None:
    assert error(14, active=unlocking(axis, 14), axis=axis, gate=gate) < 1e-5


@pytest.mark.parametrize("axis", ["key", "value"])
def test_blocks_that_close_again(axis: str) -> None:
    block = BLOCK[axis]
    assert error(40, active=[4 * block] * 7 + [block] * 18 + [3 * block] * 15, axis=axis) < 1e-5


def test_an_unlock_one_position_late_is_seen() -> None:
    right = unlocking("key", 30)
    assert error(30, active=right, wrong=[right[0], *right[:-1]]) > 1e-3


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_what_is_locked_keeps_its_bits(axis: str) -> None:
    x, state = inputs(20, torch.float32, heads=HEADS)
    n, at = BLOCK[axis], {"head": 1, "key": 2, "value": 3}[axis]
    _, memory, momentum, _ = run(titans.chunk, x, state, inner=INNER, active=[n] * 20, axis=axis)
    for before, after in ((state[0], memory), (state[1], momentum)):
        locked = DIM[axis] - n
        assert torch.equal(before.narrow(at, n, locked), after.narrow(at, n, locked))
        assert not torch.equal(before.narrow(at, 0, n), after.narrow(at, 0, n))


def test_masking_the_inputs_alone_is_another_function() -> None:
    """What the row mask of the carried states is for: with decay and a start that is not zero."""
    x, state = inputs(30, torch.float32)
    active = unlocking("key", 30)
    mask = (torch.arange(K) < torch.tensor(active)[:, None])[:, None, :]
    masked = x | {"q_BTHK": x["q_BTHK"] * mask, "k_BTHK": x["k_BTHK"] * mask}
    right, wrong = run(titans.chunk, x, state, inner=INNER, active=active), run(titans.chunk, masked, state, inner=INNER)
    assert float((right[0] - wrong[0]).detach().abs().max()) > 0.1


def test_half_precision_inputs_keep_a_float32_state() -> None:
    x, state = inputs(20, torch.float64)
    half = {n: t.bfloat16() if n[0] in "qkv" else t.float() for n, t in x.items()}
    mine = run(titans.chunk, half, [s.float() for s in state], inner=INNER, active=unlocking("key", 20))
    assert [t.dtype for t in mine] == [torch.bfloat16, *[torch.float32] * 3]
    as_given = {n: t.double() for n, t in half.items()}
    right = run(titans_linear.recurrent, as_given, state, inner=INNER, active=unlocking("key", 20))
    assert worst(mine[1:], right[1:]) < 1e-5 and worst(mine[:1], right[:1]) < 0.01


def test_two_runs_have_the_same_bits() -> None:
    x, state = inputs(20, torch.float32)
    a, b = (
        everything(lambda: run(titans.chunk, x, state, inner=INNER, active=unlocking("value", 20), axis="value"), list(x.values()))
        for _ in range(2)
    )
    assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"read": "pre"}, "read=pre"),
        ({"gate": "write", "active": [10] * 12}, "gate=write predicts with locked coordinates"),
        ({"decay_locked": "unmasked", "active": [10] * 12}, "decay_locked=unmasked changes locked coordinates"),
        ({"inner": 128}, "inner chunks of 128 > 64 positions"),
    ],
)
def test_what_the_kernels_do_not_have_runs_as_chunk_and_says_why(
    choices: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, state = inputs(12, torch.float32)
    with pytest.raises(ValueError, match=f"do not have {reason}"):
        titans.chunk(**x, state=titans_state(state, 0), **choices)
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setattr(dispatch, "_used", {})
    choices = {"inner": INNER} | choices
    got = run(dispatch.kernel("titans_linear"), x, state, **choices)
    assert dispatch.used() == {"titans_linear--chunk": [reason]}
    assert worst(got, run(titans_linear.recurrent, x, state, **choices)) < 1e-5


def test_tiles_hold_no_more_key_rows_than_are_open_and_columns_begin_when_they_open() -> None:
    made = {"inner": INNER, "offset": 0, "dtype": torch.float32, "device": torch.device("cpu")}
    rows = plan((1, 1, K, V), 64, axis="key", active=staircase(64, 16, 10, K), **made)
    assert [(p.first, p.last, p.rows) for p in rows.phases] == [(0, 1, 16), (1, 3, 32), (3, 4, 64)]
    columns = plan((1, 1, K, V), 64, axis="value", active=staircase(64, 16, 12, V), **made)
    assert columns.tables[2][[0, 11, 12, 24, 36, 47]].tolist() == [0, 0, 1, 2, 3, 3]
