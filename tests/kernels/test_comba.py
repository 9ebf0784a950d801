"""The chunked Comba IS its definition, the definition is the paper's transition, and masks act as for the delta rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import B, H, K, V, delta_inputs, everything, staircase, worst
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from proteus_kernels import comba, delta

DIM = {"key": K, "value": V, "head": H}
BLOCK = {"key": 2, "value": 2, "head": 1}
PLACE = {"head": 1, "key": 2, "value": 3}


def inputs(length: int, *, start: str, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Feedback keys p = b k with another b for every head and position, and a d for every head."""
    x = delta_inputs(length, start=start, dtype=dtype)
    g = torch.Generator().manual_seed(7)
    strength, d = torch.rand(B, length, H, 1, generator=g).to(dtype), torch.rand(H, generator=g).to(dtype)
    p = (x["k_BTHK"] * strength).detach().requires_grad_()
    return x | {"p_BTHK": p, "correction_H": d.requires_grad_()}


def gap(length: int, start: str, active: list[int] | None, dtype: torch.dtype = torch.float64, **choices: str) -> float:
    def run(form: Callable[..., tuple[Tensor, Tensor]], **extra: int) -> list[Tensor]:
        x = inputs(length, start=start, dtype=dtype)
        return everything(lambda: list(form(**x, active=active, **choices, **extra)), list(x.values()))

    return worst(run(comba.chunk, chunk_size=5), run(comba.recurrent))


@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_chunk_equals_definition_for_every_axis_gate_read_and_start(axis: str, gate: str) -> None:
    active = staircase(17, 6, BLOCK[axis], DIM[axis])
    for start, read, decay_locked in (
        ("zero", "post", "masked"), ("random", "post", "masked"), ("random", "pre", "masked"),
        ("random", "post", "unmasked"), ("random", "pre", "unmasked"),
    ):  # fmt: skip
        error = gap(17, start, active, axis=axis, gate=gate, read=read, decay_locked=decay_locked)
        assert error < 1e-11, (start, read, decay_locked)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 7, 12, 13, 18, 19])
def test_chunk_equals_definition_at_ragged_lengths_around_every_unlock(length: int) -> None:
    assert gap(length, "random", staircase(length, 6, 2, K), axis="key") < 1e-11


@pytest.mark.parametrize("gate", ["both", "write", "read"])
@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_a_schedule_that_closes_again_is_exact_too(axis: str, gate: str) -> None:
    active = [n * BLOCK[axis] for n in [4] * 4 + [3] * 3 + [1] * 5 + [2] * 4]
    assert gap(16, "random", active, axis=axis, gate=gate) < 1e-11


def test_float32_agrees_to_1e_5() -> None:
    assert gap(30, "zero", staircase(30, 10, 2, K), torch.float32, axis="key") < 1e-5


def test_the_definition_is_the_papers_scalar_plus_low_rank_transition() -> None:
    """S_t = (a I - beta k p^T) S_{t-1} + beta k v^T as dense matrices, o = S^T (q - d p) / sqrt(K)."""
    x = inputs(9, start="random")
    y, end = comba.recurrent(**x)
    state, eye = x["state_BHKV"], torch.eye(K, dtype=torch.float64)
    for t in range(9):
        k, p, v = (x[n][:, t, :, :, None] for n in ("k_BTHK", "p_BTHK", "v_BTHV"))
        a, beta = (x[n][:, t, :, None, None] for n in ("log_decay_BTH", "beta_BTH"))
        state = (a.exp() * eye - beta * k @ p.mT) @ state + beta * k @ v.mT
        read = x["q_BTHK"][:, t, :, :, None] - x["correction_H"][:, None, None] * p
        assert worst([y[:, t]], [(state.mT @ read)[..., 0] * K**-0.5]) < 1e-13
    assert worst([end], [state]) < 1e-13


