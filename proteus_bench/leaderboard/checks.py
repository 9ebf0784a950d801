"""V0 and V1 of one run: every row has its form, every hash fits, nothing is missing or stands twice, numbers add up."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proteus_bench.errors import BenchError, InvalidFileError
from proteus_bench.leaderboard.cost import FILE as COST_FILE
from proteus_bench.leaderboard.cost import CostBlock, cost_reasons, of_record, read_cost
from proteus_bench.leaderboard.forms import first_error, plain_text, read_as, shown
from proteus_bench.leaderboard.opening import plain_file
from proteus_bench.leaderboard.schema import Row, Timing
from proteus_bench.runner.results import CellResult, cell_result, items_digest
from proteus_bench.store import CellKey, canonical_json, digest
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.log import parse_log
from proteus_bench.store.run_file import CellBlock, Record, RunFile

TOLERANCE = 1e-9

Rows = list[dict[str, Any]]


class Refused(InvalidFileError):
    """A check that a submission did not pass. ``level``: 0 to 4; the message is the reason."""

    def __init__(self, level: int, message: str) -> None:
        super().__init__(f"V{level}: {message}")
        self.level = level
        self.reason = message


@dataclass
class Checked:
    """A run that passed V0: its rows by cell (index into run.records, task, length), all of the right form.

    costs: the blocks of its cost.json.
    """

    folder: Path
    run: RunFile
    rows: dict[tuple[int, str, int], Rows] = field(default_factory=dict)
    costs: list[CostBlock] = field(default_factory=list)

    def of(self, record: int) -> dict[tuple[str, int], Rows]:
        """Rows of one record by (task, length), in the order of run.json."""
        cells = self.run.records[record].cells
        return {(cell.task, cell.length): self.rows[record, cell.task, cell.length] for cell in cells}


def read_run(folder: Path, run: RunFile) -> Checked:
    """V0 of the logs. Raises Refused (exit 3) with the first thing that is malformed."""
    costs = read_cost(plain_file(folder, COST_FILE)) if (folder / COST_FILE).is_file() else []
    checked = Checked(folder, run, costs=costs)
    for number, record in enumerate(run.records):
        for text in (record.label, record.model, record.schedule, record.trained_schedule):
            _plain(f"record {number + 1}", text)
        for cell in record.cells:
            where = place(record, cell)
            _plain(where, cell.task)
            if (number, cell.task, cell.length) in checked.rows:
                raise Refused(0, f"{where}: the cell stands twice")
            checked.rows[number, cell.task, cell.length] = _read_rows(folder, cell, where)
    return checked


def place(record: Record, cell: CellBlock) -> str:
    """Where a check failed, in words that show as they are."""
    return shown(f"{record.label} seed {record.seed}, {cell.task} at {cell.length}"[:300])


def _plain(where: str, text: str) -> None:
    try:
        plain_text(text)
    except ValueError as error:
        raise Refused(0, f"{shown(where)}: {error}") from error
    if len(text) > 300:
        raise Refused(0, f"{shown(where)}: a name of {len(text)} characters")


def _read_rows(folder: Path, cell: CellBlock, where: str) -> Rows:
    if cell.status not in ("complete", "diverged"):
        raise Refused(0, f"{where}: the cell is {cell.status}; finish the run first")
    try:
        path = plain_file(folder, cell.file)
    except InvalidFileError as error:
        raise Refused(0, f"{where}: {error}") from error
    if file_digest(path) != cell.sha256:
        raise Refused(1, f"{where}: its log does not match its sha256")
    try:
        rows = parse_log(path.read_bytes(), cell.file)[0]
        for row in rows:
            Row.model_validate(row)
    except ValidationError as error:
        raise Refused(0, f"{where}: {shown(first_error(error))}"[:400]) from error
    except BenchError as error:
        raise Refused(0, f"{where}: {error}") from error
    return rows


def check_run(checked: Checked) -> Iterator[str]:
    """V1 of one run: reasons why it does not add up, none when it does."""
    run = checked.run
    for number, record in enumerate(run.records):
        yield from _identity(run, record)
        yield from _cells_of_identity(record)
        for cell in record.cells:
            yield from _cell(record, cell, checked.rows[number, cell.task, cell.length])
    yield from _same_items(checked)
    for label in dict.fromkeys(record.label for record in run.records):
        yield from seed_reasons([record for record in run.records if record.label == label], label)
    yield from _statuses(run)
    yield from _costs(checked)
    yield from twin_predictions(predictions(checked))


def _identity(run: RunFile, record: Record) -> Iterator[str]:
    where = shown(f"{record.label} seed {record.seed}")
    held = {
        "seed": record.seed, "suite": run.suite.model_dump(), "scorer": run.scorer.model_dump(),
        "capacity": record.capacity, "trained_schedule": record.trained_schedule, "backend": record.backend,
    }  # fmt: skip
    for key, value in held.items():
        if record.identity.get(key) != value:
            yield f"{where}: its identity is of another {key.replace('_', ' ')}"
    name = str(record.identity.get("model"))
    if not (_names_zoo_model(record.label, name) if record.backend == "local" else _names_external(record, name)):
        yield f"{where}: its identity is of model {shown(name, 80)}"
    if "config_sha256" in record.identity:
        config = hashlib.sha256(canonical_json(record.config)).hexdigest()
        if config != record.identity["config_sha256"]:
            yield f"{where}: its configuration is not the one of its identity"
    for key in ("checkpoint_sha256", "tokenizer_sha256"):
        if not isinstance(record.identity.get(key), str):
            yield f"{where}: its identity names no {key}"


def _names_zoo_model(label: str, name: str) -> bool:
    text = label.rpartition(":")[2]
    rest = text.removeprefix(name)
    return text.startswith(name) and (not rest or rest[0] in "+@")


def _names_external(record: Record, name: str) -> bool:
    """A model outside the zoo: its label is its source and place, its name the source and the last part of the place."""
    source = f"{record.backend}:"
    return record.model == name and name.startswith(source) and record.label.startswith(source)


def _cells_of_identity(record: Record) -> Iterator[str]:
    """Cells and item counts are those that the identity, and so the record's address, says."""
    where = shown(f"{record.label} seed {record.seed}")
    planned = record.identity.get("items")
    if not isinstance(planned, list) or not all(isinstance(row, list) and len(row) == 3 for row in planned):
        yield f"{where}: its identity does not list its items"
        return
    wanted = sorted(canonical_json(row) for row in planned)
    found = [[cell.task, cell.length, cell.n] for cell in record.cells]
    if wanted != sorted(map(canonical_json, found)):
        items = sum(row[2] for row in planned if isinstance(row[2], int))
        yield (
            f"{where}: {len(found)} cells with {sum(cell.n for cell in record.cells)} items where its identity says "
            f"{len(planned)} with {items}"
        )


