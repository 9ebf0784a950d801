"""The training loop: one phase of a recipe on accelerate, checkpointed, exactly resumable, diverging honestly."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from proteus_models import hope
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Phase, Stage
from proteus_models.train_data import RowSource
from proteus_models.training_schedule import TrainingSchedule

Log = Callable[[dict[str, Any]], None]


@dataclass
class Progress:
    """Where a phase stands: everything but tensors. Losses are running means (decay 0.97 a step)."""

    step: int = 0
    stage: int = 0
    tokens: int = 0
    stage_tokens: int = 0
    answer_loss: float = math.nan
    digit_accuracy: float = 0.0
    crossed_90_at: int | None = None
    seconds: float = 0.0
    status: str = "running"
    history: list[dict[str, Any]] = field(default_factory=list)


def write_json(path: Path, data: Any) -> None:
    """Atomic: temporary file, fsync, rename."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as f:
        json.dump(data, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


class PhaseTrainer:
    """Trains `model` through `phase`, writing `folder/{state.safetensors,progress.json}` every `save_every` seconds.

    `training`: a schedule over the phase's optimizer steps, for a backbone that has one.
    """

    def __init__(
        self, model: DecoderLM, phase: Phase, source: RowSource, folder: Path, *, label: str, save_every: float = 120.0,
        training: TrainingSchedule | None = None,
    ) -> None:  # fmt: skip
        self.accelerator = Accelerator()
        self.phase, self.source, self.folder, self.label = phase, source, folder, label
        self.save_every = save_every
        self.raw = model
        self.model = self.accelerator.prepare(model)
        self.optimizers = [self.accelerator.prepare(o) for o in optimizers(model, phase, training)]
        self.gate = None if training is None else hope.read_gate(model, training)
        self.progress = Progress()

    def run(self, log: Log) -> Progress:
        """To the end of the phase, from the last checkpoint if there is one."""
        self._resume()
        p, saved = self.progress, time.monotonic()
        while p.status == "running" and p.stage < len(self.phase.stages):
            stage = self.phase.stages[p.stage]
            began = time.monotonic()
            self._step(stage)
            p.seconds += time.monotonic() - began
            if p.step % 20 == 0 or p.status != "running":
                log(self._row(stage))
            done = p.stage_tokens >= stage.tokens or p.answer_loss < stage.until
            if done:
                p.history.append(self._row(stage))
                p.stage, p.stage_tokens = p.stage + 1, 0
            if time.monotonic() - saved > self.save_every:
                self._save()
                saved = time.monotonic()
        if p.status == "running":
            p.status = "complete"
        self._save()
        if self.gate is not None:
            self.gate.remove()
        return p

    def _step(self, stage: Stage) -> None:
        p = self.progress
        rows = max(1, stage.batch_tokens // stage.length)
        ids, labels, kinds = (torch.from_numpy(x) for x in self.source.batch(self.label, p.step, rows, stage.length))
        # the span follows the row length up to N: short rows then also reach the last block
        self.raw.set_capacity(self.raw.config.capacity.with_span(min(stage.length, self.raw.config.train_length)))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * self._factor()
        if self.gate is not None:
            self.gate.at(p.step + 1)
        h, _ = self.raw.hidden(ids)
        loss, answer, accuracy = losses(self.raw, h, labels, kinds)
        self.accelerator.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.raw.parameters(), self.phase.clip)
        if not (math.isfinite(loss.item()) and math.isfinite(norm.item())):
            p.status = "diverged"
            return
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        p.step += 1
        p.tokens += ids.numel()
        p.stage_tokens += ids.numel()
        p.answer_loss = answer if math.isnan(p.answer_loss) else 0.97 * p.answer_loss + 0.03 * answer
        p.digit_accuracy = 0.97 * p.digit_accuracy + 0.03 * accuracy
        if p.crossed_90_at is None and p.digit_accuracy > 0.9:
            p.crossed_90_at = p.tokens

    def _factor(self) -> float:
        """Warm-up, then constant, then linear to 2% over the last `decay` share; a stage ended early moves the clock on."""
        p, phase = self.progress, self.phase
        done = sum(s.tokens for s in phase.stages[: p.stage]) + p.stage_tokens
        left = 1 - done / phase.tokens
        tail = min(1.0, 0.02 + 0.98 * left / phase.decay) if phase.decay > 0 else 1.0
        return min(1.0, (p.step + 1) / max(1, phase.warmup_steps)) * tail

    def _row(self, stage: Stage) -> dict[str, Any]:
        p = self.progress
        return {
            "phase": self.label, "step": p.step, "length": stage.length, "tokens": p.tokens,
            "answer_loss": round(p.answer_loss, 4), "digit_accuracy": round(p.digit_accuracy, 4),
            "tokens_per_second": round(p.tokens / max(p.seconds, 1e-9)), "status": p.status,
        }  # fmt: skip

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{n}": t.detach().contiguous() for n, t in self.raw.state_dict().items()}
        for name, parameter in self.raw.named_parameters():
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer.{name}/{key}"] = torch.as_tensor(value).detach().clone()
        temporary = self.folder / "state.tmp"
        # the progress travels inside the tensors' file: one rename, so the two can never disagree
        save_file(tensors, temporary, metadata={"progress": json.dumps(vars(self.progress))})
        os.replace(temporary, self.folder / "state.safetensors")
        write_json(self.folder / "progress.json", vars(self.progress))

    def _resume(self) -> None:
        path = self.folder / "state.safetensors"
        if not path.exists():
            return
        from safetensors import safe_open

        with safe_open(path, "pt") as f:
            self.progress = Progress(**json.loads(f.metadata()["progress"]))
        tensors = load_file(path)
        names = {parameter: name for name, parameter in self.raw.named_parameters()}
        self.raw.load_state_dict({n[6:]: t for n, t in tensors.items() if n.startswith("model.")})
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = f"optimizer.{names[parameter]}/"
                    optimizer.state[parameter] = {
                        n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)
                    }


