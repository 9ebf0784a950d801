"""A recipe and a seed -> trained models of the zoo: the shared trunk, then every branch from its weights.

A finished trunk is kept beside the models (`trunks/<backbone>-<hash>/seed<k>`), so a schedule of somebody else's branches from the
very weights that ours branched from.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.grammar import parse_model
from proteus_bench.registry import schedule_classes
from proteus_bench.schedules import Capacity
from proteus_kernels import dispatch
from proteus_models.checkpoint import load_checkpoint, read_json, save_checkpoint, sha256_file
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Branch, Phase, Recipe, RecipeError
from proteus_models.sizes import on_meta
from proteus_models.titans import mean_active
from proteus_models.train import SAVE_SECONDS, PhaseTrainer
from proteus_models.train_data import DataConfig, RowSource
from proteus_models.train_state import Progress
from proteus_models.training_recipe import training_schedule
from proteus_models.training_schedule import TrainingSchedule
from proteus_models.zoo import tokenizer as zoo_tokenizer
from proteus_models.zoo import zoo_root

Report = Callable[[dict[str, Any]], None]


def dry_run(recipe: Recipe) -> dict[str, Any]:
    """Parameters and tokens without training: what the recipe would cost."""
    made = [model_config(recipe, each, zoo_tokenizer().vocab_size) for each in recipe.branches]
    model = DecoderLM(made[0])
    n = sum(p.numel() for p in model.parameters())
    tokens = recipe.trunk.tokens + recipe.branch.tokens * len(recipe.branches)
    body = n - model.embed.weight.numel()
    return {
        "recipe": recipe.name, "recipe_sha256": recipe.sha256, "parameters": n, "trunk_tokens": recipe.trunk.tokens,
        "branch_tokens": recipe.branch.tokens, "branches": [b.name for b in recipe.branches], "tokens_per_seed": tokens,
        "flops_per_seed_6nd_without_embedding": 6 * body * tokens,
    }  # fmt: skip


def train_recipe(
    recipe: Recipe, seed: int, work: Path, *, zoo: Path, only: tuple[str, ...] = (), report: Report = print,
    save_every: float = SAVE_SECONDS, trunks: tuple[Path, ...] = (),
) -> list[Path]:  # fmt: skip
    """Train (or resume) one seed; finished branches are written to `zoo/<name>/seed<k>` and never trained twice.

    A killed training loses at most `save_every` seconds. `trunks`: other zoos, whose trunk is taken when this one has none, and
    whose models that branched from it in the same way are copied.
    """
    check_branches(recipe, only)
    tokenizer = zoo_tokenizer()
    configs = {branch.name: model_config(recipe, branch, tokenizer.vocab_size) for branch in recipe.branches}
    for config in configs.values():  # what cannot be trained is refused before anything is
        on_meta(config)
    base = work_folder(recipe, seed, work)
    trunk, trunk_progress, trunk_sha = _trunk(recipe, seed, base / "trunk", (zoo, *trunks), report, save_every)
    written = []
    for branch in recipe.branches:
        target = zoo / branch.name / f"seed{seed}"
        if only and branch.name not in only:
            continue
        if (target / "card.json").exists():
            written.append(target)
            continue
        config = configs[branch.name]
        key = _branch_key(recipe, config, trunk_sha) if trunk_sha else ""
        if key and (same := _same_model(branch, seed, key, trunks)) is not None:
            _copy_model(same, target)
            share_tokenizer(zoo, zoo_root() / "tokenizer.json")
            written.append(target)
            continue
        training = training_schedule(recipe, branch)
        drawn = recipe.first_seed + seed
        model, progress = _phase(
            config, trunk, recipe.branch, base / branch.name, "branch", drawn, report, save_every, training
        )
        model.set_capacity(config.capacity)  # the span back at N
        facts = {
            "protocol": "branching", "tokenizer": tokenizer.fingerprint, "data": asdict(DataConfig(**recipe.branch.data)),
        }  # fmt: skip
        card = make_card(recipe, branch, config, seed, trunk_progress, progress, model, training) | facts
        if key:
            card |= {"trunk_sha256": trunk_sha, "branch_key": key}
        if recipe.weights != "fp32":
            card["weights"] = recipe.weights
        save_checkpoint(target, model, card, recipe.weights)
        share_tokenizer(zoo, zoo_root() / "tokenizer.json")
        written.append(target)
    return written


def trunk_folder(recipe: Recipe, seed: int, zoo: Path) -> Path:
    """Where a zoo keeps a trunk: its name holds a hash of all that the weights follow from, and the seed it was drawn with."""
    r = recipe
    told = json.dumps([r.backbone, r.model, r.capacity, asdict(r.trunk)], sort_keys=True)
    return zoo / "trunks" / f"{r.backbone}-{hashlib.sha256(told.encode()).hexdigest()[:8]}" / f"seed{r.first_seed + seed}"


def kept_trunk(recipe: Recipe, seed: int, zoos: tuple[Path, ...]) -> Path | None:
    """The folder of the trunk in the first zoo that has it whole; None for a recipe whose trunk is empty."""
    folders = (trunk_folder(recipe, seed, zoo) for zoo in zoos if recipe.trunk.tokens)
    return next((folder for folder in folders if (folder / "card.json").exists()), None)


def _trunk(
    recipe: Recipe, seed: int, work: Path, zoos: tuple[Path, ...], report: Report, save_every: float
) -> tuple[dict[str, torch.Tensor], Progress, str]:
    """Weights of the trunk, its progress and the sha256 of its file: a kept one, or trained and then kept.

    An empty trunk, one that diverged and one that was never asked anything are not kept and have no sha256.
    """
    if (kept := kept_trunk(recipe, seed, zoos)) is not None:
        return _read_trunk(kept)
    config = model_config(recipe, None, zoo_tokenizer().vocab_size)
    model, progress = _phase(config, None, recipe.trunk, work, "trunk", recipe.first_seed + seed, report, save_every)
    if not (recipe.trunk.tokens and progress.status == "complete" and math.isfinite(progress.answer_loss)):
        return model.state_dict(), progress, ""
    folder = trunk_folder(recipe, seed, zoos[0])
    if kept_trunk(recipe, seed, zoos[:1]) is None:  # another job may have kept the same one meanwhile
        model.set_capacity(config.capacity)  # the span back at N
        facts = {"backbone": recipe.backbone, "drawn_with": recipe.first_seed + seed, "data_split": "train"}
        save_checkpoint(folder, model, facts | {"tokenizer": zoo_tokenizer().fingerprint, "trunk": vars(progress)})
    return model.state_dict(), progress, sha256_file(folder / "model.safetensors")


def _read_trunk(folder: Path) -> tuple[dict[str, torch.Tensor], Progress, str]:
    model, card, sha = load_checkpoint(folder)
    try:
        progress = Progress(**card["trunk"])
    except (KeyError, TypeError) as error:
        raise InvalidFileError(f"{folder / 'card.json'}: not the card of a trunk ({error})") from error
    if card.get("tokenizer") != zoo_tokenizer().fingerprint:
        raise InvalidFileError(f"{folder}: trained with another tokenizer")
    return model.state_dict(), progress, sha


def _branch_key(recipe: Recipe, config: ModelConfig, trunk_sha: str) -> str:
    """A hash of all that a branch's weights follow from, its seed apart."""
    stored = [] if recipe.weights == "fp32" else [recipe.weights]
    told = json.dumps([trunk_sha, asdict(recipe.branch), config.as_dict(), *stored], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def _same_model(branch: Branch, seed: int, key: str, zoos: tuple[Path, ...]) -> Path | None:
    folders = (zoo / branch.name / f"seed{seed}" for zoo in zoos)
    return next((f for f in folders if (f / "card.json").exists() and read_json(f / "card.json").get("branch_key") == key), None)


def _copy_model(source: Path, target: Path) -> None:
    """Whole or not at all: a folder with a card is a model."""
    copy = target.parent / f".{target.name}-{os.getpid()}"
    for leftover in (copy, target):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.copytree(source, copy)
    copy.replace(target)


def work_folder(recipe: Recipe, seed: int, work: Path) -> Path:
    """Where the states of one training lie; another recipe text has another folder."""
    return work / f"{recipe.name}-{recipe.sha256[:8]}-seed{seed}"


def check_branches(recipe: Recipe, only: tuple[str, ...]) -> None:
    """UsageError for a name that is no branch of the recipe."""
    names = [b.name for b in recipe.branches]
    for name in only:
        if name not in names:
            raise UsageError(f"recipe {recipe.name} has no branch {name!r}; it has {', '.join(names)}")


def share_tokenizer(zoo: Path, source: Path) -> None:
    """A zoo of its own answers questions only with the tokenizer that its models were trained with."""
    if not (zoo / "tokenizer.json").exists():
        own = zoo / f".tokenizer-{os.getpid()}"  # whole or not at all, though trainings that end together both write it
        shutil.copyfile(source, own)
        own.replace(zoo / "tokenizer.json")


def model_config(recipe: Recipe, branch: Branch | None, vocab: int) -> ModelConfig:
    """The model of a branch; the trunk (None) is the static model with the recipe's own axis and start."""
    span = recipe.model["train_length"]
    static = Capacity.static(span=span, **recipe.capacity)  # type: ignore[arg-type]
    capacity = static
    if branch is not None and (training := training_schedule(recipe, branch)) is not None:
        capacity = training.capacity(static)
    elif branch is not None and branch.schedule != "static":
        spec = parse_model(f"{recipe.backbone}+{branch.schedule}", models=[recipe.backbone], schedules=schedule_classes())
        capacity = spec.capacity(static)
    try:
        return ModelConfig(mixer=recipe.backbone, vocab_size=vocab, capacity=capacity, **recipe.model)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"recipe {recipe.name}: {error}") from error


