"""`train RECIPE`: micro models, and language models in one process or as one of many."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json
from proteus_bench.errors import UsageError


def train_command(
    recipe: Path, *, schedules: Sequence[str], seed: int, out: Path | None, own_trunks: bool, dry_run: bool, as_json: bool
) -> int:
    """Train one seed of a recipe into ``out`` (a zoo folder; default runs-out/train/<recipe>). Resumes when repeated.

    ``schedules``: these beside the static twin, in place of the recipe's own. What the shipped zoo has of it (the trunk, the
    static twin from that trunk) is taken from there, unless ``own_trunks``.

    Raises RecipeError (exit 3) for a recipe that cannot be read, EnvironmentFault (exit 4) for a folder that cannot be
    written, before any training.
    """
    from proteus_bench.store import FolderLock, prove_writable
    from proteus_models import grid
    from proteus_models.recipe import load_recipe
    from proteus_models.zoo import zoo_root

    loaded = load_recipe(recipe, schedules)
    if dry_run:
        plan = {**grid.dry_run(loaded), "seed": seed}
        return _print_plan(plan, as_json)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("a micro recipe trains in one process: use --grid with --workers for several at a time")
    zoo = out if out is not None else Path("runs-out") / "train" / loaded.name
    work = zoo / ".work"
    prove_writable(work)
    with FolderLock(work):
        trunks = () if own_trunks else (zoo_root(),)
        written = grid.train_recipe(loaded, seed, work, zoo=zoo, report=_report, trunks=trunks)
    if as_json:
        print_json({"recipe": loaded.name, "seed": seed, "models": [str(path) for path in written]})
    else:
        print("\n".join(f"trained {path}" for path in written))
    return 0


def train_lm_command(
    recipe: Path, *, changes: Sequence[str], seed: int, out: Path | None, data: Path | None, plan: dict[str, Any] | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Train one seed of a language model on the shards in ``data``, or with ``plan`` print what it would cost.

    ``changes``: KEY=VALUE of the recipe, a value in TOML or a bare word. Every process of a launch calls it; the main one
    locks the folder, prints and writes. Errors as in `train_command`.
    """
    from proteus_bench.store import FolderLock, prove_writable
    from proteus_models.train_lm import load_lm, train_lm

    lm = load_lm(recipe, dict(_change(text) for text in changes))
    if plan is not None:
        from proteus_models.train_estimate import estimate

        return _print_plan({**estimate(lm, **plan), "seed": seed}, as_json)
    if data is None:
        raise UsageError("a language model needs --data, a folder that `proteus-bench shards` has written")
    zoo = out if out is not None else Path("runs-out") / "train" / lm.recipe.name
    if int(os.environ.get("RANK", "0")) > 0:
        train_lm(lm, data, seed, zoo, report=_report)
        return 0
    prove_writable(zoo / ".work")
    with FolderLock(zoo / ".work"):
        written = train_lm(lm, data, seed, zoo, report=_report)
    if as_json:
        print_json({"recipe": lm.recipe.name, "seed": seed, "models": [str(written)]})
    else:
        print(f"trained {written}")
    return 0


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UsageError(f"--set takes KEY=VALUE, not {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _print_plan(plan: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(plan)
    else:
        shown = ((k, f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else v) for k, v in plan.items())
        print("\n".join(f"{key}: {value}" for key, value in shown))
    return 0


def _report(row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)
