"""The configuration of a decoder: plain data, strict, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from proteus_bench.schedules import Capacity


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder. Sizes in coordinates; `train_length` in tokens is required because plots and verdicts mark it.

    `rope_base` of rotary positions; `taps` is SWLA's window c, `correction` is Comba's d before training.
    """

    mixer: str
    vocab_size: int
    train_length: int
    capacity: Capacity
    d_model: int = 128
    n_layers: int = 2
    n_heads: int = 2
    head_k: int = 64
    head_v: int = 64
    mlp_hidden: int = 256
    conv_width: int = 4
    chunk: int = 32
    inner: int = 32
    memory_hidden: int = 128
    theta_max: float = 1.0
    eps: float = 1e-6
    rope_base: float = 10000.0
    taps: int = 2
    correction: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "int" and getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1, got {getattr(self, field.name)}")

    def axis_dim(self) -> int:
        """Size of the scheduled axis."""
        sizes = {"key": self.head_k, "value": self.head_v, "head": self.n_heads, "hidden": self.memory_hidden}
        if self.capacity.axis not in sizes:
            raise ValueError(f"{self.mixer} has no {self.capacity.axis} axis; one of {', '.join(sizes)}")
        return sizes[self.capacity.axis]

    def as_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"capacity": self.capacity.as_dict()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> ModelConfig:
        known = {f.name for f in fields(ModelConfig)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown model configuration key {unknown[0]!r}")
        return ModelConfig(**(data | {"capacity": Capacity.from_dict(data["capacity"])}))
