"""A grid of trainings: one TOML file that names recipes and seeds, with changes to a recipe where a comparison varies one.

    [[entries]]
    recipe = "gdn-micro.toml"          # beside the grid file
    seeds = [0, 1, 2, 3, 4]
    branches = ["gdn", "gdn+proteus"]  # optional: all of the recipe's

    [[entries]]
    recipe = "gdn-micro.toml"
    seeds = [0, 1, 2]
    set = { name = "gdn-micro-e", branches = [{ name = "gdn+proteus(blocks=4)", schedule = "proteus(blocks=4)" }] }

A job is one recipe and one seed: its trunk, then its branches. Jobs are in the order of the file. A trunk is a function of
(backbone, model, capacity, trunk, seed) and is kept in the zoo, so it is trained once for all jobs that share it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import UsageError
from proteus_models.grid import check_branches, kept_trunk, model_config, trunk_folder, work_folder
from proteus_models.recipe import Recipe, RecipeError, changed, from_table, only
from proteus_models.sizes import on_meta
from proteus_models.train_state import read_progress
from proteus_models.training_recipe import training_schedule


@dataclass(frozen=True, kw_only=True)
class Job:
    """One recipe and one seed, into the zoo at `zoo`."""

    recipe: Recipe
    seed: int
    branches: tuple[str, ...]
    zoo: Path
    trunks: tuple[Path, ...] = ()
    """Other zoos whose trunks may be taken."""

    @property
    def label(self) -> str:
        return f"{self.recipe.name} seed {self.seed}"

    @property
    def work(self) -> Path:
        return work_folder(self.recipe, self.seed, self.zoo / ".work")

    @property
    def missing(self) -> tuple[str, ...]:
        """Branches whose card is not in the zoo yet."""
        return tuple(b for b in self.branches if not (self.zoo / b / f"seed{self.seed}" / "card.json").exists())

    @property
    def trunk(self) -> Path:
        """Where its trunk is kept: jobs with one trunk share it."""
        return trunk_folder(self.recipe, self.seed, self.zoo)

    def tokens_left(self, done: Collection[Path] = ()) -> int:
        """At most: a stage may end early. `done`: trunks that jobs before this one will have trained."""
        missing = self.missing
        if not missing:
            return 0
        phases = {"trunk": self.recipe.trunk.tokens} | dict.fromkeys(missing, self.recipe.branch.tokens)
        if self.trunk in done or kept_trunk(self.recipe, self.seed, (self.zoo, *self.trunks)):
            del phases["trunk"]
        left = 0
        for name, tokens in phases.items():
            p = read_progress(self.work / name)
            finished = p is not None and p.status != "running"
            left += 0 if finished else max(0, tokens - (p.tokens if p else 0))
        return left


def load_grid(path: Path, zoo: Path, trunks: tuple[Path, ...] = ()) -> list[Job]:
    """Read and check a grid and every recipe in it; RecipeError names the file and the first thing that is wrong."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
        only(raw, {"entries"}, "grid")
        jobs = [job for entry in raw["entries"] for job in _jobs(entry, path.parent, zoo, trunks)]
        _check(jobs)
    except RecipeError:
        raise
    except (OSError, TypeError, KeyError, ValueError, AttributeError, UsageError) as error:
        what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise RecipeError(f"{path}: {what}") from error
    return jobs


def _jobs(entry: dict[str, Any], folder: Path, zoo: Path, trunks: tuple[Path, ...]) -> list[Job]:
    only(entry, {"recipe", "seeds", "branches", "set"}, "entry")
    source, changes = folder / entry["recipe"], entry.get("set", {})
    if changes and "name" not in changes:
        raise ValueError(f"an entry that changes {entry['recipe']} must set its name, or two trainings would share it")
    try:
        raw = tomllib.loads(source.read_text("utf-8"))
        recipe = from_table(changed(raw, changes))
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise RecipeError(f"{source}: {error}") from error
    seeds, branches = entry["seeds"], tuple(entry.get("branches", ()))
    if not seeds or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in seeds):
        raise ValueError(f"seeds of {recipe.name} must be whole numbers, not {seeds}")
    check_branches(recipe, branches)
    for branch in recipe.branches:  # a schedule that the model cannot have is found before hours of other trainings
        on_meta(model_config(recipe, branch, vocab=1))
        training_schedule(recipe, branch)
    wanted = branches or tuple(b.name for b in recipe.branches)
    return [Job(recipe=recipe, seed=seed, branches=wanted, zoo=zoo, trunks=trunks) for seed in seeds]


def _check(jobs: list[Job]) -> None:
    """Two jobs must not write one model, nor one work folder."""
    if not jobs:
        raise ValueError("no entries")
    taken: dict[tuple[str, int], str] = {}
    folders: set[Path] = set()
    for job in jobs:
        for branch in job.branches:
            if (branch, job.seed) in taken:
                raise ValueError(f"{taken[branch, job.seed]} and {job.recipe.name} would both train {branch} seed {job.seed}")
            taken[branch, job.seed] = job.recipe.name
        if job.work in folders:
            raise ValueError(f"{job.label} stands twice: name all its branches in one entry")
        folders.add(job.work)
