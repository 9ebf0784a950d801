"""Scores by role and interference on the leaderboard: those of the probe, and refused when they do not add up."""

from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard.effects import effects_of
from proteus_bench.leaderboard.entry import read_entry
from proteus_bench.leaderboard.item_scores import item_text, role_scores
from proteus_bench.leaderboard.schema import Entry, EntryCell
from proteus_bench.probes.measures import interference
from proteus_bench.probes.text import Record

ROOT = Path(__file__).resolve().parents[2]
SEEDS, ITEMS, LENGTH = 3, 6, 512
TASKS = {"interference.a4_b0": "A", "interference.a0_b4": "B", "interference.a4_b4": "AB"}


def asked(task: str) -> list[str]:
    """The role of each question, in an order that is not that of the facts."""
    return sorted(4 * list(TASKS[task]), key=lambda role: role == "A")


def answered(task: str, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng([len(task), seed, sum(map(ord, task))])
    return [
        {"index": index, "question": q, "strict": float(rng.integers(0, 3)) / 2}
        for index, q in product(range(ITEMS), range(len(asked(task))))
    ]


def facts(task: str) -> list[Any]:
    """Items whose k-th question asks for fact n - 1 - k."""
    roles = asked(task)[::-1]
    meta = {"roles": roles, "asked": list(range(len(roles)))[::-1]}
    return [SimpleNamespace(scored=SimpleNamespace(meta=meta))] * ITEMS


def entry() -> Entry:
    cells = []
    for task in TASKS:
        rows = [answered(task, seed) for seed in range(SEEDS)]
        cells.append(
            EntryCell.model_construct(
                task=task, length=LENGTH, roles=role_scores(rows, facts(task)), scores=[item_text(r) for r in rows]
            )
        )
    return Entry.model_construct(cells=cells)


def test_effects_are_those_of_the_probe() -> None:
    found = [
        Record("m", task, LENGTH, seed, row["index"], "", asked(task)[row["question"]], 0, 0, row["strict"], 0.0, None)
        for task, seed in product(TASKS, range(SEEDS))
        for row in answered(task, seed)
    ]
    wanted = {row["measure"]: row for row in interference(found) if row["column"] == "strict"}
    seen = {effect.name: effect for effect in effects_of(entry())}
    assert set(seen) == set(wanted) == {"retroactive", "proactive"}
    for name, effect in seen.items():
        assert effect.diff == pytest.approx(wanted[name]["value"], abs=1e-7) and abs(effect.diff) > 0.01
        assert effect.ci_low == pytest.approx(wanted[name]["ci_low"], abs=1e-7)
        assert effect.ci_high == pytest.approx(wanted[name]["ci_high"], abs=1e-7)


def test_items_without_roles_or_not_made_again_have_none() -> None:
    plain: list[Any] = [SimpleNamespace(scored=SimpleNamespace(meta={}))]
    rows = [answered("interference.a4_b0", 0)]
    assert role_scores(rows, None) == role_scores(rows, plain) == []


def test_roles_that_are_not_the_items_scores_are_refused(tmp_path: Path) -> None:
    held = [path for path in sorted((ROOT / "leaderboards" / "entries").glob("*.json")) if '"interference"' in path.read_text()]
    path = Path(shutil.copy(held[0], tmp_path))
    read_entry(path)
    data = json.loads(path.read_text())
    cell = next(cell for cell in data["cells"] if len(cell["roles"]) == 2)
    cell["roles"][0]["scores"][0] = " ".join(["1"] * len(cell["roles"][0]["scores"][0].split()))
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidFileError, match="the scores of its roles are not those of its items"):
        read_entry(path)
