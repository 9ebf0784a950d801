"""Entries: computed from checked runs, and computed again whenever one is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard.checks import Checked, predictions, timing_of
from proteus_bench.leaderboard.cost import cost_reasons
from proteus_bench.leaderboard.course import capacity_course
from proteus_bench.leaderboard.forms import DECIMALS, MAX_COUNT, check_as, read_as, rounded, shown
from proteus_bench.leaderboard.item_scores import item_text, parse_scores, role_scores
from proteus_bench.leaderboard.items import Book, Facts, depths_of
from proteus_bench.leaderboard.schema import (
    DEPTH_BINS,
    ENTRY,
    RANKING_TIER,
    TIERS,
    DepthBin,
    Entry,
    EntryCell,
    ScoreBlock,
    Statement,
)
from proteus_bench.runner.results import items_digest
from proteus_bench.stats import Interval, cell_ci, checkpoint_ci, crossed_anova, pigeonhole_bootstrap, pool_draws
from proteus_bench.stats.verdict import MIN_BOOTSTRAP_SEEDS
from proteus_bench.store.canonical import digest
from proteus_bench.store.run_file import Record

ID_CHARS = 16
NEAR = 2.5 * 10**-DECIMALS


def entry_id(identity: dict[str, Any]) -> str:
    """The file name of an entry, from what it is and not from what it scored."""
    return digest(identity)[:ID_CHARS]


def entries_of(checked: Checked, book: Book, tier: int, statement: Statement) -> list[Entry]:
    """One entry a method of the run, which has passed the checks of level ``tier``."""
    labels = list(dict.fromkeys(record.label for record in checked.run.records))
    return [_entry(checked, label, book, tier, statement) for label in labels]


def _entry(checked: Checked, label: str, book: Book, tier: int, statement: Statement) -> Entry:
    run = checked.run
    numbers = sorted((i for i, r in enumerate(run.records) if r.label == label), key=lambda i: run.records[i].seed)
    records = [run.records[i] for i in numbers]
    first = records[0]
    identity = {"suite": run.suite.model_dump(), "records": sorted(record.record_id for record in records)}
    cells = _cells(checked, numbers, book, tier)
    ranked, reason = _rankable(records, tier)
    active, opening = _capacity_course(checked, numbers)
    values = {
        "schema": ENTRY,
        "id": entry_id(identity),
        "identity": identity,
        "label": label,
        "model": str(first.identity["model"]),
        "schedule": first.schedule,
        "size": str(first.identity.get("size") or "micro"),
        "suite": run.suite.model_dump(),
        "scorer": run.scorer.model_dump(),
        "tokenizer_sha256": str(first.identity["tokenizer_sha256"]),
        "seeds": [record.seed for record in records],
        "tier": TIERS[tier],
        "ranked": ranked,
        "reason": reason,
        "n_params": first.n_params,
        "state_bytes": first.state_bytes,
        "train_length": first.train_length,
        "trained_schedule": first.trained_schedule,
        "capacity": first.capacity,
        "active": active,
        "opening": opening,
        "records": _records(checked, numbers),
        "statement": statement.model_dump(),
        "cost": _cost(checked, label),
        "paired_cost": next((block.model_dump() for block in checked.costs if block.label == label), None),
        "overall": overall_block(cells),
        "cells": [cell.model_dump() for cell in cells],
    }
    entry: Entry = check_as(Entry, values, label)
    return entry


def _records(checked: Checked, numbers: Sequence[int]) -> list[dict[str, Any]]:
    found = predictions(checked)
    return [
        {
            "seed": checked.run.records[i].seed,
            "record_id": checked.run.records[i].record_id,
            "run_id": checked.run.run_id,
            "checkpoint_sha256": found[i].checkpoint_sha256,
            "predictions_sha256": found[i].sha256,
            "status": checked.run.records[i].status,
            "tokens": _tokens(checked.run.records[i]),
        }
        for i in numbers
    ]


def _tokens(record: Record) -> int | None:
    """Tokens of training that the card of a checkpoint states."""
    held = record.recipe.get("tokens")
    return held if type(held) is int and 0 <= held <= MAX_COUNT else None


def _rankable(records: Sequence[Record], tier: int) -> tuple[bool, str]:
    if any(record.status == "partial" for record in records):
        return False, "a part of the suite's items only"
    if len(records) < 2:
        return False, "one seed: no interval over seeds"
    if tier < RANKING_TIER:
        return False, f"checked to {TIERS[tier]} only"
    return True, ""


def _cells(checked: Checked, numbers: Sequence[int], book: Book, tier: int) -> list[EntryCell]:
    places = sorted({key for i in numbers for key in checked.of(i)})
    return [_cell(checked, numbers, task, length, book, tier) for task, length in places]


def _cell(checked: Checked, numbers: Sequence[int], task: str, length: int, book: Book, tier: int) -> EntryCell:
    by_seed = []
    for i in numbers:
        rows = checked.rows.get((i, task, length))
        if rows is None:
            raise InvalidFileError(f"{checked.run.records[i].label}: its seeds were not run on the same tasks and lengths")
        by_seed.append(rows)
    scores = [item_text(rows) for rows in by_seed]
    if len({text.count(" ") for text in scores}) != 1:
        raise InvalidFileError(f"{task} at {length}: the seeds have different numbers of items")
    facts = [_facts(checked, i, task, length, book, tier) for i in numbers]
    logprobs = [row["logprob"] for rows in by_seed for row in rows]
    return EntryCell(
        **block_of(cell_interval(parse_scores(scores)), [parse_scores(scores)]),
        task=task,
        length=length,
        logprob=None if None in logprobs else rounded(float(np.mean(logprobs))),
        items_sha256=items_digest(by_seed[0]),
        depths=depth_bins([pair for rows, held in zip(by_seed, facts, strict=True) for pair in depths_of(rows, held)]),
        scores=scores,
        roles=role_scores(by_seed, facts[0]),
        draws=next(c.draws for c in checked.run.records[numbers[0]].cells if (c.task, c.length) == (task, length)),
    )


def cell_interval(scores_SN: np.ndarray) -> Interval:
    """Over seeds and items from two seeds on; of the one checkpoint's items otherwise."""
    return cell_ci(scores_SN[0]) if len(scores_SN) == 1 else crossed_anova(scores_SN)


