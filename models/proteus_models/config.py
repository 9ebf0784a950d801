"""The configuration of a decoder: plain data, strict, JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from proteus_bench.registry import stored_capacity
from proteus_bench.schedules import Capacity


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One decoder. Sizes in coordinates; `train_length` in tokens is required because plots and verdicts mark it.

    Attention: `window` and `segment` (MAC) in tokens, `persistent` learned tokens that every position sees, the neural
    `memory` beside it (linear or mlp), `qk_norm` an RMSNorm on every head's q and k, `rope_base` of the rotary positions.
    `taps` is SWLA's window c, `correction` is Comba's d before training.
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
    memory_depth: int = 2
    """Layers of an MLP memory, 1 to 4. One layer has no hidden units: it is the linear memory, with a matrix's axes."""
    theta_max: float = 1.0
    eps: float = 1e-6
    window: int = 64
    segment: int = 64
    persistent: int = 4
    memory: str = "linear"
    qk_norm: bool = False
    rope_base: float = 10000.0
    taps: int = 2
    correction: float = 1.0
    chain_hidden: tuple[int, ...] = ()
    """Hidden units of each MLP of a block's chain, the most frequent first; empty: one MLP of `mlp_hidden`."""
    chain_periods: tuple[int, ...] = ()
    """Optimizer steps between two updates of each level; empty: all at every step."""

    def __post_init__(self) -> None:
        self._fill_chain()
        for field in fields(self):
            least = 0 if field.name == "persistent" else 1
            if field.type == "int" and getattr(self, field.name) < least:
                raise ValueError(f"{field.name} must be at least {least}, got {getattr(self, field.name)}")
        if self.memory_depth > 4:
            raise ValueError(f"memory_depth lies in 1 to 4, got {self.memory_depth}")
        if self.memory not in ("linear", "mlp"):
            raise ValueError(f"memory must be linear or mlp, got {self.memory!r}")

    def _fill_chain(self) -> None:
        """Tuples of equal lengths. Hope-Attention without a chain gets four levels that share `mlp_hidden`, ratio 4."""
        hidden, periods = tuple(self.chain_hidden), tuple(self.chain_periods)
        if self.mixer == "hope-attention" and not hidden:
            hidden = 4 * (max(1, self.mlp_hidden // 4),)
            periods = periods or (1, 4, 16, 64)
        periods = periods or len(hidden) * (1,)
        if len(periods) != len(hidden):
            raise ValueError(f"chain_hidden has {len(hidden)} levels, chain_periods {len(periods)}")
        for value in (*hidden, *periods):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"chain_hidden and chain_periods hold whole numbers of at least 1, not {value!r}")
        object.__setattr__(self, "chain_hidden", hidden)
        object.__setattr__(self, "chain_periods", periods)

    def axis_dim(self) -> int:
        """Size of the scheduled axis."""
        sizes = {"key": self.head_k, "value": self.head_v, "head": self.n_heads, "hidden": self.memory_hidden}
        if self.capacity.axis not in sizes:
            raise ValueError(f"{self.mixer} has no {self.capacity.axis} axis; one of {', '.join(sizes)}")
        return sizes[self.capacity.axis]

    def as_dict(self) -> dict[str, Any]:
        plain = {f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)}
        return plain | {"capacity": self.capacity.as_dict()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> ModelConfig:
        known = {f.name for f in fields(ModelConfig)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown model configuration key {unknown[0]!r}")
        return ModelConfig(**(data | {"capacity": stored_capacity(data["capacity"])}))