def _phase(
    config: ModelConfig, weights: dict[str, Any] | None, phase: Phase, folder: Path, label: str, seed: int,
    report: Report, save_every: float, training: TrainingSchedule | None = None,
) -> tuple[DecoderLM, Progress]:  # fmt: skip
    torch.manual_seed(seed)
    model = DecoderLM(config)
    if weights is not None:
        model.load_state_dict(weights)
    source = _source(json.dumps(phase.data), seed)
    trainer = PhaseTrainer(model, phase, source, folder, label=label, training=training, save_every=save_every)
    progress = trainer.run(lambda row: report({"model": folder.name, "seed": seed, **row}))
    return model, progress


@lru_cache(maxsize=2)
def _source(data: str, seed: int) -> RowSource:
    """The rows of a phase: pure in their identity, so branches share one reading of the texts."""
    return RowSource(zoo_tokenizer(), DataConfig(**json.loads(data)), seed)


def make_card(
    recipe: Recipe, branch: Branch, config: ModelConfig, seed: int, trunk: Progress, own: Progress, model: DecoderLM,
    training: TrainingSchedule | None,
) -> dict[str, Any]:  # fmt: skip
    """What every trained model's card says; the caller adds its protocol and its data."""
    card = {
        "name": branch.name, "seed": seed, "drawn_with": recipe.first_seed + seed,
        "status": "diverged" if "diverged" in (trunk.status, own.status) else "complete",
        "train_length": config.train_length, "capacity": config.capacity.as_dict(), "mean_active": mean_active(config),
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "state_bytes": model.init_state(1).nbytes,
        "recipe": recipe.name, "recipe_sha256": recipe.sha256, "data_split": "train",
        "trunk": _summary(trunk), "branch": _summary(own), "tokens": trunk.tokens + own.tokens,
        "machine": {
            "torch": torch.__version__, "threads": torch.get_num_threads(), "python": platform.python_version(),
            "kernels": dispatch.used(),
        },
        "written": time.strftime("%Y-%m-%d", time.gmtime()),
    }  # fmt: skip
    return card if training is None else card | {"training_schedule": training.as_dict()}


def _summary(p: Progress) -> dict[str, Any]:
    kept = ("step", "tokens", "answer_loss", "digit_accuracy", "crossed_90_at", "seconds", "status", "history")
    # a phase without steps (an empty trunk) has no loss, and JSON has no NaN
    plain = {k: v if math.isfinite(v) else None for k in kept if isinstance(v := getattr(p, k), float)}
    plain = {k: v if v is None else round(v, 4) for k, v in plain.items()}
    return json.loads(json.dumps({k: plain.get(k, getattr(p, k)) for k in kept}))
