"""What the tests of the leaderboard share: refusals in one clear line, and a forger who makes a lie add up."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard import Options, Verification, verify
from proteus_bench.runner.results import cell_result
from proteus_bench.store import CellKey, digest, read_log
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.log import _line
from proteus_bench.store.run_file import run_id_of

Edit = Callable[[list[dict[str, Any]]], None]


def refused(call: Callable[[], Any], *parts: str) -> None:
    """InvalidFileError, exit 3, one line that can be shown in a terminal."""
    with pytest.raises(InvalidFileError) as caught:
        call()
    text = str(caught.value)
    assert caught.value.exit_code == 3 and "\n" not in text and text.isprintable() and len(text) < 1000, text
    assert all(part in text for part in parts), text


def look(path: Path) -> None:
    verify(path, Options(level=0))


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def manifest(bundle: Path, change: Callable[[Any], Any]) -> None:
    edit(bundle / "bundle.json", change)


def run_folder(bundle: Path) -> Path:
    return next((bundle / "runs").iterdir())


class Forger:
    """A run folder whose owner lies, and makes everything else fit the lie."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = json.loads((folder / "run.json").read_text())

    def record(self, label: str, seed: int = 0) -> dict[str, Any]:
        return next(r for r in self.run["records"] if (r["label"], r["seed"]) == (label, seed))

    def cell(self, label: str, task: str, seed: int = 0) -> dict[str, Any]:
        return next(c for c in self.record(label, seed)["cells"] if c["task"] == task)

    def rows(self, label: str, task: str, edit: Edit, seed: int = 0, metrics: bool = True) -> None:
        """Edit the rows of a cell; checksums, hash and metrics follow."""
        cell = self.cell(label, task, seed)
        path = self.folder / cell["file"]
        rows = read_log(path)
        edit(rows)
        path.write_bytes(b"".join(map(_line, rows)))
        cell["sha256"] = file_digest(path)
        if not metrics:
            return
        again = cell_result(CellKey(label, task, cell["length"], seed), rows, complete=True)
        cell.update(again.measured(), status=again.status)

    def save(self) -> Path:
        """Write run.json, with the addresses of what is in it."""
        for record in self.run["records"]:
            record["record_id"] = digest(record["identity"])
        self.run["run_id"] = run_id_of([record["record_id"] for record in self.run["records"]])
        (self.folder / "run.json").write_text(json.dumps(self.run))
        return self.folder


def fails(found: Verification, level: int, *parts: str) -> None:
    assert not found.ok and found.reached == level - 1, (found.reached, found.refused)
    reasons = [reason for at, reason in found.refused if at == level]
    assert reasons and all(any(part in reason for reason in reasons) for part in parts), found.refused
    assert all("\n" not in reason for reason in reasons)
