"""The Triton kernels of the delta family ARE the definitions, under the interpreter: outputs, states, every gradient.

The kernels run in float32, the definition in float64. Scratch memory begins as NaN, and so do locked inputs where a test
says so: what a kernel reads without having the right to shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from helpers import everything, leaves, staircase, unit, worst
from torch import Tensor

pytest.importorskip("triton")

from proteus_kernels import comba, delta, linear
from proteus_kernels.linear import LinearState
from proteus_kernels.triton import chunks
from proteus_kernels.triton import comba as triton_comba
from proteus_kernels.triton import delta as triton_delta
from proteus_kernels.triton import linear as triton_linear

pytestmark = pytest.mark.triton

K, V = 40, 48  # two key tiles and two value tiles, neither full
HEADS = 2
DIM = {"key": K, "value": V, "head": HEADS}
BLOCK = {"key": 10, "value": 12, "head": 1}
RULES = {"delta": (delta, triton_delta), "comba": (comba, triton_comba), "linear": (linear, triton_linear)}
Call = Callable[..., tuple[Tensor, Any]]


@pytest.fixture(autouse=True)
def poisoned_scratch() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


def inputs(
    op: str, length: int, dtype: torch.dtype, *, start: str = "random", sequences: int = 1, taps: int = 1, batch: int = 1,
    heads: int = 1,
) -> dict[str, Tensor]:  # fmt: skip
    H = heads
    g = torch.Generator().manual_seed(length)

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k, v = unit(r(batch, length, H, K)), unit(r(batch, length, H, K)), r(batch, length, H, V)
    decay, beta = torch.rand(2, batch, length, H, generator=g, dtype=torch.float64)
    named = {"q_BTHK": q, "k_BTHK": k, "v_BTHV": v, "log_decay_BTH": -decay}
    named["state_BHKV"] = r(sequences * batch, H, K, V) * (start == "random")
    if op != "linear":
        named["beta_BTH"] = beta
    elif taps > 1:
        past = r(sequences * batch, taps - 1, H, K), r(sequences * batch, taps - 1, H, V)
        named |= {"weights_BTHC": r(batch, length, H, taps), "keys_BWHK": past[0], "values_BWHV": past[1]}
    if op == "comba":
        named |= {"p_BTHK": unit(r(batch, length, H, K)), "correction_H": r(H)}
    return leaves(named, dtype)


def call(form: Call, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    """Outputs and final state as plain tensors, whatever the rule calls its state."""
    if "beta_BTH" in x:
        return list(form(**x, **choices))
    x = dict(x)
    state = LinearState(memory_BHKV=x.pop("state_BHKV"), keys_BWHK=x.pop("keys_BWHK", None), values_BWHV=x.pop("values_BWHV", None))
    y, end = form(**x, state=state, **choices)
    return [y, *(t for t in (end.memory_BHKV, end.keys_BWHK, end.values_BWHV) if t is not None)]


def error(op: str, length: int, *, size: int = 16, wrong: list[int] | None = None, **choices: Any) -> float:
    """Largest relative difference of anything; `wrong` gives the kernels another count than the definition."""
    made = {n: choices.pop(n) for n in ("start", "taps", "batch") if n in choices}
    made["heads"] = HEADS if choices.get("axis") == "head" or "batch" in made else 1
    definition, kernels = RULES[op]
    x = inputs(op, length, torch.float32, **made)
    mine = choices | ({"active": wrong} if wrong else {})
    a = everything(lambda: call(kernels.chunk, x, chunk_size=size, **mine), list(x.values()))
    x = inputs(op, length, torch.float64, **made)
    return worst(a, everything(lambda: call(definition.recurrent, x, **choices), list(x.values())))


def unlocking(axis: str, length: int) -> list[int]:
    """A new block every 11 positions: never where a chunk of 16 would begin."""
    return staircase(length, 11, BLOCK[axis], DIM[axis])


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("op", RULES)
def test_kernels_equal_the_definition_through_unlocks_inside_chunks(op: str, axis: str, start: str) -> None:
    assert error(op, 30, active=unlocking(axis, 30), axis=axis, start=start) < 1e-5


@pytest.mark.parametrize("length", [1, 16, 17])
def test_ragged_lengths(length: int) -> None:
    assert error("delta", length, active=unlocking("key", length)) < 1e-5


def test_128_positions_in_chunks_of_64_join_all_blocks_of_the_inverse() -> None:
    assert error("delta", 128, size=64, active=staircase(128, 50, 10, K)) < 1e-5


def test_a_batch_is_its_rows() -> None:
    assert error("delta", 20, batch=2, active=unlocking("key", 20)) < 1e-5


@pytest.mark.parametrize("op", RULES)
def test_reads_before_the_write(op: str) -> None:
    assert error(op, 20, active=unlocking("key", 20), read="pre") < 1e-5


@pytest.mark.parametrize("gate", ["read", "none"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_gates_that_write_everything(axis: str, gate: str) -> None:
    assert error("delta", 14, active=unlocking(axis, 14), axis=axis, gate=gate, decay_locked="unmasked") < 1e-5


def test_blocks_that_close_again() -> None:
    assert error("delta", 24, active=[40] * 7 + [10] * 8 + [30] * 9) < 1e-5


@pytest.mark.parametrize("axis", ["key", "value"])
def test_without_decay(axis: str) -> None:
    def run(form: Call, dtype: torch.dtype, **extra: int) -> list[Tensor]:
        x = inputs("delta", 20, dtype)
        del x["log_decay_BTH"]
        choices: dict[str, Any] = {"active": unlocking(axis, 20), "axis": axis, "decay_locked": "unmasked"}
        return everything(lambda: call(form, x, **choices, **extra), list(x.values()))

    assert worst(run(triton_delta.chunk, torch.float32, chunk_size=16), run(delta.recurrent, torch.float64)) < 1e-5


@pytest.mark.parametrize("taps", [2, 3])
def test_an_older_key_is_written_with_the_weight_and_mask_of_the_writing_position(taps: int) -> None:
    assert error("linear", 14, taps=taps, active=unlocking("key", 14)) < 1e-5


@pytest.mark.parametrize(("op", "taps"), [("delta", 1), ("linear", 2)])
def test_packed_documents_are_their_own_sequences(op: str, taps: int) -> None:
    bounds = [0, 5, 22, 36]
    active = [n for a, b in pairwise(bounds) for n in unlocking("key", b - a)]  # the schedule restarts
    definition, kernels = RULES[op]

    def apart(x: dict[str, Tensor]) -> list[Tensor]:
        ends = []
        for n, (a, b) in enumerate(pairwise(bounds)):
            states = ("state_BHKV", "keys_BWHK", "values_BWHV")
            document = {name: t[n : n + 1] if name in states else t[:, a:b] for name, t in x.items()}
            ends.append(call(definition.recurrent, document, active=active[a:b]))
        ys, *rest = zip(*ends, strict=True)
        return [torch.cat(ys, 1), *map(torch.cat, rest)]

    x = inputs(op, 36, torch.float32, sequences=3, taps=taps)
    packed = everything(lambda: call(kernels.chunk, x, active=active, chunk_size=16, cu_seqlens=bounds), list(x.values()))
    x = inputs(op, 36, torch.float64, sequences=3, taps=taps)
    assert worst(packed, everything(lambda: apart(x), list(x.values()))) < 1e-5


def test_continuing_from_the_final_state_equals_one_pass() -> None:
    x, active = inputs("delta", 24, torch.float32), unlocking("key", 24)
    whole, end = triton_delta.chunk(**x, active=active, chunk_size=16)
    for cut in (1, 11, 19):
        parts, state = [], x["state_BHKV"]
        for s in (slice(0, cut), slice(cut, 24)):
            piece = {n: t[:, s] for n, t in x.items() if n != "state_BHKV"} | {"state_BHKV": state}
            y, state = triton_delta.chunk(**piece, active=active[s], chunk_size=16)
            parts.append(y)
        assert worst([torch.cat(parts, 1), state], [whole, end]) < 1e-5


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_locked_coordinates_are_not_even_read(axis: str) -> None:
    """NaN in everything that is locked changes nothing, forward or backward; the locked state keeps its bits."""
    n = BLOCK[axis]
    x = {name: t.detach() for name, t in inputs("delta", 18, torch.float32, heads=HEADS).items()}
    bad = dict(x)
    for name in {"key": ("q_BTHK", "k_BTHK"), "value": ("v_BTHV",), "head": ("q_BTHK", "k_BTHK", "v_BTHV")}[axis]:
        bad[name] = x[name].clone()
        bad[name].narrow(2 if axis == "head" else 3, n, DIM[axis] - n).fill_(torch.nan)
    found = []
    for these in (x, bad):
        these = leaves(these, torch.float32)
        run = lambda x=these: call(triton_delta.chunk, x, active=[n] * 18, axis=axis, chunk_size=16)  # noqa: E731
        found.append(everything(run, list(these.values())))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    place = {"head": 1, "key": 2, "value": 3}[axis]
    locked = [s.narrow(place, n, DIM[axis] - n) for s in (x["state_BHKV"], found[1][1])]
    assert torch.equal(*locked)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_with_a_float32_state(dtype: torch.dtype) -> None:
    x = inputs("delta", 20, torch.float32)
    half = {n: t.detach().to(dtype) if t.ndim == 4 and n != "state_BHKV" else t.detach() for n, t in x.items()}
    y, state = triton_delta.chunk(**half, active=unlocking("key", 20), chunk_size=16)
    assert (y.dtype, state.dtype) == (dtype, torch.float32)
    exact = delta.recurrent(**{n: t.double() for n, t in half.items()}, active=unlocking("key", 20))
    assert worst([state], [exact[1]]) < (1e-5 if dtype == torch.bfloat16 else 1e-2)  # there products are float32, here half
    assert worst([y.float()], [exact[0]]) < 1e-2


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_a_wrong_count_is_seen(axis: str) -> None:
    """Negative control: one position late, at one unlock."""
    right = unlocking(axis, 30)
    wrong = [*right[:11], right[10], *right[12:]]
    assert error("delta", 30, active=right, wrong=wrong, axis=axis, start="zero") > 1e-3


def test_what_the_kernels_do_not_have_is_refused() -> None:
    x, active = inputs("delta", 4, torch.float32), [10] * 4
    with pytest.raises(ValueError, match="gate=write"):
        triton_delta.chunk(**x, active=active, gate="write")
    with pytest.raises(ValueError, match="decay_locked=unmasked"):
        triton_delta.chunk(**x, active=active, decay_locked="unmasked")
    with pytest.raises(ValueError, match="float64"):
        triton_delta.chunk(**inputs("delta", 4, torch.float64))
    with pytest.raises(ValueError, match="3 sequences"):
        triton_delta.chunk(**x, cu_seqlens=[0, 1, 2, 4])
    with pytest.raises(ValueError, match="2 taps"):
        call(triton_linear.chunk, inputs("linear", 4, torch.float32) | {"weights_BTHC": torch.ones(1, 4, 1, 2)})


def test_the_chunk_table() -> None:
    """Cut at the chunk size, at an unlock and at a document's start; a fixed grid goes on through an unlock."""
    found = chunks.chunk_table(batch=2, length=20, dim=8, size=8, active=[2] * 5 + [4] * 15)
    first_row = [[0, 5, 2, 0], [5, 8, 4, 0], [13, 7, 4, 0]]
    assert found.table.tolist() == first_row + [[t + 20, n, k, 1] for t, n, k, _ in first_row]
    assert found.first.tolist() == [0, 3, 6]
    grid = chunks.chunk_table(batch=1, length=20, dim=8, size=8, active=[2] * 5 + [4] * 15, cu_seqlens=[0, 7, 20], offset=3)
    assert grid.table.tolist() == [[0, 5, 2, 0], [5, 2, 4, 0], [7, 5, 4, 1], [12, 8, 4, 1]]
    assert grid.begins_cell.tolist() == [0, 1, 0, 1]
    for bounds in ([0, 7], [1, 20], [0, 9, 9, 20]):
        with pytest.raises(ValueError, match="cu_seqlens must rise"):
            chunks.chunk_table(batch=1, length=20, dim=8, size=8, cu_seqlens=bounds)
    with pytest.raises(ValueError, match="batch of 2"):
        chunks.chunk_table(batch=2, length=20, dim=8, size=8, cu_seqlens=[0, 20])
    with pytest.raises(ValueError, match="active has 3 entries for 2 positions"):
        chunks.chunk_table(batch=1, length=2, dim=8, size=8, active=[8, 8, 8])
    with pytest.raises(ValueError, match="1..8, got 9"):
        chunks.chunk_table(batch=1, length=2, dim=8, size=8, active=[9, 9])
