"""What Titans MAC, MAG and MAL share: a neural memory beside attention, persistent tokens, the gate that joins them.

Source: Titans (Behrouz et al., arXiv 2501.00663), Sec. 4. The neural memory is a whole LMM (`titans.py`), linear or MLP by
`config.memory`; a schedule acts on it and on nothing else. The persistent tokens p are learned and never masked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from proteus_bench.schedules import DataDependent
from proteus_models.attention import Attention
from proteus_models.config import ModelConfig
from proteus_models.mixer import Mixer
from proteus_models.titans import LMMState, TitansLinearMixer, TitansMixer, TitansMLPMixer

LMM: dict[str, type[TitansMixer]] = {"linear": TitansLinearMixer, "mlp": TitansMLPMixer}


class HybridMixer(Mixer):
    """x_BTD -> y_BTD from `lmm`, `attention` and `persistent`. Subclasses say in which order."""

    axes: ClassVar = ("key", "value", "head", "hidden")
    memory: ClassVar = "matrix"

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        nn.Module.__init__(self)  # projections and output are those of the memory and of the attention
        self.config = config
        self.lmm = LMM[config.memory](config)
        self.attention = Attention(config, window)
        # as large as the normalised tokens beside them
        self.persistent = nn.Parameter(torch.randn(config.persistent, config.d_model)) if config.persistent else None

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        axes, axis = LMM[config.memory].axes_of(config), config.capacity.axis
        if axis not in axes:
            raise ValueError(f"{config.mixer} with memory={config.memory} has no {axis} axis; one of {', '.join(axes)}")
        LMM[config.memory].check(config)

    def set_config(self, config: ModelConfig) -> None:
        self.config = config
        self.lmm.set_config(config)

    def locked(self, state: Any, n: int) -> list[Tensor]:
        return self.lmm.locked(state.memory, n)

    def memories(self, state: Any) -> tuple[Tensor, ...]:
        return self.lmm.memories(state.memory)

    def watch(self, state: Any) -> None:
        self.lmm.watch(None if state is None else state.memory)

    def take_errors(self) -> list[tuple[int, Tensor]]:
        return self.lmm.take_errors()

    @property
    def prefix(self) -> Tensor | None:
        """The persistent tokens, p_1PD."""
        return None if self.persistent is None else self.persistent[None]


class Gate(nn.Module):
    """o = W (silu(norm_y(y)) * silu(norm_m(m))): both normalised with a learned vector, then a nonlinearity.

    W is the output projection that the paper puts behind every gate: a product of two SiLUs is hardly ever negative.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm_y, self.norm_m = (nn.RMSNorm(dim, eps=1e-5) for _ in range(2))
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, y_BTD: Tensor, m_BTD: Tensor) -> Tensor:
        silu = nn.functional.silu
        return self.out(silu(self.norm_y(y_BTD)) * silu(self.norm_m(m_BTD)))


def primed(mixer: HybridMixer, batch: int) -> tuple[LMMState, Tensor | None]:
    """The memory after it was written with p, and its outputs m_BPD: how M([p | x]) starts.

    p stands before position 1 and finds the blocks of position 1 open, so what is locked there stays as it was. It is an
    inner chunk of its own: the grid of the tokens starts at position 1 whatever the number of persistent tokens.
    """
    state = mixer.lmm.init_state(batch)
    if mixer.prefix is None:
        return state, None
    active, capacity = None, mixer.config.capacity
    if not capacity.is_static:
        schedule = capacity.schedule
        first = schedule.start().k if isinstance(schedule, DataDependent) else schedule.active_blocks(1)
        active = [capacity.active_coords(first, mixer.config.axis_dim())] * mixer.config.persistent
    m, state = mixer.lmm(mixer.prefix.expand(batch, -1, -1), state, active)
    return (state[0], replace(state[1], offset=0, constant=capacity.m0 == "zero")), m
