"""A language model on token shards: one strict TOML recipe (`kind = "lm"`), trained in one phase by the loop of `train`.

The recipe is a micro recipe's relative with no trunk and one branch, so schedules and capacities are read by the same code.
`[training]` holds fields of `recipe.Phase` and the stage; what is left out is the paper's: AdamW, 4e-4 cosine, weight decay
0.1, 0.5M tokens a step at length 8,192 (Proteus, arXiv 2608.16844, Sec. 5).
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.schedules import Capacity
from proteus_models.checkpoint import save_checkpoint
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.grid import make_card, model_config, share_tokenizer
from proteus_models.recipe import Branch, Phase, Recipe, RecipeError, Stage, TrainingTable, changed, make, only
from proteus_models.sizes import VOCAB, on_meta, sized
from proteus_models.train import PhaseTrainer
from proteus_models.train_state import Progress
from proteus_models.train_tokens import TokenRows
from proteus_models.training_recipe import training_schedule
from proteus_models.training_schedule import TrainingSchedule

KIND = "lm"
PRECISIONS = ("bf16", "fp32")
HOW: dict[str, Any] = {"precision": "bf16", "recompute": False, "save_minutes": 30.0}
PAPER: dict[str, Any] = {
    "lr": 4e-4, "warmup_steps": 1000, "shape": "cosine", "floor": 0.1, "weight_decay": 0.1, "decayed": "linear",
    "betas": (0.9, 0.95), "eps": 1e-8, "clip": 1.0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LMRecipe:
    """`config`: the model, its mlp_hidden chosen so that the size is right. `recipe`: the phase (`branch`) and the schedule."""

    recipe: Recipe
    config: ModelConfig
    size: str
    precision: str
    recompute: bool
    save_minutes: float
    training: TrainingSchedule | None

    @property
    def entry(self) -> str:
        """The model's name in a zoo."""
        return f"{self.recipe.branches[0].name}@{self.size}"

    @property
    def phase(self) -> Phase:
        return self.recipe.branch

    @property
    def stage(self) -> Stage:
        return self.phase.stages[0]


def is_lm(path: Path) -> bool:
    """Whether a recipe file says `kind = "lm"`; a file that cannot be read is left to the loader to name."""
    try:
        return tomllib.loads(path.read_text("utf-8")).get("kind") == KIND
    except (OSError, ValueError):
        return False


