"""The chunked form of delta-mem's state IS its definition, under every gate and schedule; a row is a delta rule of its own."""

from __future__ import annotations

import pytest
import torch
from helpers import everything, leaves, staircase, unit, worst
from torch import Tensor

from proteus_kernels import delta, delta_mem

B, N, R = 2, 2, 8


def inputs(
    length: int, *, start: str = "random", seed: int = 0, dtype: torch.dtype = torch.float64, tied: bool = True
) -> dict[str, Tensor]:
    """q, k, v, gates and state. tied: the published gates (keep = 1 - beta, erase = write = beta), else three of their own."""
    g = torch.Generator().manual_seed(seed)

    def r(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    z = torch.stack([r(B, length, N, R) * 2 - 1.5 for _ in range(3)])
    keep, erase, write = (z[0], z[0], z[0]) if tied else z
    named = {
        "q_BTNR": unit(r(B, length, N, R)), "k_BTNR": unit(r(B, length, N, R)), "v_BTNR": r(B, length, N, R),
        "log_keep_BTNR": torch.nn.functional.logsigmoid(-keep), "erase_BTNR": erase.sigmoid(), "write_BTNR": write.sigmoid(),
        "state_BNRR": r(B, N, R, R) * (start == "random"),
    }  # fmt: skip
    return leaves(named, dtype)


def forms(length: int, *, dtype: torch.dtype = torch.float64, chunk_size: int = 5, **choices: object) -> float:
    """Worst relative gap over outputs, state and every gradient."""
    kinds = {n: choices.pop(n) for n in ("start", "tied") if n in choices}
    out = []
    for form, extra in ((delta_mem.chunk, {"chunk_size": chunk_size}), (delta_mem.recurrent, {})):
        x = inputs(length, dtype=dtype, **kinds)
        out.append(everything(lambda f=form, x=x, e=extra: list(f(**x, **choices, **e)), list(x.values())))
    return worst(*out)


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("gate", ["both", "write", "read", "none"])
def test_chunk_equals_definition_for_every_gate_and_start(gate: str, start: str) -> None:
    rows = torch.tensor([staircase(23, 6, 2, R), staircase(23, 3, 4, R)])
    for active in (staircase(23, 6, 2, R), rows):
        for decay_locked in ("masked", "unmasked"):
            for tied in (True, False):
                kinds = {"start": start, "tied": tied, "decay_locked": decay_locked}
                assert forms(23, active=active, gate=gate, **kinds) < 1e-11


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 7, 12, 13, 31])
def test_chunk_equals_definition_at_ragged_lengths(length: int) -> None:
    assert forms(length) < 1e-11
    assert forms(length, active=staircase(length, 6, 2, R)) < 1e-11


def test_float32_agrees_and_saturated_gates_stay_finite() -> None:
    assert forms(40, dtype=torch.float32, active=staircase(40, 10, 2, R)) < 1e-5
    x = inputs(12)
    hard = torch.where(torch.arange(12)[None, :, None, None] % 2 == 0, 60.0, -60.0).to(torch.float64)
    hard = hard.expand(B, 12, N, R)
    x |= {"log_keep_BTNR": torch.nn.functional.logsigmoid(-hard), "erase_BTNR": hard.sigmoid(), "write_BTNR": hard.sigmoid()}
    for a, b in zip(delta_mem.chunk(**x, chunk_size=5), delta_mem.recurrent(**x), strict=True):
        assert bool(a.isfinite().all()) and worst([a], [b]) < 1e-11


def test_the_definition_is_the_matrix_formula() -> None:
    x = inputs(6, tied=False)
    _, state = delta_mem.recurrent(**x)
    for b in range(B):
        for n in range(N):
            s = x["state_BNRR"][b, n]
            for t in range(6):
                k, v = x["k_BTNR"][b, t, n], x["v_BTNR"][b, t, n]
                keep, erase, write = (x[f"{name}_BTNR"][b, t, n] for name in ("log_keep", "erase", "write"))
                s = keep.exp().diag() @ s - erase.diag() @ (s @ k).outer(k) + write.diag() @ v.outer(k)
            assert worst([state[b, n]], [s]) < 1e-14


