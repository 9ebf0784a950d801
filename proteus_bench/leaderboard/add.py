"""`leaderboard add`: a run folder is hostile until its schema, paths, hashes and metrics have been checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard.build import build_leaderboard
from proteus_bench.leaderboard.entry import SCHEMA, Entry, entry_id, read_entry
from proteus_bench.runner.results import cell_result, item_scores, method_score
from proteus_bench.stats import Interval, cell_ci, crossed_anova
from proteus_bench.store import CellKey, FolderLock, canonical_json, prove_writable, read_log, write_json
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.run_file import CellBlock, Record, RunFile, read_run_file

MAX_LOG_BYTES = 1 << 30


@dataclass(frozen=True)
class Added:
    """One entry of a run. ``new``: False when the same entry was there already."""

    id: str
    model: str
    suite: str
    path: Path
    new: bool
    rankable: bool
    reason: str


def add_run(run: Path, into: Path) -> list[Added]:
    """Check a run folder, write an entry per method under ``into/entries`` and rebuild ``into/leaderboard.json``.

    Raises InvalidFileError (exit 3) for a folder that fails a check, for unfinished or failed cells, and for an entry
    whose values differ from those that stand under the same identity; EnvironmentFault (exit 4) when nothing can be
    written. Nothing is written unless all entries of the run pass.
    """
    document = read_run_file(run / "run.json")
    entries = entries_of(run, document)
    prove_writable(into / "entries")
    with FolderLock(into):
        added = [_place(entry, into) for entry in entries]
        for entry, place in zip(entries, added, strict=True):
            if place.new:
                write_json(place.path, _dump(entry))
        build_leaderboard(into)
    return added


def _dump(entry: Entry) -> dict[str, Any]:
    return entry.model_dump(mode="json", by_alias=True)


def _place(entry: Entry, into: Path) -> Added:
    path = into / "entries" / f"{entry.id}.json"
    new = not path.exists()
    if not new and canonical_json(_dump(read_entry(path))) != canonical_json(_dump(entry)):
        raise InvalidFileError(f"{path} holds other values for the same models, seeds and suite; it is not overwritten")
    return Added(entry.id, entry.label, entry.suite.name, path, new, entry.ranked, entry.reason)


def entries_of(run: Path, document: RunFile) -> list[Entry]:
    """The entries of a checked run.json, computed from the rows of its logs."""
    labels = list(dict.fromkeys(record.label for record in document.records))
    return [_entry(run, document, [r for r in document.records if r.label == label]) for label in labels]


def _entry(run: Path, document: RunFile, records: list[Record]) -> Entry:
    first = records[0]
    if len({record.seed for record in records}) != len(records):
        raise InvalidFileError(f"{first.label}: a seed stands twice")
    rows: dict[CellKey, list[dict[str, Any]]] = {}
    for record in records:
        held = {"seed": record.seed, "suite": document.suite.model_dump(), "scorer": document.scorer.model_dump()}
        if any(record.identity.get(key) != value for key, value in held.items()):
            where = f"{record.label} seed {record.seed}"
            raise InvalidFileError(f"{where}: its identity is of another seed, suite or scorer")
        for cell in record.cells:
            key = CellKey(record.label, cell.task, cell.length, record.seed)
            if key in rows:
                raise InvalidFileError(f"{record.label}: {cell.task} at {cell.length} stands twice")
            rows[key] = _checked_rows(run, record, cell, key)
    places = sorted({(key.task, key.length) for key in rows})
    if len(rows) != len(places) * len(records):
        raise InvalidFileError(f"{first.label}: its seeds were not run on the same tasks and lengths")
    ranked, reason = _rankable(records)
    identity = {"suite": document.suite.model_dump(), "records": sorted(record.record_id for record in records)}
    values = {
        "schema": SCHEMA,
        "id": entry_id(identity),
        "identity": identity,
        "label": first.label,
        "model": first.model,
        "schedule": first.schedule,
        "suite": document.suite.model_dump(),
        "scorer": document.scorer.model_dump(),
        "seeds": sorted(record.seed for record in records),
        "ranked": ranked,
        "reason": reason,
        "tier": "V1",
        "n_params": first.n_params,
        "state_bytes": first.state_bytes,
        "train_length": first.train_length,
        "trained_schedule": first.trained_schedule,
        "capacity": first.capacity,
        "overall": _score_block(_overall(rows, places)),
        "cells": [_entry_cell(first.label, task, length, rows) for task, length in places],
    }
    return Entry.model_validate(values)


def _rankable(records: list[Record]) -> tuple[bool, str]:
    if any(record.status == "partial" for record in records):
        return False, "a part of the suite's items only"
    if len(records) < 2:
        return False, "one seed"
    return True, ""


def _checked_rows(run: Path, record: Record, cell: CellBlock, key: CellKey) -> list[dict[str, Any]]:
    """The rows of a cell, after its path, hash and metrics have been checked."""
    where = f"{record.label} seed {record.seed}, {cell.task} at {cell.length}"
    if cell.status not in ("complete", "diverged"):
        raise InvalidFileError(f"{where}: the cell is {cell.status}; finish the run first")
    path = run / cell.file
    if Path(cell.file).is_absolute() or ".." in Path(cell.file).parts or path.is_symlink() or not path.is_file():
        raise InvalidFileError(f"{where}: {cell.file[:200]} is no file of the run folder")
    if not path.resolve().is_relative_to(run.resolve()) or path.stat().st_size > MAX_LOG_BYTES:
        raise InvalidFileError(f"{where}: {cell.file[:200]} lies outside of the run folder or is too large")
    if file_digest(path) != cell.sha256:
        raise InvalidFileError(f"{where}: {cell.file[:200]} does not match its sha256")
    rows = read_log(path)
    try:
        _check_metrics(rows, cell, key)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidFileError(f"{where}: {str(error)[:200]}") from error
    return rows


def _check_metrics(rows: list[dict[str, Any]], cell: CellBlock, key: CellKey) -> None:
    places = {(row["index"], row["question"]) for row in rows}
    if len(places) != len(rows) or len(rows) != cell.rows:
        raise ValueError("rows are missing, or stand twice")
    if not all(isinstance(row["strict"], float) and 0 <= row["strict"] <= 1 for row in rows):
        raise ValueError("a score is not a number between 0 and 1")
    again = cell_result(key, rows, complete=True)
    if again.items_sha256 != cell.items_sha256:
        raise ValueError("its items_sha256 is not that of its rows")
    if again.n != cell.n or cell.score is None or not math.isclose(again.interval.mean, cell.score, abs_tol=1e-9):
        raise ValueError("its score is not the mean of its rows")


def _overall(rows: Mapping[CellKey, list[dict[str, Any]]], places: list[tuple[str, int]]) -> Interval:
    matrices = [item_scores(_of(rows, task, length)) for task, length in places]
    if len(matrices[0].seeds) == 1 and len(matrices) == 1:
        return cell_ci(matrices[0].scores[0])
    return crossed_anova([matrix.scores for matrix in matrices])


def _of(rows: Mapping[CellKey, list[dict[str, Any]]], task: str, length: int) -> dict[CellKey, list[dict[str, Any]]]:
    return {key: found for key, found in rows.items() if (key.task, key.length) == (task, length)}


def _score_block(interval: Interval) -> dict[str, Any]:
    return {
        "score": interval.mean,
        "ci_low": interval.lo,
        "ci_high": interval.hi,
        "ci_method": interval.method,
        "n": interval.n,
    }


def _entry_cell(label: str, task: str, length: int, rows: Mapping[CellKey, list[dict[str, Any]]]) -> dict[str, Any]:
    found = method_score(label, task, length, _of(rows, task, length))
    return {**_score_block(found.interval), "task": task, "length": length, "logprob": found.logprob}
