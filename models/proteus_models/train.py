"""The training loop: one phase of a recipe in one process or many, checkpointed, exactly resumable, diverging honestly.

There is one loop. What differs between a micro recipe and a language model at scale is the phase (its numbers), the source
of rows, and how accelerate was launched; `train_parallel` owns the processes, `train_state` the file, `train_objective` the loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from proteus_bench.errors import UsageError
from proteus_models import hope, train_state
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Phase, Stage
from proteus_models.train_objective import Objective, Rows
from proteus_models.train_optim import factor, optimizers
from proteus_models.train_parallel import Processes, whole
from proteus_models.train_state import Progress
from proteus_models.training_schedule import TrainingSchedule

Log = Callable[[dict[str, Any]], None]
SAVE_SECONDS = 120.0


class Source(Protocol):
    """Where rows come from: a pure function, so that a resumed run and every process see the same."""

    def rows(self, stage: str, index: int, rows: int, length: int) -> Rows: ...


class PhaseTrainer:
    """Trains `model` through `phase`, writing `folder/{state.safetensors,progress.json}` every `save_every` seconds.

    A model on the meta device is drawn from `seed`, sharded if the launch says so. `training`: a schedule over the phase's
    optimizer steps, for a backbone that has one. `identity`: what a saved state must have been made by to be resumed.
    """

    def __init__(
        self, model: DecoderLM, phase: Phase, source: Source, folder: Path, *, label: str, save_every: float = SAVE_SECONDS,
        training: TrainingSchedule | None = None, precision: str = "fp32", seed: int = 0, identity: str = "",
    ) -> None:  # fmt: skip
        self.processes = Processes()
        if phase.muon_lr and self.processes.plan is not None:
            raise UsageError("muon_lr must be 0 under FSDP2: Muon needs whole matrices")
        self.phase, self.source, self.folder, self.label = phase, source, folder, label
        self.save_every, self.identity = save_every, identity
        self.raw = model
        self.model = self.processes.place(Objective(model, precision), seed)
        self.optimizers = optimizers(model, phase, training)
        self.gate = None if training is None else hope.read_gate(model, training)
        self.progress = Progress()
        self.saved = time.monotonic()

    def run(self, log: Log) -> Progress:
        """To the end of the phase, from the last checkpoint if there is one."""
        self.progress = train_state.load(self.folder, self.raw, self.optimizers, self.identity) or self.progress
        p, self.saved = self.progress, time.monotonic()
        while p.status == "running" and p.stage < len(self.phase.stages):
            stage = self.phase.stages[p.stage]
            began = time.monotonic()
            due = self._step(stage)
            p.seconds += time.monotonic() - began
            if (p.step % 20 == 0 or p.status != "running") and self.processes.is_main:
                log(self._row(stage))
            if p.stage_tokens >= stage.tokens or p.answer_loss < stage.until:
                p.history.append(self._row(stage))
                p.stage, p.stage_tokens = p.stage + 1, 0
            if due:
                self._save()
        if p.status == "running":
            p.status = "complete"
        self._save()
        if self.gate is not None:
            self.gate.remove()
        return p

    def weights(self) -> dict[str, torch.Tensor] | None:
        """The whole weights on the CPU, in the main process; every process must ask."""
        named = ((name, whole(t).detach()) for name, t in self.raw.state_dict().items())
        found = {name: t.cpu() for name, t in named if self.processes.is_main}
        return found if self.processes.is_main else None

    def _step(self, stage: Stage) -> bool:
        """One optimizer step; whether it is time to save, on which the processes agree by the main one's clock."""
        p = self.progress
        count = max(1, stage.batch_tokens // stage.length)
        rows = self.source.rows(self.label, p.step, count, stage.length)
        # the span follows the row length up to N: short rows then also reach the last block
        self.raw.set_capacity(self.raw.config.capacity.with_span(min(stage.length, self.raw.config.train_length)))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor(self.phase, p.step, self._done())
        if self.gate is not None:
            self.gate.at(p.step + 1)
        counts = rows.counts()
        sums = self._gradients(rows, counts)
        due = bool(sums[3])
        norm = float(whole(nn.utils.clip_grad_norm_(self.raw.parameters(), self.phase.clip)))
        if not (sums.isfinite().all() and math.isfinite(norm)):
            p.status = "diverged"
            return due
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._note(rows.ids.size, float(sums[0] / counts[0]), float(sums[2] / counts[0]))
        return due

    def _gradients(self, rows: Rows, counts: tuple[int, int]) -> torch.Tensor:
        """Backward through this process's rows. [answer sum, prose sum, right answers, save now] over all processes."""
        parts, total = self.processes.parts(rows, self.phase.micro_rows), None
        for n, part in enumerate(parts, 1):
            with self.processes.together(self.model, n == len(parts)):
                loss, sums = self.model(*part.tensors(self.processes.device), counts, part.starts)
                # gradients are averaged over processes, and every process divided by the counts of them all
                (loss * self.processes.count).backward()
            total = sums if total is None else total + sums
        assert total is not None
        due = self.processes.is_main and time.monotonic() - self.saved > self.save_every
        return self.processes.sum(torch.cat([total, total.new_tensor([float(due)])]))

    def _note(self, tokens: int, answer: float, accuracy: float) -> None:
        p = self.progress
        p.step += 1
        p.tokens += tokens
        p.stage_tokens += tokens
        if math.isnan(answer):  # a few short rows may hold no answer: 0 / 0, and nothing to average
            return
        p.answer_loss = answer if math.isnan(p.answer_loss) else 0.97 * p.answer_loss + 0.03 * answer
        p.digit_accuracy = 0.97 * p.digit_accuracy + 0.03 * accuracy
        if p.crossed_90_at is None and p.digit_accuracy > 0.9:
            p.crossed_90_at = p.tokens

    def _done(self) -> float:
        """The share of the phase's tokens behind us; a stage that ended early moves the clock on."""
        p, phase = self.progress, self.phase
        return (sum(s.tokens for s in phase.stages[: p.stage]) + p.stage_tokens) / phase.tokens

    def _row(self, stage: Stage) -> dict[str, Any]:
        p = self.progress
        return {
            "phase": self.label, "step": p.step, "length": stage.length, "tokens": p.tokens,
            "answer_loss": round(p.answer_loss, 4), "digit_accuracy": round(p.digit_accuracy, 4),
            "tokens_per_second": round(p.tokens / max(p.seconds, 1e-9)), "status": p.status,
        }  # fmt: skip

    def _save(self) -> None:
        main = self.processes.is_main
        train_state.save(self.folder, self.raw, self.optimizers, self.progress, self.identity, main=main)
        self.saved = time.monotonic()
