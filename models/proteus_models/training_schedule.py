"""A capacity schedule over optimizer steps: what it locks (`MaskOptions`), its forward gate, and its known consequences.

Proteus (arXiv 2608.16844), Sec. 4.2: theta_{i+1} = theta_i - eta (g_{i+1} . e_i), i the optimizer step, g a prefix of the
hidden axis of an MLP. The step itself is `masked_optim.MaskedAdamW`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from proteus_bench.schedules import Capacity, Schedule


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """What a locked block is kept from. The paper's formula is `LITERAL`; the defaults keep the lock invariant.

    mask_decay and mask_read are on, unlike the formula: decay would shrink a block before its first use, and a locked unit
    that is read is an untrained random feature. per_block_step is off, as in the formula: it is no part of the invariant.
    """

    mask_grad: bool = True
    mask_decay: bool = True
    mask_read: bool = True
    per_block_step: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, bool):
                raise ValueError(f"{name} must be true or false, not {value!r}")
        if self.per_block_step and not self.mask_grad:
            raise ValueError("per_block_step needs mask_grad: without it a locked block's moments run from the first step")


LITERAL = MaskOptions(mask_decay=False, mask_read=False)


@dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """A schedule over optimizer steps (its span counts them), what it masks, and the levels of the chain it acts on."""

    schedule: Schedule
    options: MaskOptions = MaskOptions()
    levels: tuple[int, ...] = ()
    """1-based levels of a block's chain of MLPs; empty: every level."""

    def capacity(self, static: Capacity) -> Capacity:
        """The same as a capacity, for the configuration and the name of a model: the options say what is gated."""
        o = self.options
        gate = {(1, 1): "both", (1, 0): "write", (0, 1): "read", (0, 0): "none"}[o.mask_grad, o.mask_read]
        choices = {"axis": "hidden", "gate": gate, "decay_locked": "masked" if o.mask_decay else "unmasked"}
        return Capacity.from_dict(static.as_dict() | self._shape() | choices, {self.schedule.name: type(self.schedule)})

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for cards and checkpoints."""
        return {**self._shape(), "levels": list(self.levels), **asdict(self.options)}

    def _shape(self) -> dict[str, Any]:
        s = self.schedule
        return {"schedule": s.label, "params": s.params(), "blocks": s.blocks, "span": s.span}


def block_of_unit(size: int, blocks: int) -> Tensor:
    """0-based block of each hidden unit, int64 [size]: blocks of size // E units, the last takes the remainder."""
    if size < blocks:
        raise ValueError(f"{size} hidden units are fewer than {blocks} blocks")
    return (torch.arange(size) // (size // blocks)).clamp_max(blocks - 1)


class ReadGate:
    """`mask_read`: locked hidden units are multiplied by zero on the way into the second layer of their MLP.

    layers: (second layer, hidden units). Acts on training steps only: `remove` it, or open everything, and the model is
    the plain one, bit for bit.
    """

    def __init__(self, layers: Iterable[tuple[nn.Module, int]], schedule: Schedule) -> None:
        self.schedule, self.k = schedule, schedule.blocks
        self._hooks = [
            layer.register_forward_pre_hook(self._hook(block_of_unit(size, schedule.blocks))) for layer, size in layers
        ]

    def at(self, step: int) -> None:
        """Read as at this optimizer step (1-based)."""
        self.k = self.schedule.active_blocks(step)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, block: Tensor) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor] | None]:
        masks: dict[Any, Tensor] = {}

        def gate(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
            if self.k == self.schedule.blocks:
                return None
            key = (self.k, args[0].dtype, args[0].device)
            if key not in masks:
                masks[key] = (block < self.k).to(args[0])
            return (args[0] * masks[key],)

        return gate


def decay_before_unlock(schedule: Schedule, lrs: Sequence[float], weight_decay: float) -> np.ndarray:
    """What unmasked decay leaves of each block's start values when it opens: prod (1 - lr wd) over its locked steps, [E]."""
    log = np.concatenate(([0.0], np.cumsum(np.log1p(-np.asarray(lrs, np.float64) * weight_decay))))
    return np.exp(log[np.asarray(schedule.unlock_times()) - 1])


def first_step_after_unlock(step: int, betas: tuple[float, float]) -> float:
    """Size in units of lr of Adam's first step on a coordinate whose moments are zero, counted as `step`; 1 at step 1."""
    beta1, beta2 = betas
    return (1 - beta1) / (1 - beta1**step) * math.sqrt((1 - beta2**step) / (1 - beta2))
