"""Run folders to methods with their scores. A folder is hostile until its schema, paths, hashes and rows are checked."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proteus_bench.errors import BenchError, InvalidFileError
from proteus_bench.registry import Registry, schedule_classes
from proteus_bench.schedules import Capacity
from proteus_bench.schedules.base import MAX_BLOCKS
from proteus_bench.store import digest, read_log
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.run_file import CellBlock, Record, RunFile, read_run_file

MAX_LOG_BYTES = 1 << 30
# What must agree for two records to be seeds of one method, beside its name and capacity.
_SETTINGS = ("dtype", "device", "backend", "batch_tokens", "tokenizer_sha256", "size")

# What a run says of methods that it shows once.
_SAME = "is the same function as"

Place = tuple[str, int]
"""(task, length in tokens)."""


@dataclass(frozen=True)
class ItemScore:
    """One item of one seed: index, hash of its text, mean strict score of its questions, mean gold log-probability (nats)."""

    index: int
    sha256: str
    strict: float
    logprob: float | None


Cells = dict[Place, dict[int, dict[str, ItemScore]]]
"""Scores by place, seed and item id."""


@dataclass
class Candidate:
    """One method on one suite: a model under one capacity, its seeds and where they come from.

    name: unique among all candidates of its suite. weights: the zoo entry that was trained; own_weights: under exactly
    this capacity. checkpoints: sha256 by seed. missing: (seed, task, length, status) of cells without a result.
    draws: by task, what its items are drawn from, where a run says so.
    """

    name: str
    label: str
    first: Record
    suite: dict[str, Any]
    scorer: dict[str, Any]
    checkpoints: dict[int, str]
    runs: list[str]
    versions: set[str]
    cells: Cells = field(default_factory=dict)
    missing: list[tuple[int, str, int, str]] = field(default_factory=list)
    limited: bool = False
    traces: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    evaluated: Capacity | None = None
    memory: str = "mlp"
    draws: dict[str, str] = field(default_factory=dict)

    @property
    def backbone(self) -> str:
        """Model and size: schedules are compared within it."""
        return f"{self.first.identity.get('model')}@{self.first.identity.get('size')}"

    @property
    def capacity(self) -> dict[str, Any]:
        """Every choice of the evaluated capacity, plain values."""
        return self.first.capacity

    @property
    def own_weights(self) -> bool:
        """Whether the weights were trained under the capacity that was evaluated."""
        trained = self.first.recipe.get("capacity")
        if isinstance(trained, dict):
            static = trained.get("schedule") == self.capacity.get("schedule") == "static"
            return static or trained == self.capacity
        return self.first.trained_schedule == self.first.schedule

    @property
    def weights(self) -> str:
        """The model whose weights answered, as the grammar spells it."""
        trained = self.first.trained_schedule
        name = str(self.first.identity.get("model"))
        return name if trained == "static" else f"{name}+{trained}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """Training seeds, ascending."""
        return tuple(sorted(self.checkpoints))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Context lengths with results, ascending."""
        return tuple(sorted({length for _, length in self.cells}))

    def key(self) -> str:
        """Records of equal keys are seeds of one method."""
        settings = {name: self.first.identity.get(name) for name in _SETTINGS}
        return digest([self.suite, self.scorer, self.label, self.capacity, settings, self.first.n_params])


def load_runs(folders: Sequence[Path]) -> tuple[list[Candidate], list[str]]:
    """All methods of all folders, in the order given, and notes.

    Records of one method from several folders are put together when they are other seeds, or agree item by item; the
    same seed with other weights makes a method of its own, named by its folder. Raises InvalidFileError (exit 3) for a
    folder that fails a check, and for two results of one measurement that differ.
    """
    found: list[Candidate] = []
    notes: list[str] = []
    seen: dict[Path, str] = {}
    for folder in folders:
        place = folder.resolve()
        if place in seen:
            notes.append(f"{folder} is given twice; it is read once")
            continue
        seen[place] = str(folder)
        run = read_run_file(folder / "run.json")
        notes += [note for note in run.notes if _SAME in note and note.isprintable() and note not in notes]
        for new in _methods(folder, run):
            home = next((old for old in found if old.key() == new.key() and _same_weights(old, new)), None)
            if home is None:
                found.append(new)
            else:
                _merge(home, new)
    _name(found)
    _resolve(found)
    return found, notes