def block_of(
    interval: Interval, tasks: Sequence[np.ndarray], bootstrap: bool = False, weights: Sequence[float] | None = None
) -> dict[str, Any]:
    """A score block; with the bootstrap beside it, where that is asked for, from five seeds on."""
    low = high = None
    if bootstrap and len(tasks[0]) >= MIN_BOOTSTRAP_SEEDS:
        seed = digest([[task.shape, round(float(task.mean()), DECIMALS)] for task in tasks])
        found = pigeonhole_bootstrap(list(tasks), seed=seed, weights=weights).overall
        low, high = found.lo, found.hi
    return {
        "score": rounded(interval.mean),
        "ci_low": rounded(interval.lo),
        "ci_high": rounded(interval.hi),
        "ci_method": interval.method,
        "n": interval.n,
        "bootstrap_low": rounded(low),
        "bootstrap_high": rounded(high),
    }


def overall_block(cells: Sequence[EntryCell], bootstrap: bool = True) -> dict[str, Any]:
    """The mean over tasks and lengths, equal weights; where cells share draws, items of one index are one draw."""
    scores = [parse_scores(cell.scores) for cell in cells]
    keys = [(cell.draws or cell.task, matrix.shape[1]) for cell, matrix in zip(cells, scores, strict=True)]
    tasks, weights = pool_draws(scores, keys)
    if len(tasks[0]) > 1:
        return block_of(crossed_anova(tasks, weights=weights), tasks, bootstrap, weights)
    interval = cell_ci(tasks[0][0]) if len(tasks) == 1 else checkpoint_ci(tasks, weights, bounds=(0.0, 1.0))
    return block_of(interval, tasks)


def _facts(checked: Checked, number: int, task: str, length: int, book: Book, tier: int) -> list[Facts] | None:
    """The items of a cell, which level 2 made again; None below it."""
    if tier < RANKING_TIER:
        return None
    suite = book.suite(checked.run.suite)
    tokenizer = book.tokenizer(str(checked.run.records[number].identity["tokenizer_sha256"]))
    if suite is None or tokenizer is None:
        return None
    count = len({row["index"] for row in checked.rows[number, task, length]})
    return book.facts(suite, tokenizer, task, length, count)


def depth_bins(found: Sequence[tuple[float, float]]) -> list[DepthBin]:
    """Mean score by tenth of the context, from (depth, score) pairs; parts without a question are left out."""
    bins: dict[int, list[float]] = {}
    for depth, score in found:
        bins.setdefault(min(DEPTH_BINS - 1, max(0, int(depth * DEPTH_BINS))), []).append(score)
    return [
        DepthBin(part=part, score=rounded(sum(values) / len(values)) or 0.0, n=len(values))
        for part, values in sorted(bins.items())
    ]


def _capacity_course(checked: Checked, numbers: Sequence[int]) -> tuple[float | None, list[float] | None]:
    record = checked.run.records[numbers[0]]
    length = max(cell.length for cell in record.cells)
    traces = [
        row["unlocks"]
        for i in numbers
        for (_, at), rows in checked.of(i).items()
        for row in rows
        if at == length and row.get("unlocks") is not None
    ]
    course = capacity_course(record.capacity, length, traces)
    return (None, None) if course is None else course


