"""A probe's suite at another length: derived from the shipped one, without the tasks that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proteus_bench.errors import UsageError, unknown
from proteus_bench.runner.items import plan_suite, tasks
from proteus_bench.store import write_bytes

MARGIN = 64
"""Tokens by which the smallest lengths of a task's items may differ."""
PROBES = ("capacity", "interference", "gating")


def check_probe(name: str) -> None:
    """UsageError (exit 2) with the nearest name for anything but a probe."""
    if name not in PROBES:
        raise unknown("probe", name, PROBES)


def suite_at(name: str, length: int, tokenizer: Any, folder: Path) -> tuple[str, list[str]]:
    """Path of the suite ``name`` at ``length`` tokens, written into ``folder``, and the tasks that do not fit.

    UsageError when none fits.
    """
    from proteus_tasks import LengthBudgetError
    from proteus_tasks.freeze import render
    from proteus_tasks.suites import parse_suite

    suite = plan_suite(name)
    kept, left, least = [], [], 1 << 40
    for (task, _), count in suite.counts.items():
        what: dict[str, Any] = {"tokenizer": tokenizer, "data_seed": suite.data_seed, "split": suite.split}
        try:
            if not _fits(tasks()[task], length - MARGIN, what):  # near the edge some items fit and others do not
                for index in range(count):
                    tasks()[task].item(index, length=length, **what)
            kept.append(task)
        except LengthBudgetError as error:
            left.append(task)
            least = min(least, error.minimum)
    if not kept:
        raise UsageError(f"{length} tokens hold no task of {name}; the smallest length that holds one is {least}")
    count = max(suite.counts.values())
    text = "\n".join(
        [
            f'id = "{name}-{length}"', f'version = "{suite.version}"', f'description = "{name} at {length} tokens"',
            f"data_seed = {suite.data_seed}", f'split = "{suite.split}"', f"length = {length}", f"n = {count}",
            "tasks = [", *(f'    "{task}",' for task in kept), "]",
        ]
    )  # fmt: skip
    path = folder / f"{name}-{length}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, render(parse_suite(text.encode(), path.name, tasks()), {}).encode())
    return str(path), left


def _fits(task: Any, length: int, what: dict[str, Any]) -> bool:
    from proteus_tasks import LengthBudgetError

    try:
        task.item(0, length=max(1, length), **what)
    except LengthBudgetError:
        return False
    return True
