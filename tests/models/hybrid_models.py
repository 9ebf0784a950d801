"""Small Titans hybrids for the tests, their inputs, and the distance of two trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from proteus_bench.schedules import Capacity, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM, map_tensors

D, H, K, N, P, SEGMENT, WINDOW, LENGTH = 16, 2, 8, 12, 3, 6, 5, 27
NAMES = ("titans-mac", "titans-mag", "titans-mal")
CASES = [(name, axis) for name in NAMES for axis in ("key", "value", "head", "hidden")]


def config(name: str, axis: str = "key", blocks: int = 2, **fields: Any) -> ModelConfig:
    """Unlocks at 7, 13, 19 and a segment of 6: unlocks and segments meet there; windows and inner chunks do not."""
    mlp = axis == "hidden"
    choices = {n: fields.pop(n) for n in ("gate", "key_norm", "read", "m0") if n in fields}
    capacity = Capacity(
        schedule=Uniform(blocks=blocks, span=6 * blocks), axis=axis, **({"m0": "learned" if mlp else "zero"} | choices)
    )
    sizes = {"d_model": D, "n_heads": H, "head_k": K, "head_v": K, "memory_hidden": N, "mlp_hidden": 16, "n_layers": 1}
    own = {"segment": SEGMENT, "window": WINDOW, "persistent": P, "inner": 4, "memory": "mlp" if mlp else "linear"}
    return ModelConfig(mixer=name, vocab_size=40, train_length=32, capacity=capacity, **(sizes | own | fields))


def build(c: ModelConfig) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(c).double()


def mixer(c: ModelConfig) -> Any:
    torch.manual_seed(0)
    return MIXERS[c.mixer](c).double()


def ids(n: int = LENGTH, batch: int = 2) -> Tensor:
    return torch.randint(40, (batch, n), generator=torch.Generator().manual_seed(3))


def tokens(n: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, n, D, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(tree, lambda x: found.append(x) or x)  # type: ignore[func-returns-value]
    return found


def gap(a: Any, b: Any) -> float:
    pairs = list(zip(tensors(a), tensors(b), strict=True))
    assert all(x.shape == y.shape for x, y in pairs)
    return max(float((x - y).detach().abs().max()) for x, y in pairs if x.numel())