def _cost(checked: Checked, label: str) -> dict[str, float] | None:
    """Seconds an item and context tokens a second, over all cells of the method. What the run reported."""
    timed = {(c["task"], c["length"], c["seed"]): c["seconds"] for c in timing_of(checked.folder) if c["model"] == label}
    seconds = items = tokens = 0.0
    for number, record in enumerate(checked.run.records):
        for cell in record.cells if record.label == label else ():
            spent = timed.get((cell.task, cell.length, record.seed))
            if spent is None or spent <= 0:
                return None
            seconds += spent
            items += cell.n
            rows = checked.rows[number, cell.task, cell.length]
            tokens += sum(row["context_tokens"] for row in rows if row["question"] == 0)
    if not items:
        return None
    return {"seconds_per_item": round(seconds / items, 4), "tokens_per_second": round(tokens / seconds, 1)}


def read_entry(path: Path, bootstrap: bool = False) -> Entry:
    """Read one entry and compute its numbers again (the bootstrap, which takes a while, only where that is asked for).

    Raises InvalidFileError (exit 3) with the first thing that is wrong.
    """
    entry: Entry = read_as(Entry, path)
    if path.stem != entry.id:
        raise InvalidFileError(f"{path}: its name is not its id {entry.id}")
    reason = next(iter(entry_reasons(entry, bootstrap)), None)
    if reason is not None:
        raise InvalidFileError(f"{path}: {reason}")
    return entry


def entry_reasons(entry: Entry, bootstrap: bool = True) -> Iterator[str]:
    """Why an entry does not add up: its numbers must follow from the item scores that it holds."""
    if entry_id(entry.identity) != entry.id:
        yield "its id is not its identity's hash"
    held = {"suite": entry.suite.model_dump(), "records": sorted(record.record_id for record in entry.records)}
    if entry.identity != held:
        yield "its identity is of other records or of another suite"
    seeds = [record.seed for record in entry.records]
    if seeds != entry.seeds or seeds != sorted(set(seeds)):
        yield "its seeds are not those of its records"
    if len({(cell.task, cell.length) for cell in entry.cells}) != len(entry.cells):
        yield "a cell stands twice"
    yield from _cost_reasons(entry)
    try:
        yield from _score_reasons(entry, bootstrap)
    except ValueError as error:
        yield f"{str(error)[:200]}"
    tier = TIERS.index(entry.tier)
    partial = any(record.status == "partial" for record in entry.records)
    if entry.ranked and (tier < RANKING_TIER or len(seeds) < 2 or partial):
        yield "called ranked, and it cannot be"


def _cost_reasons(entry: Entry) -> Iterator[str]:
    block = entry.paired_cost
    if block is None:
        return
    weights = {record.seed: record.checkpoint_sha256 for record in entry.records}
    mine = (entry.label, weights.get(block.seed), entry.capacity, entry.state_bytes)
    if mine != (block.label, block.checkpoint_sha256, block.capacity, block.state_bytes):
        yield "its cost is of other weights or of another capacity"
    yield from cost_reasons(block)


def _score_reasons(entry: Entry, bootstrap: bool) -> Iterator[str]:
    tasks = [parse_scores(cell.scores) for cell in entry.cells]
    for cell, scores in zip(entry.cells, tasks, strict=True):
        if len(scores) != len(entry.seeds):
            yield f"{shown(cell.task)} at {cell.length}: {len(scores)} seeds where it has {len(entry.seeds)}"
            return
        where = f"{shown(cell.task)} at {cell.length}"
        if cell.roles and not _roles_add_up(cell, scores):
            yield f"{where}: the scores of its roles are not those of its items"
        yield from _block_reasons(where, cell, block_of(cell_interval(scores), [scores]), True)
    yield from _block_reasons("the mean", entry.overall, overall_block(entry.cells, bootstrap), bootstrap)


def _roles_add_up(cell: EntryCell, scores: np.ndarray) -> bool:
    """Whether the mean over roles, by questions asked, is the score of every item."""
    parts = [parse_scores(role.scores) for role in cell.roles]
    asked = [role.asked for role in cell.roles]
    if any(part.shape != scores.shape for part in parts):
        return False
    mean = sum(n * part for n, part in zip(asked, parts, strict=True)) / sum(asked)
    return bool(np.abs(mean - scores).max() < NEAR)


def _block_reasons(where: str, held: ScoreBlock, again: Mapping[str, Any], bootstrap: bool) -> Iterator[str]:
    for name, value in again.items():
        mine = getattr(held, name)
        if name.startswith("bootstrap") and not bootstrap:
            continue
        near = mine == value or (isinstance(mine, float) and isinstance(value, float) and abs(mine - value) < NEAR)
        if not near:
            yield f"{where}: {name} is {mine}, its item scores give {value}"
