"""Titans MAL, memory as a layer (Behrouz et al., arXiv 2501.00663, Sec. 4.3): the memory first, attention over its output.

    y = M([p | x])      o = SWA(y)

The outputs of M for p do not depend on the input. They are made once, when the state starts, and stand before the window
as what every position sees. y is normalised before attention, as every input of attention is.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from proteus_models.attention import AttentionCache
from proteus_models.config import ModelConfig
from proteus_models.titans import LMMState
from proteus_models.titans_hybrid import HybridMixer, primed


@dataclass(frozen=True, kw_only=True)
class MALState:
    """The neural memory, its outputs for p (y_BPD, None without persistent tokens), the window's keys and values."""

    memory: LMMState
    persistent: Tensor | None
    window: AttentionCache


class TitansMALMixer(HybridMixer):
    """x_BTD -> o_BTD."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.window)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-5)

    def init_state(self, batch: int) -> MALState:
        memory, persistent = primed(self, batch)
        return MALState(memory=memory, persistent=persistent, window=self.attention.init_cache(batch))

    def forward(
        self, x_BTD: Tensor, state: MALState, active: list[int] | None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, MALState]:
        y, memory = self.lmm(x_BTD, state.memory, active, form)
        prefix = None if state.persistent is None else self.norm(state.persistent)
        o, window = self.attention(self.norm(y), state.window, form, prefix=prefix, last_only=last_only)
        return o, MALState(memory=memory, persistent=state.persistent, window=window)