def test_the_public_recurrent_reference_which_predicts_from_the_decayed_state_is_another_function() -> None:
    """Negative control: a_t p in place of p is a prediction from the decayed state, and the comparison sees it."""
    x = inputs(20, start="zero")
    decayed = x | {"p_BTHK": x["p_BTHK"] * x["log_decay_BTH"].exp()[..., None], "correction_H": x["correction_H"] * 0}
    paper = x | {"correction_H": x["correction_H"] * 0}
    assert worst([comba.chunk(**paper)[0]], [comba.recurrent(**decayed)[0]]) > 1e-2


def test_without_decay_and_correction_and_with_p_the_key_it_is_deltanet() -> None:
    x = inputs(20, start="random")
    shared = {n: x[n] for n in ("q_BTHK", "k_BTHK", "v_BTHV", "beta_BTH", "state_BHKV")}
    active = staircase(20, 6, 2, K)
    plain = comba.chunk(
        **shared, p_BTHK=x["k_BTHK"], log_decay_BTH=0 * x["log_decay_BTH"], correction_H=torch.zeros(H), active=active
    )
    assert worst(list(plain), list(delta.chunk(**shared, active=active))) < 1e-12


def test_the_feedback_strength_is_not_normalised_away() -> None:
    x = inputs(12, start="zero")
    weaker = x | {"p_BTHK": 0.5 * x["p_BTHK"], "correction_H": 2 * x["correction_H"]}  # d p is the same
    assert worst([comba.chunk(**x)[1]], [comba.chunk(**weaker)[1]]) > 1e-2


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_fully_open_is_bit_equal_to_static(axis: str) -> None:
    x = inputs(21, start="random", dtype=torch.float32)
    a, b = (comba.chunk(**x, active=n, axis=axis) for n in (None, [DIM[axis]] * 21))
    assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


@pytest.mark.parametrize("axis", ["key", "value", "head"])
def test_continuing_from_the_state_equals_one_pass_at_every_cut(axis: str) -> None:
    x = inputs(17, start="random")
    active = staircase(17, 5, BLOCK[axis], DIM[axis])
    whole, end = comba.chunk(**x, active=active, axis=axis)
    for cut in range(1, 17):
        parts, state = [], x["state_BHKV"]
        for s in (slice(0, cut), slice(cut, 17)):
            piece = {n: t[:, s] for n, t in x.items() if n not in ("state_BHKV", "correction_H")}
            y, state = comba.chunk(
                **piece, correction_H=x["correction_H"], state_BHKV=state, active=active[s], axis=axis
            )
            parts.append(y)
        assert worst([torch.cat(parts, 1), state], [whole, end]) < 1e-12


@pytest.mark.parametrize("axis", ["key", "value", "head"])
@pytest.mark.parametrize("gate", ["both", "write"])
def test_locked_coordinates_never_change(axis: str, gate: str) -> None:
    x, n = inputs(12, start="random"), BLOCK[axis]
    for form in (comba.recurrent, comba.chunk):
        _, state = form(**x, active=[n] * 12, axis=axis, gate=gate)
        before, after = (s.narrow(PLACE[axis], n, DIM[axis] - n) for s in (x["state_BHKV"], state))
        assert torch.equal(before, after)
        assert not torch.equal(x["state_BHKV"].narrow(PLACE[axis], 0, n), state.narrow(PLACE[axis], 0, n))


def test_masking_q_k_and_p_is_the_definition_from_a_zero_start_only() -> None:
    active = staircase(20, 5, 2, K)
    mask = torch.arange(K) < torch.tensor(active)[:, None, None]
    errors = {}
    for start in ("zero", "random"):
        x = inputs(20, start=start)
        masked = x | {n: x[n] * mask for n in ("q_BTHK", "k_BTHK", "p_BTHK")}
        errors[start] = worst([comba.chunk(**masked)[0]], [comba.recurrent(**x, active=active)[0]])
    assert errors["zero"] < 1e-13
    assert errors["random"] > 1e-2


def test_locked_key_rows_are_not_multiplied() -> None:
    flops = []
    for n in (K // 4, K):
        x = inputs(40, start="zero")
        with FlopCounterMode(display=False) as counter:
            comba.chunk(**x, active=[n] * 40)
        flops.append(counter.get_total_flops())
    assert flops[0] < 0.55 * flops[1]
