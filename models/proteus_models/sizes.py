"""Model sizes from a laptop to a cluster: one shape for all backbones, equal parameters by the width of the MLP.

Sizes count every parameter, the tied embedding once. A shape fixes width, depth and heads; `sized` then chooses `mlp_hidden`
so that every backbone of a size has the same budget. Where that would make the MLP narrower than the model (attention beside
a memory), there are fewer layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from proteus_bench.errors import UsageError, unknown
from proteus_bench.schedules import Capacity
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

VOCAB = 32_000
STEP = 64
"""`mlp_hidden` is a multiple of it: products of whole tiles."""

MICRO: dict[str, Any] = {
    "d_model": 128, "n_layers": 2, "n_heads": 2, "head_k": 64, "head_v": 64, "mlp_hidden": 256, "memory_hidden": 128,
}  # fmt: skip


def _shape(d_model: int, n_layers: int, head: int) -> dict[str, Any]:
    return {
        "d_model": d_model, "n_layers": n_layers, "n_heads": d_model // head, "head_k": head, "head_v": head, "chunk": 64,
        "inner": 64, "window": 512, "segment": 512, "memory_hidden": 2 * head,
    }  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "micro": MICRO,
    "30M": _shape(384, 10, 64),
    "340M": _shape(1024, 24, 128),
    "760M": _shape(1536, 24, 128),
    "1.3B": _shape(2048, 24, 128),
}
TARGETS = {"30M": 30e6, "340M": 340e6, "760M": 760e6, "1.3B": 1.3e9}


def sized(
    backbone: str, size: str, *, capacity: Capacity, train_length: int, vocab_size: int = VOCAB, **changes: Any
) -> ModelConfig:
    """The configuration of a size. `changes` replace fields of the shape; a given `mlp_hidden` is taken as it is.

    UsageError for an unknown size, and for changes that leave no room in the budget.
    """
    if size not in SHAPES:
        raise unknown("size", size, SHAPES)
    fields = {"mixer": backbone, "vocab_size": vocab_size, "train_length": train_length, "capacity": capacity}
    config = ModelConfig(**(SHAPES[size] | {"mlp_hidden": MICRO["mlp_hidden"]} | fields | changes))
    if size not in TARGETS or "mlp_hidden" in changes or "chain_hidden" in changes:
        return config
    one, two = (count(replace(_at(config, STEP), n_layers=n)) for n in (1, 2))
    layer, step = two - one, count(replace(_at(config, 2 * STEP), n_layers=1)) - one
    for layers in range(config.n_layers, 0, -1):
        steps = 1 + round((TARGETS[size] - one - (layers - 1) * layer) / (layers * step))
        if steps * STEP >= config.d_model:
            return replace(_at(config, steps * STEP), n_layers=layers)
    raise UsageError(f"{backbone} at {size} is over its budget of {TARGETS[size]:,.0f} parameters in one layer")


def _at(config: ModelConfig, mlp_hidden: int) -> ModelConfig:
    # the levels of a chain follow mlp_hidden when nobody names them
    return replace(config, mlp_hidden=mlp_hidden, chain_hidden=())


def on_meta(config: ModelConfig) -> DecoderLM:
    """The model without storage."""
    with torch.device("meta"):
        return DecoderLM(config)


def count(config: ModelConfig) -> int:
    """Parameters, the tied embedding once."""
    return sum(p.numel() for p in on_meta(config).parameters())