def _cell(record: Record, cell: CellBlock, rows: Rows) -> Iterator[str]:
    where = place(record, cell)
    if not rows:
        yield f"{where}: no rows"
        return
    places = {(row["index"], row["question"]) for row in rows}
    if len(places) != len(rows):
        yield f"{where}: a question stands twice"
        return
    indices = {row["index"] for row in rows}
    asked = 1 + max(row["question"] for row in rows)
    if len(rows) != cell.rows or indices != set(range(len(indices))) or len(rows) != asked * len(indices):
        yield f"{where}: items or questions are missing ({len(rows)} rows, {cell.rows} claimed)"
        return
    names = {row["index"]: row["item"] for row in rows}
    hashes = {row["index"]: row["item_sha256"] for row in rows}
    if any(names[row["index"]] != row["item"] or hashes[row["index"]] != row["item_sha256"] for row in rows):
        yield f"{where}: the questions of an item name two items"
        return
    if len(set(names.values())) != len(names) or len(set(hashes.values())) != len(hashes):
        yield f"{where}: an item stands twice under two numbers"
        return
    yield from _metrics(where, record, cell, rows)


def _metrics(where: str, record: Record, cell: CellBlock, rows: Rows) -> Iterator[str]:
    again = cell_result(CellKey(record.label, cell.task, cell.length, record.seed), rows, complete=True)
    interval = again.interval
    for name, mine, theirs in (
        ("score", interval.mean, cell.score),
        ("lower end of its interval", interval.lo, cell.ci_low),
        ("upper end of its interval", interval.hi, cell.ci_high),
        ("compat score", again.compat, cell.compat),
        ("log-probability", again.logprob, cell.logprob),
    ):
        if not close(mine, theirs):
            yield f"{where}: the {name} is {theirs}, its rows give {mine}"
    yield from _further_intervals(where, cell, again)
    if cell.ci_method != interval.method:
        yield f"{where}: its interval is called {cell.ci_method!a}, its rows give {interval.method}"
    if again.items_sha256 != cell.items_sha256:
        yield f"{where}: its items_sha256 is not that of its rows"
    if (again.n, again.status) != (cell.n, cell.status):
        yield f"{where}: {cell.n} items, {cell.status}; its rows give {again.n}, {again.status}"
    if any(row["logprob"] is not None and row["logprob"] > 1e-6 for row in rows):
        yield f"{where}: a log-probability above zero"


def _further_intervals(where: str, cell: CellBlock, again: CellResult) -> Iterator[str]:
    """Intervals that older files do not hold are not missed."""
    logprob = again.logprob_interval
    for name, mine, theirs in (
        ("lower end of the compat interval", again.compat_interval.lo, cell.compat_ci_low),
        ("upper end of the compat interval", again.compat_interval.hi, cell.compat_ci_high),
        ("lower end of the log-probability's interval", logprob.lo if logprob else None, cell.logprob_ci_low),
        ("upper end of the log-probability's interval", logprob.hi if logprob else None, cell.logprob_ci_high),
    ):
        if theirs is not None and not close(mine, theirs):
            yield f"{where}: the {name} is {theirs}, its rows give {mine}"


