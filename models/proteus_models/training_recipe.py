"""From a recipe's branch and its `[training_schedule]` to the schedule over optimizer steps that the branch trains under."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from proteus_bench.errors import UsageError
from proteus_bench.grammar import parse_model
from proteus_bench.registry import schedule_classes
from proteus_bench.schedules import Capacity, CapacityError
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS
from proteus_models.recipe import Branch, Recipe, RecipeError, TrainingTable
from proteus_models.training_schedule import MaskOptions, TrainingSchedule


def training_schedule(recipe: Recipe, branch: Branch) -> TrainingSchedule | None:
    """None for a static branch and for a backbone whose schedule counts positions. RecipeError names what does not fit."""
    mixer, table = MIXERS.get(recipe.backbone), recipe.training
    if mixer is None or mixer.clock != "training":
        if table is not None:
            raise RecipeError(
                f"recipe {recipe.name}: [training_schedule] is for a backbone whose schedule counts optimizer steps, "
                f"not for {recipe.backbone}"
            )
        return None
    if recipe.trunk.muon_lr or recipe.branch.muon_lr:
        raise RecipeError(f"recipe {recipe.name}: {recipe.backbone} trains with AdamW (update periods, masks): no muon_lr")
    if branch.schedule == "static":
        return None
    name = f"recipe {recipe.name}, branch {branch.name}"
    if table is None:
        raise RecipeError(f"{name}: {recipe.backbone} needs a [training_schedule] with its span in optimizer steps")
    try:
        capacity = _capacity(recipe, branch, table)
        if capacity.is_static:
            return None
        made = TrainingSchedule(
            schedule=capacity.schedule, options=_options(capacity, table), levels=tuple(table.levels)
        )
        _check(recipe, made, capacity)
    except (TypeError, ValueError, UsageError) as error:
        raise RecipeError(f"{name}: {error}") from error
    return made


def _capacity(recipe: Recipe, branch: Branch, table: TrainingTable) -> Capacity:
    """The branch's schedule with the span in steps; only what has a meaning over training steps may differ from static."""
    chosen: dict[str, Any] = dict(recipe.capacity)
    static = Capacity.static(span=table.span, **chosen)
    spec = parse_model(f"{recipe.backbone}+{branch.schedule}", models=[recipe.backbone], schedules=schedule_classes())
    capacity = spec.capacity(static)
    if capacity.axis != "hidden":
        raise CapacityError(f"{recipe.backbone} has no {capacity.axis} axis: its schedule opens hidden units over optimizer steps")
    if capacity.is_data_dependent:
        raise CapacityError(f"{branch.schedule}: a schedule over optimizer steps is a function of the step, not of the data")
    if capacity.span != table.span:
        raise CapacityError(f"the schedule says span={capacity.span}, [training_schedule] says {table.span} steps")
    if replace(static, schedule=capacity.schedule, gate=capacity.gate, decay_locked=capacity.decay_locked) != capacity:
        raise CapacityError("key_norm, read, origin and m0 have no meaning for a schedule over optimizer steps")
    return capacity


def _options(capacity: Capacity, table: TrainingTable) -> MaskOptions:
    named = {
        "mask_grad": capacity.gate in ("both", "write"),
        "mask_read": capacity.gate in ("both", "read"),
        "mask_decay": capacity.decay_locked == "masked",
    }
    for option, value in named.items():
        asked = getattr(table, option)
        if asked is not None and asked is not value:
            how = "decay_locked" if option == "mask_decay" else "gate"
            raise ValueError(
                f"{option} = {str(asked).lower()} contradicts {how}={getattr(capacity, how)}; write it as the schedule's {how}"
            )
    return MaskOptions(per_block_step=table.per_block_step, **named)


def _check(recipe: Recipe, training: TrainingSchedule, static: Capacity) -> None:
    if recipe.trunk.tokens:
        raise ValueError("a trunk would train the units that the schedule then locks: give it stages = []")
    if any(stage.until for stage in recipe.branch.stages):
        raise ValueError("a stage that may end early (until) leaves the number of steps open: a schedule over steps needs it")
    config = ModelConfig(mixer=recipe.backbone, vocab_size=1, capacity=training.capacity(static), **recipe.model)
    MIXERS[recipe.backbone].check(config)
    for level in training.levels:
        if level not in range(1, len(config.chain_hidden) + 1):
            raise ValueError(f"levels names level {level!r} of a chain of {len(config.chain_hidden)}")
    schedule, steps = training.schedule, recipe.branch.steps
    if schedule.active_blocks(steps) < schedule.blocks:
        raise ValueError(
            f"only {schedule.active_blocks(steps)} of {schedule.blocks} blocks are open after the last of {steps} steps"
        )
