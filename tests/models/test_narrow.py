"""Projections that leave out what is locked: the same function, state and gradients, and fewer products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_backbones import GATED, _everything, build, config, failed
from torch.utils.flop_counter import FlopCounterMode

from proteus_bench.schedules import Capacity, Reverse, Uniform
from proteus_kernels import pieces
from proteus_models import narrow
from proteus_models.decoder import MIXERS
from proteus_models.layers import skipped

PROJECTED = [(m, a, g) for m, a, g in GATED if m != "titans-mac"]


@pytest.fixture(params=[1, 700])
def eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs as short as the schedule has them, and runs that several counts share."""
    monkeypatch.setattr(narrow, "WORK", request.param)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("key_norm", ["before_mask", "after_mask"])
@pytest.mark.parametrize(("mixer", "axis", "gate"), PROJECTED)
def test_leaving_out_is_the_definition(mixer: str, axis: str, gate: str, key_norm: str) -> None:
    if key_norm == "after_mask" and (axis != "key" or gate == "write" or mixer == "retnet"):
        key_norm = "before_mask"
    sizes = {"taps": 3} if mixer == "swla" else {}
    for schedule in (Uniform, Reverse)[: 1 + (narrow.WORK == 1)]:
        model = build(config(mixer, axis, schedule, sizes, gate=gate, key_norm=key_norm)).double()
        for fast, slow in zip(_everything(model, "chunk"), _everything(model, "recurrent"), strict=True):
            assert float((fast - slow).norm(torch.inf)) <= 1e-10 * max(1e-6, float(slow.norm(torch.inf)))


@pytest.mark.parametrize(("mixer", "axis"), [(m, a) for m, a, g in PROJECTED if g == "both"])
def test_every_check_passes(monkeypatch: pytest.MonkeyPatch, mixer: str, axis: str) -> None:
    monkeypatch.setattr(narrow, "WORK", 1)
    after = axis == "key" and mixer != "retnet"
    assert failed(build(config(mixer, axis, key_norm="after_mask" if after else "before_mask"))) == set()


@pytest.mark.parametrize("least", [1, 12])
@pytest.mark.parametrize("axis", ["key", "value"])
@pytest.mark.parametrize("mixer", ["titans-mag", "titans-mal", "titans", "gdn"])
def test_shared_pieces_behind_a_start_that_learns_are_the_definition(
    monkeypatch: pytest.MonkeyPatch, mixer: str, axis: str, least: int
) -> None:
    """Persistent tokens open the first block before the sequence: the state wants a gradient, its locked part does not."""
    monkeypatch.setattr(pieces, "LEAST", (least, least))
    model, ids = build(config(mixer, axis)).double(), torch.arange(27)[None]
    grads = [
        torch.autograd.grad(model(ids, form=form).square().mean(), [*model.parameters()], allow_unused=True, materialize_grads=True)
        for form in ("chunk", "recurrent")
    ]
    for fast, slow in zip(*grads, strict=True):
        assert float((fast - slow).norm(torch.inf)) <= 1e-10 * max(1e-6, float(slow.norm(torch.inf)))


def _products(mixer: str, axis: str, schedule: bool, **choices: Any) -> int:
    c = config(mixer, axis, **choices)
    if not schedule:
        c = replace(c, capacity=Capacity.static(axis=c.capacity.axis, span=24))
    layer = MIXERS[mixer](c)
    active = None if c.capacity.is_static else [n for n in (2, 4, 6, 8) for _ in range(32)]
    x = torch.randn(1, 128, 16)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _, _, v, *_ = layer.projections(x, layer.init_state(1)[0] if mixer != "retnet" else 0, active, "chunk")
        layer.output(v, x, *layer.silent(active, "chunk"))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("mixer", "axis", "choices", "share"),
    [("gdn", "value", {}, 2 / 5 + 3 / 5 * 5 / 8), ("titans", "key", {"key_norm": "after_mask"}, 3 / 5 + 2 / 5 * 5 / 8),
     ("retnet", "key", {}, 3 / 5 + 2 / 5 * 5 / 8), ("gdn", "key", {}, 1.0)],
)  # fmt: skip
def test_products_with_locked_coordinates_are_not_made(
    monkeypatch: pytest.MonkeyPatch, mixer: str, axis: str, choices: Any, share: float
) -> None:
    monkeypatch.setattr(narrow, "WORK", 1)
    found = _products(mixer, axis, True, **choices) / _products(mixer, axis, False, **choices)
    assert share - 0.01 < found < share + 0.07  # the convolution's three positions before each unlock


def test_what_the_gates_need_is_made() -> None:
    def of(axis: Any, gate: Any, key_norm: Any = "before_mask", normed: bool = True) -> list[bool]:
        return skipped(Capacity(schedule=Uniform(blocks=4, span=24), axis=axis, gate=gate, key_norm=key_norm), normed=normed)

    assert of("key", "both") == [False, False, False]  # the norm is over the whole key
    assert of("key", "both", "after_mask") == of("key", "both", normed=False) == [True, True, False]
    assert of("key", "read", "after_mask") == [True, False, False]  # all of k is written
    assert of("value", "both") == of("value", "write") == [False, False, True]
    assert of("value", "read") == [False, False, False]
    assert of("head", "both") == [True, True, True]
    assert of("head", "write") == [False, False, True]
    assert not any(of(axis, "none")[i] for axis in ("key", "value", "head") for i in range(3))


def test_short_passes_and_open_memories_are_not_cut() -> None:
    assert narrow.runs([4] * 100, 8, narrow.WORK // 101) is None
    assert narrow.runs([8] * 100, 8, narrow.WORK) is None
    assert narrow.runs([1] * 3 + [2] * 5 + [3] * 4, 8, narrow.WORK // 4) == [(0, 8, 2), (8, 12, 3)]