def close(mine: float | None, theirs: float | None) -> bool:
    """Equal up to rounding; None only equals None."""
    if mine is None or theirs is None:
        return mine is theirs
    return math.isclose(mine, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _same_items(checked: Checked) -> Iterator[str]:
    """All records with one tokenizer were asked the same items."""
    seen: dict[tuple[Any, str, int], tuple[str, str]] = {}
    for number, record in enumerate(checked.run.records):
        for cell in record.cells:
            rows = checked.rows[number, cell.task, cell.length]
            key = (record.identity.get("tokenizer_sha256"), cell.task, cell.length)
            mine = items_digest(rows) if rows else ""
            first = seen.setdefault(key, (mine, record.label))
            if first[0] != mine:
                yield f"{place(record, cell)}: other items than {shown(first[1])} was asked"


def seed_reasons(records: Sequence[Record], label: str) -> Iterator[str]:
    """Training seeds are 0, 1, 2, ... without a gap, each with weights of its own: none is picked, none counted twice."""
    where = shown(label)
    seeds = sorted(record.seed for record in records)
    if len(set(seeds)) != len(seeds):
        yield f"{where}: a seed stands twice"
        return
    gaps = sorted(set(range(seeds[-1] + 1)) - set(seeds)) if seeds[-1] < 10_000 else seeds[-1:]
    if gaps:
        listed = ", ".join(map(str, gaps[:8]))
        yield (
            f"{where}: seeds {', '.join(map(str, seeds[:8]))} without seed {listed}: seeds cannot be picked, every one "
            "from 0 on must be there, the diverged ones as well"
        )
    by_weights: dict[Any, int] = {}
    for record in records:
        other = by_weights.setdefault(record.identity.get("checkpoint_sha256"), record.seed)
        if other != record.seed:
            yield f"{where}: seeds {other} and {record.seed} are one checkpoint"


def _statuses(run: RunFile) -> Iterator[str]:
    for record in run.records:
        statuses = {cell.status for cell in record.cells}
        if "diverged" in statuses and record.status == "complete":
            yield f"{shown(record.label)} seed {record.seed}: called complete, and a state diverged"
        if record.status == "failed":
            yield f"{shown(record.label)} seed {record.seed}: failed"
    worst = next((s for s in ("failed", "partial", "diverged") if any(r.status == s for r in run.records)), "complete")
    if run.status != worst:
        yield f"the run is called {run.status}, its records are {worst}"


def _costs(checked: Checked) -> Iterator[str]:
    """Every cost is of a record of this run, one a method, and its figures follow from its seconds."""
    labels = [block.label for block in checked.costs]
    if len(set(labels)) != len(labels):
        yield "a method has two costs"
    for block in checked.costs:
        if not any(of_record(block, record) for record in checked.run.records):
            yield f"{shown(block.label)}: its cost is of other weights or of another capacity"
        yield from (f"{shown(block.label)}: {reason}" for reason in cost_reasons(block))


@dataclass(frozen=True)
class Prediction:
    """What one checkpoint answered on everything: the hash of all outputs and log-probabilities."""

    label: str
    seed: int
    checkpoint_sha256: str
    sha256: str | None


def predictions(checked: Checked) -> list[Prediction]:
    """By record, in order. The hash is None when no log-probability is finite: two diverged models may answer alike."""
    found = []
    for number, record in enumerate(checked.run.records):
        cells = checked.of(number)
        body = [
            [task, length, [[r["index"], r["question"], r["output_ids"], r["logprob"]] for r in rows]]
            for (task, length), rows in sorted(cells.items())
        ]
        alive = any(row["logprob"] is not None for rows in cells.values() for row in rows)
        weights = str(record.identity.get("checkpoint_sha256"))
        found.append(Prediction(record.label, record.seed, weights, digest(body) if alive else None))
    return found


def twin_predictions(found: Sequence[Prediction]) -> Iterator[str]:
    """Two checkpoints that give the same outputs and the same log-probabilities to the last bit are not two."""
    seen: dict[str, Prediction] = {}
    for one in found:
        if one.sha256 is None:
            continue
        other = seen.setdefault(one.sha256, one)
        if other.checkpoint_sha256 != one.checkpoint_sha256:
            yield (
                f"{shown(one.label)} seed {one.seed} has the predictions of {shown(other.label)} seed "
                f"{other.seed}, bit for bit, from other weights"
            )


def timing_of(folder: Path) -> list[dict[str, Any]]:
    """The cells of timing.json, [] when there is none. It is what the run reported, and checked for form only."""
    if not (folder / "timing.json").is_file():
        return []
    timing: Timing = read_as(Timing, plain_file(folder, "timing.json"))
    return [cell.model_dump() for cell in timing.cells]
