"""What a backbone's sequence mixer is to the decoder."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from proteus_models.config import ModelConfig
from proteus_models.layers import GatedOutput, Projections


class Mixer(nn.Module):
    """x_BTD -> y_BTD with a state that belongs to one layer: projections, a recurrence of `proteus_kernels`, an output.

    A subclass names the memory `axes` that a schedule may cut (default first) and its `memory` kind (matrix or mlp).
    """

    axes: ClassVar[tuple[str, ...]]
    memory: ClassVar[str]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.projections = Projections(config)
        self.output = GatedOutput(config)

    def set_config(self, config: ModelConfig) -> None:
        """Another capacity on the same weights."""
        self.config = self.projections.config = config

    def init_state(self, batch: int) -> Any:
        """The state before the first token: a tuple (convolution tail, memory state), batch first."""
        raise NotImplementedError

    def forward(
        self, x_BTD: Tensor, state: Any, active: list[int] | None, form: str = "chunk", last_only: bool = False
    ) -> tuple[Tensor, Any]:
        """`form` names the kernel's form: chunk, or recurrent (the definition). `last_only`: y of the last position."""
        y, state = self.mix(x_BTD, state, active, form)
        return (self.output(y[:, -1:], x_BTD[:, -1:]) if last_only else self.output(y, x_BTD)), state

    def mix(self, x_BTD: Tensor, state: Any, active: list[int] | None, form: str) -> tuple[Tensor, Any]:
        """The recurrence: the memory's reads y_BTHV and the new state."""
        raise NotImplementedError

    def learned_start(self, *shape: int, fan_in: int) -> nn.Parameter:
        """A learned M_0 for all heads, [H, *shape]."""
        return nn.Parameter(torch.randn(self.config.n_heads, *shape) * fan_in**-0.5)
