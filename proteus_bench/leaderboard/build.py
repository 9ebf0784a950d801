"""leaderboard.json: a pure function of the entries, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from proteus_bench.leaderboard.entry import Entry, read_entry
from proteus_bench.store.atomic import write_json

SCHEMA = "proteus-bench/leaderboard@1"


def build_leaderboard(folder: Path) -> Path:
    """Rebuild ``folder/leaderboard.json`` from ``folder/entries/*.json`` and return its path.

    Raises InvalidFileError (exit 3) for an entry that fails its checks. Rows are sorted by score and carry no rank: a
    rank needs paired comparisons, and point values alone would order ties.
    """
    entries = [read_entry(path) for path in sorted((folder / "entries").glob("*.json"))]
    boards: dict[tuple[str, str, str, str, str], list[Entry]] = {}
    for entry in entries:
        suite, scorer = entry.suite, entry.scorer
        boards.setdefault((suite.name, suite.version, suite.sha256, scorer.id, scorer.version), []).append(entry)
    document = {
        "schema": SCHEMA,
        "boards": [
            {
                "suite": {"name": key[0], "version": key[1], "sha256": key[2]},
                "scorer": {"id": key[3], "version": key[4]},
                "rows": [_row(entry) for entry in sorted(members, key=_order)],
            }
            for key, members in sorted(boards.items())
        ],
    }
    path = folder / "leaderboard.json"
    write_json(path, document)
    return path


def _order(entry: Entry) -> tuple[Any, ...]:
    return (not entry.ranked, -entry.overall.score, entry.label, entry.id)


def _row(entry: Entry) -> dict[str, Any]:
    row = entry.model_dump(mode="json", exclude={"schema_", "identity", "suite", "scorer"})
    return {**row, "entry": f"entries/{entry.id}.json"}
