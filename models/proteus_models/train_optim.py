"""The optimizers of a phase, from its numbers and the model's parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from proteus_models import hope
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Phase
from proteus_models.training_schedule import TrainingSchedule


def optimizers(
    model: DecoderLM, phase: Phase, training: TrainingSchedule | None = None
) -> list[torch.optim.Optimizer]:
    """AdamW on everything; with `phase.muon_lr`, Muon on the blocks' matrices (it finds recall 3-4 times sooner).

    A schedule over steps, or levels with a period, make it one masked AdamW; ValueError beside Muon.
    """
    made: list[torch.optim.Optimizer]
    adam: dict[str, Any] = {"lr": phase.lr, "betas": tuple(phase.betas), "eps": phase.eps}
    if training is not None or hope.is_slow(model):
        if phase.muon_lr:
            raise ValueError("muon_lr must be 0: update periods and a schedule over steps are AdamW's alone")
        made = [hope.masked_adamw(model, training or hope.unscheduled(), weight_decay=phase.weight_decay, **adam)]
        return _with_base_lr(made)
    named = list(model.named_parameters())
    matrices = [
        p for n, p in named if phase.muon_lr and n.startswith("blocks.") and n.endswith("weight") and p.ndim == 2
    ]
    taken = {id(p) for p in matrices}
    keeps = _decayed(model, phase.decayed)
    decayed = [p for n, p in named if n in keeps and id(p) not in taken]
    rest = [p for n, p in named if n not in keeps and id(p) not in taken]
    groups = [{"params": decayed, "weight_decay": phase.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    made = [torch.optim.AdamW(groups, **adam)]
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=phase.muon_lr, weight_decay=phase.weight_decay))
    return _with_base_lr(made)


def _decayed(model: DecoderLM, which: str) -> set[str]:
    """Names of the parameters that weight decay shrinks.

    matrices: everything of two axes or more. linear: the embedding and the weights of linear maps, no gate's among them,
    so neither norms, decay rates, convolutions nor a memory's start.
    """
    if which == "matrices":
        return {n for n, p in model.named_parameters() if p.ndim >= 2}
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding) and "gates" not in name.split(".")
    }


def _with_base_lr(made: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    for optimizer in made:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return made


def factor(phase: Phase, step: int, done: float) -> float:
    """What the learning rate is multiplied by at 0-based `step`, a share `done` of the phase's tokens behind it.

    linear: constant, then down to `floor` over the last `decay` of the tokens. cosine: from the start to `floor`.
    """
    warm = min(1.0, (step + 1) / max(1, phase.warmup_steps))
    if phase.shape == "cosine":
        return warm * (phase.floor + (1 - phase.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
    left = 1 - done
    return warm * (min(1.0, phase.floor + (1 - phase.floor) * left / phase.decay) if phase.decay > 0 else 1.0)
