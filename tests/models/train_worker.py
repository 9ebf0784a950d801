"""One process of a training by several, for tests: a tiny model through the real loop.

The learning rate is small, since Adam makes steps of its size out of the rounding noise of gradients that are nearly zero, and
two orders of one sum then part ways within 50 steps whatever the loop does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from proteus_bench.errors import UsageError
from proteus_bench.schedules import Capacity, Surprise, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Phase, Stage
from proteus_models.train import PhaseTrainer
from proteus_models.train_objective import Rows
from proteus_models.training_schedule import TrainingSchedule

VOCAB, LENGTH, ROWS, STEPS = 32, 16, 4, 50


class Rules:
    """Rows that can be learned: each token follows from the one before by a fixed permutation, with some noise."""

    def __init__(self, documents: bool) -> None:
        self.documents = documents
        self.next = np.random.default_rng(0).permutation(VOCAB)

    def rows(self, stage: str, index: int, rows: int, length: int) -> Rows:
        rng = np.random.default_rng([7, index])
        ids = rng.integers(0, VOCAB, (rows, length + 1))
        for t in range(length):
            follow = rng.random(rows) < 0.8
            ids[follow, t + 1] = self.next[ids[follow, t]]
        kinds = rng.choice([0, 1, 2], size=(rows, length), p=[0.2, 0.6, 0.2])
        starts = [sorted({0, *rng.integers(0, length, row + 1).tolist()}) for row in range(rows)]
        return Rows(ids=ids[:, :-1], labels=ids[:, 1:], kinds=kinds, starts=starts if self.documents else None)


def model(mixer: str) -> tuple[DecoderLM, TrainingSchedule | None]:
    """On the meta device. Three heads and uneven sizes: no vector or matrix divides evenly between two processes."""
    small: dict[str, Any] = {
        "vocab_size": VOCAB, "train_length": LENGTH, "d_model": 25, "n_layers": 2, "n_heads": 3, "head_k": 8,
        "head_v": 8, "mlp_hidden": 13, "chunk": 8, "inner": 8,
    }  # fmt: skip
    training = None
    if mixer == "hope-attention":
        training = TrainingSchedule(schedule=Uniform(blocks=3, span=40), levels=())
        capacity = training.capacity(Capacity.static(axis="hidden", span=LENGTH))
        small |= {"chain_hidden": (7, 6), "chain_periods": (1, 2)}
    else:
        capacity = Capacity(schedule=Uniform(blocks=4, span=LENGTH), axis="key", m0="learned")
    with torch.device("meta"):
        return DecoderLM(ModelConfig(mixer=mixer, capacity=capacity, **small)), training


def train(
    folder: Path, mixer: str, *, documents: bool = False, micro_rows: int = 0, steps: int = STEPS, dtype: str = "float32",
    lr: float = 6e-4, eps: float = 1e-5,
) -> PhaseTrainer:  # fmt: skip
    stage = Stage(length=LENGTH, tokens=steps * ROWS * LENGTH, batch_tokens=ROWS * LENGTH)
    phase = Phase(
        stages=(stage,), lr=lr, warmup_steps=5, shape="cosine", floor=0.1, weight_decay=0.1, decayed="linear",
        eps=eps, micro_rows=micro_rows,
    )  # fmt: skip
    made, training = model(mixer)
    save_every = float(os.environ.get("SAVE_EVERY", "1e9"))
    trainer = PhaseTrainer(
        made.to(getattr(torch, dtype)), phase, Rules(documents), folder, label="t", training=training, seed=5, save_every=save_every
    )
    losses: list[float] = []
    note = trainer._note

    def keep(tokens: int, answer: float, accuracy: float) -> None:
        losses.append(answer)
        note(tokens, answer, accuracy)

    trainer._note = keep  # type: ignore[method-assign]
    trainer.run(lambda _: None)
    if trainer.processes.is_main:
        kind = {"plan": "fsdp" if trainer.processes.plan else "ddp", "processes": trainer.processes.count}
        (folder / "losses.json").write_text(json.dumps({"losses": losses, **kind}))
    return trainer


def refusals(folder: Path) -> None:
    """What cannot be sharded is refused, by every process and before anything is trained."""
    capacity = Capacity(schedule=Surprise(blocks=4, span=LENGTH), axis="value")
    looks = DecoderLM(ModelConfig(mixer="gdn", vocab_size=VOCAB, train_length=LENGTH, capacity=capacity, d_model=8))
    cases = (("looks at the data", looks, Phase(stages=())), ("muon_lr", model("gdn")[0], Phase(stages=(), muon_lr=0.01)))
    for message, made, phase in cases:
        try:
            PhaseTrainer(made, phase, Rules(False), folder, label="t")
        except UsageError as error:
            assert message in str(error)
        else:
            raise AssertionError(f"not refused: {message}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[1]):
        sharded = case.pop("sharded", False)
        os.environ.update(ACCELERATE_USE_FSDP=str(sharded).lower(), FSDP_VERSION="2")
        if sharded:
            refusals(Path())
        train(Path(case.pop("folder")), **case)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
