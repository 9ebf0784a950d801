"""Titans MAG, memory as a gate (Behrouz et al., arXiv 2501.00663, Sec. 4.2): attention and memory side by side.

    y = SWA([p | x])    m = M([p | x])    o = y (x) m       (x): see `titans_hybrid.Gate`
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from proteus_models.attention import AttentionCache
from proteus_models.config import ModelConfig
from proteus_models.titans import LMMState
from proteus_models.titans_hybrid import Gate, HybridMixer, primed


@dataclass(frozen=True, kw_only=True)
class MAGState:
    """The neural memory (already written with p) and the last window - 1 tokens' keys and values."""

    memory: LMMState
    window: AttentionCache


class TitansMAGMixer(HybridMixer):
    """x_BTD -> o_BTD."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.window)
        self.gate = Gate(config.d_model)

    def init_state(self, batch: int) -> MAGState:
        return MAGState(memory=primed(self, batch)[0], window=self.attention.init_cache(batch))

    def forward(
        self, x_BTD: Tensor, state: MAGState, active: list[int] | None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, MAGState]:
        y, window = self.attention(x_BTD, state.window, form, prefix=self.prefix, last_only=last_only)
        m, memory = self.lmm(x_BTD, state.memory, active, form, last_only)
        return self.gate(y, m), MAGState(memory=memory, window=window)
