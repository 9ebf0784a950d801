"""A training recipe: one TOML file, strict, for a shared trunk and the branches that continue from it.

Branching protocol: per seed ONE static model is trained on short rows until recall is there (the trunk); every branch then
continues from those weights on long rows with its own capacity and equal tokens, so twins are paired by construction.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


class RecipeError(ValueError):
    """A recipe that cannot be read as it stands."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Stage:
    """`tokens` on rows of `length`; `batch_tokens` a step. `until` ends a stage early when the running answer loss is under it."""

    length: int
    tokens: int
    batch_tokens: int = 4096
    until: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Stages over one kind of rows (`data`: fields of DataConfig) under one learning-rate schedule.

    Warm-up, then `shape`: linear (constant, then down to `floor` over the last `decay` of the tokens) or cosine (down to
    `floor` from the start). `decayed`: what weight decay shrinks, see `train_optim`. `micro_rows`: rows that a process takes
    at a time, 0 for all of a step.
    """

    stages: tuple[Stage, ...]
    data: dict[str, Any] = field(default_factory=dict)
    lr: float = 3e-3
    muon_lr: float = 0.0
    warmup_steps: int = 100
    decay: float = 0.3
    weight_decay: float = 0.01
    clip: float = 1.0
    shape: str = "linear"
    floor: float = 0.02
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    decayed: str = "matrices"
    micro_rows: int = 0

    def __post_init__(self) -> None:
        if self.shape not in ("linear", "cosine") or self.decayed not in ("matrices", "linear"):
            raise ValueError(f"shape is linear or cosine and decayed matrices or linear, not {self.shape}, {self.decayed}")

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.stages)

    @property
    def steps(self) -> int:
        """Optimizer steps when no stage ends early: the last step of a stage may overshoot its tokens."""
        return sum(-(-s.tokens // (max(1, s.batch_tokens // s.length) * s.length)) for s in self.stages)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One model of the zoo and its schedule (`static`, or the grammar's text after the plus sign).

    While training, the span follows the row length, up to N at the end.
    """

    name: str
    schedule: str


@dataclass(frozen=True, kw_only=True)
class TrainingTable:
    """`[training_schedule]` of a backbone whose schedule counts optimizer steps: its span, and what a locked block is kept from.

    An option that is left out follows the branch's schedule text (gate, decay_locked); one that contradicts it is refused.
    """

    span: int
    levels: tuple[int, ...] = ()
    mask_grad: bool | None = None
    mask_decay: bool | None = None
    mask_read: bool | None = None
    per_block_step: bool = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    name: str
    backbone: str
    model: dict[str, Any]
    capacity: dict[str, str]
    trunk: Phase
    branch: Phase
    branches: tuple[Branch, ...]
    sha256: str
    training: TrainingTable | None = None
    first_seed: int = 0
    """Seed k of the zoo is drawn with first_seed + k: replicates that share neither weights nor rows with another recipe's."""
    weights: str = "fp32"
    """What the matrices of its models are written in: fp32 or bf16."""


def load_recipe(path: Path, schedules: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe; RecipeError names the file and the first thing that is wrong.

    `schedules`: train these in place of the recipe's own ones, beside its static branch.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
        if schedules:
            raw["branches"] = _branches(raw["branches"], schedules)
        return from_table(raw)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, KeyError, ValueError) as error:
        raise RecipeError(f"{path}: {error}") from error


def from_table(raw: dict[str, Any]) -> Recipe:
    """A recipe from its TOML's table; its sha256 is that of the whole table. ValueError, TypeError, KeyError: not one."""
    known = {"name", "backbone", "model", "capacity", "trunk", "branch", "branches", "training_schedule", "first_seed", "weights"}
    only(raw, known, "recipe")
    digest = hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
    branches = tuple(make(Branch, b) for b in raw["branches"])
    names = [b.name for b in branches]
    if len(set(names)) != len(names):
        raise ValueError("two branches have one name")
    return Recipe(
        name=raw["name"], backbone=raw["backbone"], model=raw["model"], capacity=raw["capacity"],
        trunk=_phase(raw["trunk"]), branch=_phase(raw["branch"]), branches=branches, sha256=digest,
        training=make(TrainingTable, raw["training_schedule"]) if "training_schedule" in raw else None,
        first_seed=_seed(raw.get("first_seed", 0)), weights=_weights(raw.get("weights", "fp32")),
    )  # fmt: skip


def _seed(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"first_seed is a whole number, not {value!r}")
    return value


def _weights(value: Any) -> str:
    if value not in ("fp32", "bf16"):
        raise ValueError(f"weights is fp32 or bf16, not {value!r}")
    return str(value)


def _branches(raw: list[dict[str, Any]], schedules: Sequence[str]) -> list[dict[str, str]]:
    """The static branch and one per schedule, named as the zoo names them: `gdn@small` -> `gdn+late@small`."""
    static = next((b for b in raw if b["schedule"] == "static"), None)
    if static is None:
        raise ValueError("it has no static branch that another schedule could be compared with")
    stem, at, size = static["name"].partition("@")
    others = [s for s in dict.fromkeys("".join(s.split()) for s in schedules) if s != "static"]
    return [static] + [{"name": f"{stem}+{s}{at}{size}", "schedule": s} for s in others]


def _phase(raw: dict[str, Any]) -> Phase:
    return make(Phase, raw | {"stages": tuple(make(Stage, s) for s in raw["stages"])})


def changed(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A recipe's table with `changes`: keys with dots go into its tables. ValueError for a table that is not there."""
    raw = copy.deepcopy(raw)
    for key, value in changes.items():
        *path, last = key.split(".")
        table = raw
        for name in path:
            if not isinstance(table.get(name), dict):
                raise ValueError(f"set names {key!r}, but the recipe has no table {name!r}")
            table = table[name]
        table[last] = value
    return raw


def make(kind: type, raw: dict[str, Any]) -> Any:
    """A dataclass from a table of TOML; ValueError names an unknown key."""
    only(raw, {f.name for f in fields(kind)}, kind.__name__.lower())
    return kind(**raw)


def only(raw: dict[str, Any], known: set[str], where: str) -> None:
    """ValueError for a key that is not known."""
    unknown = sorted(set(raw) - known)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {where}; known: {', '.join(sorted(known))}")