def _resolve(found: Sequence[Candidate]) -> None:
    """Capacities as objects, and kinds of memory: the registry is asked once for all."""
    schedules, models = schedule_classes(), Registry("models")
    for candidate in found:
        try:
            candidate.evaluated = Capacity.from_dict(candidate.capacity, schedules)
        except (BenchError, TypeError, ValueError):
            candidate.evaluated = None
        name = str(candidate.first.identity.get("model"))
        if name in models.names():
            with contextlib.suppress(BenchError):
                candidate.memory = str(getattr(models.get(name), "memory", "mlp"))


def _methods(folder: Path, run: RunFile) -> list[Candidate]:
    methods: dict[str, Candidate] = {}
    for record in run.records:
        where = f"{folder}: {record.label} seed {record.seed}"
        if not (record.label + record.model + record.schedule).isprintable():
            raise InvalidFileError(f"{folder}: a model's name has characters that cannot be printed")
        _check_identity(where, record, run)
        method = Candidate(
            name=record.label,
            label=record.label,
            first=record,
            suite=run.suite.model_dump(),
            scorer=run.scorer.model_dump(),
            checkpoints={record.seed: str(record.identity.get("checkpoint_sha256"))},
            runs=[str(folder)],
            versions={str(run.environment.get("proteus_bench"))},
            limited=record.status == "partial",
        )
        home = methods.setdefault(method.key(), method)
        if home is not method and record.seed in home.checkpoints:
            raise InvalidFileError(f"{where} stands twice")
        home.checkpoints[record.seed] = method.checkpoints[record.seed]
        home.limited |= method.limited
        for cell in record.cells:
            _add_cell(where, folder, home, record.seed, cell)
    return list(methods.values())


def _check_identity(where: str, record: Record, run: RunFile) -> None:
    held = {
        "seed": record.seed,
        "suite": run.suite.model_dump(),
        "scorer": run.scorer.model_dump(),
        "capacity": record.capacity,
    }
    for key, value in held.items():
        if record.identity.get(key) != value:
            raise InvalidFileError(f"{where}: its identity is of another {key}")


def _add_cell(where: str, folder: Path, home: Candidate, seed: int, cell: CellBlock) -> None:
    place = (cell.task, cell.length)
    if not cell.task.isprintable():
        raise InvalidFileError(f"{folder}: a task's name has characters that cannot be printed")
    if cell.status not in ("complete", "diverged"):
        home.missing.append((seed, cell.task, cell.length, cell.status))
        return
    by_seed = home.cells.setdefault(place, {})
    if seed in by_seed:
        raise InvalidFileError(f"{where}: {cell.task} at {cell.length} stands twice")
    if cell.draws is not None:
        home.draws[cell.task] = cell.draws
    rows = _checked_rows(f"{where}, {cell.task} at {cell.length}", folder, cell)
    by_seed[seed] = _item_scores(f"{where}, {cell.task} at {cell.length}", cell, rows)
    traces = {row["item"]: tuple(row["unlocks"]) for row in rows if row.get("unlocks") is not None}
    if traces:
        home.traces.setdefault(cell.length, []).extend(traces.values())


def _checked_rows(where: str, folder: Path, cell: CellBlock) -> list[dict[str, Any]]:
    path = folder / cell.file
    if Path(cell.file).is_absolute() or ".." in Path(cell.file).parts or path.is_symlink() or not path.is_file():
        raise InvalidFileError(f"{where}: {cell.file[:200]} is no file of the run folder")
    if not path.resolve().is_relative_to(folder.resolve()) or path.stat().st_size > MAX_LOG_BYTES:
        raise InvalidFileError(f"{where}: {cell.file[:200]} lies outside of the run folder or is too large")
    if file_digest(path) != cell.sha256:
        raise InvalidFileError(f"{where}: {cell.file[:200]} does not match its sha256; the log was cut or changed")
    rows = read_log(path)
    if len(rows) != cell.rows:
        raise InvalidFileError(f"{where}: {len(rows)} rows where run.json says {cell.rows}")
    for row in rows:
        _check_row(where, row)
    return rows