def optimizers(
    model: DecoderLM, phase: Phase, training: TrainingSchedule | None = None
) -> list[torch.optim.Optimizer]:
    """AdamW on everything; with `phase.muon_lr`, Muon on the blocks' matrices (it finds recall 3-4 times sooner).

    A schedule over steps, or levels with a period, make it one masked AdamW; ValueError beside Muon.
    """
    made: list[torch.optim.Optimizer]
    if training is not None or hope.is_slow(model):
        if phase.muon_lr:
            raise ValueError("muon_lr must be 0: update periods and a schedule over steps are AdamW's alone")
        adam: dict[str, Any] = {"lr": phase.lr, "betas": (0.9, 0.98), "eps": 1e-9}
        made = [hope.masked_adamw(model, training or hope.unscheduled(), weight_decay=phase.weight_decay, **adam)]
        return _with_base_lr(made)
    named = list(model.named_parameters())
    matrices = [
        p for n, p in named if phase.muon_lr and n.startswith("blocks.") and n.endswith("weight") and p.ndim == 2
    ]
    taken = {id(p) for p in matrices}
    decayed = [p for _, p in named if p.ndim >= 2 and id(p) not in taken]
    rest = [p for _, p in named if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": phase.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    made = [torch.optim.AdamW(groups, lr=phase.lr, betas=(0.9, 0.98), eps=1e-9)]
    if matrices:
        made.append(torch.optim.Muon(matrices, lr=phase.muon_lr, weight_decay=phase.weight_decay))
    return _with_base_lr(made)


def _with_base_lr(made: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    for optimizer in made:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return made


def losses(model: DecoderLM, h_BTD: Tensor, labels: Tensor, kinds: Tensor) -> tuple[Tensor, float, float]:
    """answer cross-entropy + 0.1 x prose cross-entropy, logits at labelled positions only; with answer loss and accuracy."""
    at = kinds > 0
    logits, target, kind = model.logits(h_BTD[at]), labels[at], kinds[at]
    ce = nn.functional.cross_entropy(logits, target, reduction="none")
    answers = kind == 1
    answer = ce[answers].mean()
    prose = ce[~answers]
    loss = answer + 0.1 * prose.mean() if len(prose) else answer
    accuracy = (logits.detach()[answers].argmax(-1) == target[answers]).float().mean()
    return loss, float(answer.detach()), float(accuracy)
