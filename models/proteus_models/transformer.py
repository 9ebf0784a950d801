"""Transformer++: softmax attention with rotary positions; norms, SwiGLU and residuals come from the decoder.

Its memory is the cache of every past token, so there is no fixed state whose capacity a schedule could open.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from proteus_models.attention import Attention, AttentionCache
from proteus_models.config import ModelConfig
from proteus_models.mixer import Mixer


class TransformerMixer(Mixer):
    """x_BTD -> y_BTD; the state is the cache. No axes: the decoder refuses every schedule but the static one."""

    axes: ClassVar[tuple[str, ...]] = ()
    memory: ClassVar = "none"

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)  # the projections of a recurrent mixer have no use here
        self.config = config
        self.attention = Attention(config)

    def set_config(self, config: ModelConfig) -> None:
        self.config = config

    def memories(self, state: AttentionCache) -> tuple[Tensor, ...]:
        return ()

    def init_state(self, batch: int) -> AttentionCache:
        return self.attention.init_cache(batch)

    def forward(
        self, x_BTD: Tensor, state: AttentionCache, active: list[int] | None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, AttentionCache]:
        return self.attention(x_BTD, state, form, last_only=last_only)