def test_a_row_is_a_gated_delta_rule_with_scalar_gates() -> None:
    """Row i as one head of `delta` with a single value column: decay 1 - beta, then the same residual in its terms."""
    x = inputs(15)
    beta = x["write_BTNR"].detach()
    y, state = delta_mem.recurrent(**x)
    for i in range(R):
        got_y, got_state = delta.recurrent(
            q_BTHK=x["q_BTNR"] * R**0.5, k_BTHK=x["k_BTNR"], v_BTHV=(x["v_BTNR"] * (1 - beta))[..., i : i + 1],
            log_decay_BTH=x["log_keep_BTNR"][..., i], beta_BTH=(beta / (1 - beta))[..., i],
            state_BHKV=x["state_BNRR"][:, :, i, :, None], read="pre",
        )  # fmt: skip
        assert worst([got_y[..., 0], got_state[..., 0]], [y[..., i], state[:, :, i]]) < 1e-11


def test_continuing_from_the_state_equals_one_pass_at_every_cut() -> None:
    x = inputs(19)
    active = staircase(19, 5, 2, R)
    whole, end = delta_mem.chunk(**x, active=active, chunk_size=4)
    for cut in range(1, 19):
        parts, state = [], x["state_BNRR"]
        for s in (slice(0, cut), slice(cut, 19)):
            piece = {n: t[:, s] for n, t in x.items() if n != "state_BNRR"}
            y, state = delta_mem.chunk(**piece, state_BNRR=state, active=active[s], chunk_size=4)
            parts.append(y)
        assert worst([torch.cat(parts, 1), state], [whole, end]) < 1e-12


@pytest.mark.parametrize("gate", ["both", "write"])
def test_locked_rows_never_change_and_are_not_read(gate: str) -> None:
    x = inputs(12)
    for form in (delta_mem.recurrent, delta_mem.chunk):
        y, state = form(**x, active=[2] * 12, gate=gate)
        assert torch.equal(state[:, :, 2:], x["state_BNRR"][:, :, 2:])
        assert not torch.equal(state[:, :, :2], x["state_BNRR"][:, :, :2])
        assert bool(y[..., 2:].any()) == (gate == "write")


def test_decay_on_locked_rows_breaks_the_lock() -> None:
    """Negative control of the test above."""
    _, state = delta_mem.recurrent(**inputs(12), active=[2] * 12, decay_locked="unmasked")
    assert not torch.equal(state[:, :, 2:], inputs(12)["state_BNRR"][:, :, 2:])


def test_masking_key_columns_does_not_protect_them() -> None:
    """Why the schedule goes over rows: keep is one number a row, so columns that no key touches still fade."""
    x = inputs(12)
    x |= {"k_BTNR": x["k_BTNR"] * (torch.arange(R) < 2), "q_BTNR": x["q_BTNR"] * (torch.arange(R) < 2)}
    _, state = delta_mem.recurrent(**x)
    assert float((state - x["state_BNRR"]).detach()[..., 2:].abs().max()) > 0.1


def test_fully_open_is_bit_equal_to_static() -> None:
    x = inputs(21, dtype=torch.float32)
    for a, b in zip(delta_mem.chunk(**x), delta_mem.chunk(**x, active=[R] * 21), strict=True):
        assert torch.equal(a, b)


def test_wrong_schedules_and_gates_are_refused() -> None:
    x = inputs(3)
    for active, gate, message in (([2, 2], "both", "2 entries"), ([2, 9, 2], "both", r"1\.\.8"), ([2] * 3, "up", "up")):
        with pytest.raises(ValueError, match=message):
            delta_mem.chunk(**x, active=active, gate=gate)