def _item_scores(where: str, cell: CellBlock, rows: list[dict[str, Any]]) -> dict[str, ItemScore]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    places = set()
    for row in rows:
        places.add((row["item"], row["question"]))
        grouped.setdefault(row["item"], []).append(row)
    if len(places) != len(rows) or len(grouped) != cell.n:
        raise InvalidFileError(f"{where}: a question stands twice, or an item is missing")
    scores = {item: _mean(where, item, found) for item, found in grouped.items()}
    mean = sum(row["strict"] for row in rows) / len(rows) if rows else 0.0
    if cell.score is None or not math.isclose(mean, cell.score, abs_tol=1e-9):
        raise InvalidFileError(f"{where}: its score is not the mean of its rows")
    return scores


def _check_row(where: str, row: dict[str, Any]) -> None:
    item, sha, strict, logprob = (row.get(key) for key in ("item", "item_sha256", "strict", "logprob"))
    if not (isinstance(item, str) and isinstance(sha, str) and all(type(row.get(key)) is int for key in ("index", "question"))):
        raise InvalidFileError(f"{where}: a row does not name its item, its index, its hash and its question")
    if isinstance(strict, bool) or not isinstance(strict, int | float) or not 0 <= strict <= 1:
        raise InvalidFileError(f"{where}: a score is not a number between 0 and 1")
    if logprob is not None and (isinstance(logprob, bool) or not isinstance(logprob, int | float)):
        raise InvalidFileError(f"{where}: a log-probability is not a number")
    unlocks = row.get("unlocks")
    if unlocks is not None and not (
        isinstance(unlocks, list)
        and len(unlocks) <= MAX_BLOCKS
        and all(type(t) is int and t > 0 for t in unlocks)
        and unlocks == sorted(unlocks)
    ):
        raise InvalidFileError(f"{where}: the positions at which blocks opened are no ascending numbers")


def _mean(where: str, item: str, rows: list[dict[str, Any]]) -> ItemScore:
    if len({(row["item_sha256"], row["index"]) for row in rows}) > 1:
        raise InvalidFileError(f"{where}: item {item[:80]} has two hashes, or two indices")
    logprobs = [row["logprob"] for row in rows]
    mean = None if None in logprobs else sum(logprobs) / len(rows)
    return ItemScore(rows[0]["index"], rows[0]["item_sha256"], sum(row["strict"] for row in rows) / len(rows), mean)


def _same_weights(old: Candidate, new: Candidate) -> bool:
    shared = old.checkpoints.keys() & new.checkpoints.keys()
    return all(old.checkpoints[seed] == new.checkpoints[seed] for seed in shared)


def _merge(home: Candidate, new: Candidate) -> None:
    home.checkpoints |= new.checkpoints
    home.runs += [run for run in new.runs if run not in home.runs]
    home.versions |= new.versions
    home.limited |= new.limited
    for length, traces in new.traces.items():
        home.traces.setdefault(length, []).extend(traces)
    home.draws = new.draws | home.draws
    for place, by_seed in new.cells.items():
        held = home.cells.setdefault(place, {})
        for seed, items in by_seed.items():
            mine = held.setdefault(seed, {})
            for item, value in items.items():
                if mine.setdefault(item, value) != value:
                    raise InvalidFileError(
                        f"{home.label} seed {seed}, {place[0]} at {place[1]}: {home.runs[0]} and {new.runs[0]} hold "
                        "different results of one measurement; compare one of them"
                    )
    home.missing += [gap for gap in new.missing if gap not in home.missing]
    done = {(seed, *place) for place, by_seed in home.cells.items() for seed in by_seed}
    home.missing = [gap for gap in home.missing if gap[:3] not in done]


def _name(found: list[Candidate]) -> None:
    """Labels that stand for two methods get the name of their folder, and a number where that is one too."""
    for suite in {digest(c.suite) for c in found}:
        mine = [c for c in found if digest(c.suite) == suite]
        twice = {c.label for c in mine if sum(other.label == c.label for other in mine) > 1}
        for c in mine:
            if c.label in twice:
                c.name = f"{c.label} [{Path(c.runs[0]).name or c.runs[0]}]"
        used: dict[str, int] = {}
        for c in mine:
            used[c.name] = used.get(c.name, 0) + 1
            if used[c.name] > 1:
                c.name += f" #{used[c.name]}"
