"""Titans with an MLP memory of one to four layers inside the decoder, alone and beside attention."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from proteus_bench.schedules import Capacity, Static, Surprise, Uniform
from proteus_models import grid
from proteus_models.check import check_model
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import load_recipe
from proteus_models.titans import mean_active

SIZES = {"d_model": 16, "n_heads": 2, "head_k": 8, "head_v": 4, "mlp_hidden": 16, "memory_hidden": 12, "n_layers": 1}


def config(depth: int, axis: str = "hidden", mixer: str = "titans-mlp", m0: str = "learned", **more: Any) -> ModelConfig:
    capacity = Capacity(schedule=Uniform(blocks=2, span=32), axis=axis, m0=m0)
    fields = SIZES | {"chunk": 8, "inner": 8, "memory_depth": depth} | more
    return ModelConfig(mixer=mixer, vocab_size=40, train_length=32, capacity=capacity, **fields)


def build(c: ModelConfig) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(c)


@pytest.mark.parametrize(("depth", "axis"), [(1, "key"), (1, "value"), (1, "head"), (2, "hidden"), (3, "hidden"), (4, "hidden")])
def test_every_depth_passes_every_check(depth: int, axis: str) -> None:
    rows = check_model(build(config(depth, axis)), length=32)
    assert [r.name for r in rows if not r.passed] == []


def test_a_hybrid_takes_a_deep_memory_too() -> None:
    rows = check_model(build(config(3, mixer="titans-mac", memory="mlp", segment=10, persistent=2, head_v=8)), length=32)
    assert [r.name for r in rows if not r.passed] == []


def test_one_layer_is_the_linear_memory_bit_for_bit() -> None:
    ids = torch.arange(30)[None]
    one, linear = build(config(1, "key")), build(config(2, "key", mixer="titans"))
    assert torch.equal(one(ids), linear(ids))
    assert build(config(1, "value", m0="zero"))(ids).isfinite().all()  # a matrix may start at zero


def test_layers_have_the_shapes_and_the_units_of_the_configuration() -> None:
    shapes = {n.split(".")[-1]: tuple(p.shape) for n, p in build(config(4)).named_parameters() if ".w" in n}
    assert {n: shapes[n] for n in ("w1", "w2", "w3", "w4")} == {
        "w1": (2, 12, 8), "w2": (2, 12, 12), "w3": (2, 12, 12), "w4": (2, 4, 12),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"depth": 0}, "memory_depth must be at least 1"), ({"depth": 5}, "memory_depth lies in 1 to 4, got 5"),
     ({"depth": 1}, "no hidden axis; one of key, value, head"), ({"depth": 3, "axis": "key"}, "no key axis; one of hidden"),
     ({"depth": 3, "m0": "zero"}, "m0=learned")],
)  # fmt: skip
def test_impossible_depths_are_refused_with_the_reason(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        build(config(**fields))
    assert "\n" not in str(refusal.value)


def test_what_is_open_on_average_is_stated_in_units_and_in_parameters() -> None:
    """Two blocks, half the span each: 3/4 of the units; of a square layer half the time 1/4, half the time all."""
    assert mean_active(config(2)) == {"axis": 0.75, "parameters": 0.75}
    half, whole = 6 * 12 + 6**2, 12 * 12 + 12**2
    assert mean_active(config(3)) == {"axis": 0.75, "parameters": pytest.approx((half / whole + 1) / 2)}
    assert mean_active(config(1, "key")) == {"axis": 0.75, "parameters": 0.75}
    deep = config(4)
    static = replace(deep, capacity=replace(deep.capacity, schedule=Static(blocks=1, span=32)))
    assert mean_active(static) == {"axis": 1.0, "parameters": 1.0}
    looks = replace(deep, capacity=replace(deep.capacity, schedule=Surprise(blocks=2, span=32, tau=0.5, budget=0.8)))
    assert set(mean_active(looks)) == {"axis"}


RECIPE = """
name = "deep-tiny"
backbone = "titans-mlp"

[model]
train_length = 32
d_model = 16
n_layers = 1
n_heads = 2
head_k = 8
head_v = 8
inner = 8
memory_hidden = 8
memory_depth = 3

[capacity]
axis = "hidden"
m0 = "learned"

[trunk]
stages = []

[branch]
warmup_steps = 1
stages = [{ length = 32, tokens = 130, batch_tokens = 64 }]

[[branches]]
name = "titans-mlp+proteus"
schedule = "proteus(blocks=2)"
"""


def test_a_trained_deep_memory_states_both_on_its_card(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RECIPE)
    (folder,) = grid.train_recipe(
        load_recipe(tmp_path / "r.toml"), 0, tmp_path / "work", zoo=tmp_path / "zoo", report=lambda _: None
    )
    card = json.loads((folder / "card.json").read_text())
    half, whole = 4 * 16 + 4**2, 8 * 16 + 8**2
    assert card["mean_active"] == {"axis": 0.75, "parameters": pytest.approx((half / whole + 1) / 2)}
