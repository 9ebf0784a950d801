"""`train RECIPE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json


def train_command(recipe: Path, *, seed: int, out: Path | None, dry_run: bool, as_json: bool) -> int:
    """Train one seed of a recipe into ``out`` (a zoo folder; default runs-out/train/<recipe>). Resumes when repeated.

    Raises RecipeError (exit 3) for a recipe that cannot be read, EnvironmentFault (exit 4) for a folder that cannot be
    written, before any training.
    """
    from proteus_bench.store import FolderLock, prove_writable
    from proteus_models import grid
    from proteus_models.recipe import load_recipe

    loaded = load_recipe(recipe)
    if dry_run:
        plan = {**grid.dry_run(loaded), "seed": seed}
        if as_json:
            print_json(plan)
        else:
            print("\n".join(f"{key}: {value}" for key, value in plan.items()))
        return 0
    zoo = out if out is not None else Path("runs-out") / "train" / loaded.name
    work = zoo / ".work"
    prove_writable(work)
    with FolderLock(work):
        written = grid.train_recipe(loaded, seed, work, zoo=zoo, report=_report)
    if as_json:
        print_json({"recipe": loaded.name, "seed": seed, "models": [str(path) for path in written]})
    else:
        print("\n".join(f"trained {path}" for path in written))
    return 0


def _report(row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)
