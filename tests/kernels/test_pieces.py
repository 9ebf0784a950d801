"""Pieces that several counts share are the definition too, and are taken only where they are exact."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import H, K, V, delta_inputs, everything, staircase, worst
from torch import Tensor

from proteus_kernels import comba, delta, linear, pieces, titans_linear
from proteus_kernels.linear import LinearState
from proteus_kernels.titans_common import TitansState

LENGTH = 31


def _delta(form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    return list(getattr(delta, form)(**x, **choices))


def _deltanet(form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    return _delta(form, {n: t for n, t in x.items() if n != "log_decay_BTH"}, **choices)


def _comba(form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    own = {"p_BTHK": 0.7 * x["k_BTHK"].flip(-1), "correction_H": torch.linspace(0.2, 1, H, dtype=torch.float64)}
    return list(getattr(comba, form)(**x, **own, **choices))


def _retnet(form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    given = {n: t for n, t in x.items() if n not in ("beta_BTH", "state_BHKV")}
    y, end = getattr(linear, form)(**given, state=LinearState(memory_BHKV=x["state_BHKV"]), **choices)
    return [y, end.memory_BHKV]


def _swla(taps: int, form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    given = {n: t for n, t in x.items() if n not in ("beta_BTH", "state_BHKV")}
    weights = torch.stack([x["beta_BTH"].roll(j, 1) for j in range(taps)], -1)
    y, end = getattr(linear, form)(**given, weights_BTHC=weights, state=LinearState.start(x["state_BHKV"], taps), **choices)
    return [y, end.memory_BHKV]


def _titans(form: str, x: dict[str, Tensor], **choices: Any) -> list[Tensor]:
    given = {n: x[n] for n in ("q_BTHK", "k_BTHK", "v_BTHV")}
    gates = {"log_keep_BTH": 0.3 * x["log_decay_BTH"], "log_eta_BTH": x["log_decay_BTH"], "theta_BTH": 0.2 * x["beta_BTH"]}
    start = TitansState.start((x["state_BHKV"],))
    choices = {n: c for n, c in choices.items() if n != "chunk_size"}
    y, end = getattr(titans_linear, form)(**given, **gates, state=start, inner=5, **choices)
    return [y, *end.weights, *end.momentum, *end.anchor]


Form = Callable[..., list[Tensor]]
RULES: dict[str, Form] = {"gdn": _delta, "deltanet": _deltanet, "comba": _comba, "retnet": _retnet, "titans": _titans}


def _inputs(start: str) -> dict[str, Tensor]:
    x = delta_inputs(LENGTH, start=start)
    return x | {"state_BHKV": x["state_BHKV"].detach()}


def _gap(rule: Form, start: str, active: list[int], **choices: Any) -> float:
    x = _inputs(start)
    leaves = [t for t in x.values() if t.requires_grad]
    fast = everything(lambda: rule("chunk", x, active=active, chunk_size=5, **choices), leaves)
    return worst(fast, everything(lambda: rule("recurrent", x, active=active, **choices), leaves))


@pytest.fixture(params=[1, 8, 100])
def least(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pieces, "LEAST", 2 * (request.param,))
    return int(request.param)


@pytest.mark.parametrize("read", ["post", "pre"])
@pytest.mark.parametrize("axis", ["key", "value"])
@pytest.mark.parametrize("rule", RULES)
def test_a_shared_piece_is_the_definition(rule: str, axis: str, read: str, least: int) -> None:
    for delta_t in (3, 6):
        active = staircase(LENGTH, delta_t, 2, {"key": K, "value": V}[axis])
        assert _gap(RULES[rule], "zero", active, axis=axis, read=read) < 1e-11


@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.parametrize("axis", ["key", "value"])
def test_a_window_of_writes_shares_pieces_that_open_between_chunks_only(axis: str, taps: int, least: int) -> None:
    for delta_t in (5, 10, 7):
        active = staircase(LENGTH, delta_t, 2, {"key": K, "value": V}[axis])
        assert _gap(partial(_swla, taps), "zero", active, axis=axis) < 1e-11


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("axis", ["key", "value"])
def test_a_state_that_holds_something_or_closes_is_cut(axis: str, start: str, least: int) -> None:
    opening = staircase(LENGTH, 6, 2, K)
    for active in (opening[::-1], opening) if start == "random" else (opening[::-1],):
        assert _gap(_delta, start, active, axis=axis) < 1e-11


def test_pieces_tile_time_on_the_grid_and_mask_what_they_mix(least: int) -> None:
    active = staircase(40, 6, 1, 8)
    found = pieces.share(active, torch.zeros(1, 1, 8, 8), "key", 4)
    assert [p.start for p in found] == [0, *(p.stop for p in found[:-1])]
    assert found[-1].stop == 40
    assert all(p.start % 4 == 0 and p.stop - p.start >= min(least, 4) for p in found)
    for p in found:
        inside = active[p.start : p.stop]
        assert p.opened == max(inside)
        assert (p.counts is None) == (min(inside) == p.opened)
        assert p.counts is None or list(p.counts) == inside
    assert len(found) == {1: 7, 8: 4, 100: 1}[least]


def test_inputs_of_locked_coordinates_cannot_matter_in_a_shared_piece(least: int) -> None:
    """Outputs and state stay bit-equal when what enters a locked row changes."""
    active = staircase(LENGTH, 6, 2, K)
    locked = torch.arange(K) >= torch.tensor(active)[:, None, None]
    x = {n: t.detach() for n, t in _inputs("zero").items()}
    other = x | {n: torch.where(locked, 9.0, x[n]) for n in ("q_BTHK", "k_BTHK")}
    for a, b in zip(_delta("chunk", x, active=active), _delta("chunk", other, active=active), strict=True):
        assert torch.equal(a, b)
