"""Hope-Attention (Nested Learning, Behrouz et al., Eq. 30-31): attention, then a chain of MLPs with their own frequencies.

    y = MLP^{f_k}(... MLP^{f_1}(x)),     MLP^{f}(x) = x + W_down SwiGLU(W_up norm(x))

Level l has `chain_hidden[l]` units and is updated every `chain_periods[l]` optimizer steps with the gradients summed since
its last update (`masked_optim`). One level of period 1 is the conventional block, so k = 1 is Transformer++. A capacity
schedule opens hidden units of the levels over optimizer steps (Proteus, arXiv 2608.16844, Sec. 4.2), never over positions:
a trained model is fully open.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import nn

from proteus_bench.schedules import Static
from proteus_models.config import ModelConfig
from proteus_models.masked_optim import HiddenSlice, MaskedAdamW, groups
from proteus_models.training_schedule import MaskOptions, ReadGate, TrainingSchedule
from proteus_models.transformer import TransformerMixer


class HopeAttentionMixer(TransformerMixer):
    """The attention. The chain of MLPs stands in the decoder's block, behind every mixer whose config has one."""

    axes: ClassVar[tuple[str, ...]] = ("hidden",)
    clock: ClassVar = "training"

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        """CapacityError when a level has fewer units than the schedule has blocks; the last block takes a remainder."""
        for size in config.chain_hidden:
            config.capacity.block_size(size)


def mlp_levels(model: Any) -> Iterator[tuple[int, str, nn.Module, int]]:
    """(level from 1, name of its MLP, that MLP, hidden units) of every block of a decoder, whatever its mixer."""
    for n, block in enumerate(model.blocks):
        yield 1, f"blocks.{n}.mlp", block.mlp, block.mlp.down.in_features
        for j, level in enumerate(block.levels):
            yield j + 2, f"blocks.{n}.levels.{j}.mlp", level.mlp, level.mlp.down.in_features


def read_gate(model: Any, training: TrainingSchedule) -> ReadGate:
    """The forward gate of a training run. Empty when locked units are read."""
    scheduled = [(mlp.down, size) for _, _, mlp, size in _scheduled(model, training)]
    return ReadGate(scheduled if training.options.mask_read else [], training.schedule)


def masked_adamw(model: Any, training: TrainingSchedule, *, weight_decay: float, **adam: Any) -> MaskedAdamW:
    """MaskedAdamW over a decoder: the levels' periods, and the schedule on the hidden axis of the levels it names."""
    slices = {}
    for _, name, _, size in _scheduled(model, training):
        slices[f"{name}.up.weight"] = HiddenSlice(dim=0, size=size, parts=2)
        slices[f"{name}.down.weight"] = HiddenSlice(dim=1, size=size)
    named, periods = list(model.named_parameters()), model.config.chain_periods
    slow = {name: periods[level - 1] for name, _ in named if periods and (level := _level(name))}
    made = groups(named, slices=slices, periods=slow, weight_decay=weight_decay)
    return MaskedAdamW(made, schedule=training.schedule, options=training.options, **adam)


def unscheduled() -> TrainingSchedule:
    """Everything open from the first step: for a chain that needs its periods and has no schedule."""
    return TrainingSchedule(schedule=Static(blocks=1, span=1), options=MaskOptions())


def is_slow(model: Any) -> bool:
    """Whether some level is updated more rarely than every step, so that plain AdamW would not do."""
    return any(period > 1 for period in model.config.chain_periods)


def _scheduled(model: Any, training: TrainingSchedule) -> list[tuple[int, str, Any, int]]:
    levels = list(mlp_levels(model))
    return [x for x in levels if not training.levels or x[0] in training.levels]


def _level(name: str) -> int:
    """The level that a parameter of a decoder belongs to, 0 for none: a level has its norm and its MLP."""
    parts = name.split(".")
    if parts[0] != "blocks":
        return 0
    if parts[2] in ("mlp", "norm_mlp"):
        return 1
    return int(parts[3]) + 2 if parts[2] == "levels" else 0