def load_lm(path: Path, changes: dict[str, Any] | None = None) -> LMRecipe:
    """Read and check a recipe, `changes` (dotted keys) made to it; RecipeError names the file and what is wrong first."""
    try:
        return _lm(changed(tomllib.loads(path.read_text("utf-8")), changes or {}))
    except RecipeError:
        raise
    except (OSError, TypeError, KeyError, ValueError, UsageError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise RecipeError(f"{path}: {what}") from error


WHERE = ("micro_rows", "recompute", "save_minutes")
"""What follows the machines and changes nothing but roundings: no part of a recipe's hash, so a training may move."""
KEYS = {
    "kind", "name", "backbone", "size", "schedule", "vocab_size", "model", "capacity", "training", "training_schedule",
}  # fmt: skip


def _lm(raw: dict[str, Any]) -> LMRecipe:
    only(raw, KEYS, "recipe")
    told = dict(raw["training"])
    meant = raw | {"training": {key: value for key, value in told.items() if key not in WHERE}}
    how = {name: told.pop(name, default) for name, default in HOW.items()}
    if how["precision"] not in PRECISIONS:
        raise ValueError(f"precision is {' or '.join(PRECISIONS)}, not {how['precision']!r}")
    phase = _phase(told)
    length, schedule = phase.stages[0].length, raw.get("schedule", "static")
    branch = Branch(name=raw["backbone"] + ("" if schedule == "static" else f"+{schedule}"), schedule=schedule)
    capacity: dict[str, Any] = raw.get("capacity", {})
    base = sized(
        raw["backbone"], raw["size"], capacity=Capacity.static(span=length, **capacity), train_length=length,
        vocab_size=raw.get("vocab_size", VOCAB), **raw.get("model", {}),
    )  # fmt: skip
    recipe = Recipe(
        name=raw["name"], backbone=raw["backbone"], capacity=capacity, trunk=Phase(stages=()), branch=phase, branches=(branch,),
        # the schedule is checked against the model as it is sized
        model={k: v for k, v in vars(base).items() if k not in ("mixer", "vocab_size", "capacity")},
        sha256=hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest(),
        training=make(TrainingTable, raw["training_schedule"]) if "training_schedule" in raw else None,
    )  # fmt: skip
    training = training_schedule(recipe, branch)
    config = model_config(recipe, branch, base.vocab_size)
    on_meta(config)  # refuses a capacity that the backbone cannot have
    return LMRecipe(recipe=recipe, config=config, size=raw["size"], training=training, **how)


def _phase(told: dict[str, Any]) -> Phase:
    length, batch = told.pop("length", 8192), told.pop("batch_tokens", 2**19)
    if batch % length:
        raise ValueError(f"batch_tokens = {batch} is no whole number of rows of {length} tokens")
    stage = Stage(length=length, tokens=told.pop("tokens"), batch_tokens=batch)
    return make(Phase, PAPER | told | {"stages": (stage,)})


def train_lm(
    lm: LMRecipe, data: Path, seed: int, out: Path, *, report: Callable[[dict[str, Any]], None]
) -> Path | None:
    """Train (or resume) one seed in every process of the launch; the folder of the finished model, None but in the main one.

    EnvironmentFault when transformers is missing, which writes the model at the end. It lies in
    `out/<backbone>[+schedule]@<size>/seed<k>`, as in the zoo, and in Hugging Face's form in the folder `hf` there.
    """
    if find_spec("transformers") is None:  # found out before the training, not after it
        raise EnvironmentFault("the finished model is written by transformers: pip install 'proteus-bench[hf]'")
    target = out / lm.entry / f"seed{seed}"
    if (target / "card.json").exists():
        return target
    rows = TokenRows(data, vocab_size=lm.config.vocab_size, documents=lm.config.capacity.origin == "document", seed=seed)
    work = out / ".work" / f"{lm.recipe.name}-{lm.recipe.sha256[:8]}-seed{seed}"
    model = on_meta(lm.config)
    for block in model.stack:
        block.recompute = lm.recompute
    trainer = PhaseTrainer(
        model, lm.phase, rows, work, label="lm", save_every=60 * lm.save_minutes, training=lm.training,
        precision=lm.precision, seed=seed, identity=f"{lm.recipe.sha256} {rows.identity}",
    )  # fmt: skip
    progress = trainer.run(report)
    weights = trainer.weights()
    trainer.processes.close()
    if weights is None:
        return None
    from proteus_models.hf_export import export

    model, card = _finished(lm, rows, weights, progress, seed)
    tokenizer = data / "tokenizer.json"
    export(model, tokenizer, rows.manifest.end, target / "hf")
    share_tokenizer(out, tokenizer)
    save_checkpoint(target, model, card)  # the card is written last of all
    return target


def _finished(
    lm: LMRecipe, rows: TokenRows, weights: dict[str, torch.Tensor], progress: Progress, seed: int
) -> tuple[DecoderLM, dict[str, Any]]:
    model = DecoderLM(lm.config)
    model.load_state_dict(weights)
    trunk = Progress(status="complete")
    card = make_card(lm.recipe, lm.recipe.branches[0], lm.config, seed, trunk, progress, model, lm.training) | {
        "size": lm.size, "protocol": "language model", "tokenizer": rows.manifest.tokenizer_sha256, "data": rows.manifest.source,
        "data_sha256": rows.identity, "precision": lm.precision,
    }  # fmt: skip
    return model, card
