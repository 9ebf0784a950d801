"""From item rows to metrics: cells with intervals, methods over seeds, paired comparisons. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proteus_bench.runner.perplexity import Perplexity, perplexity_of
from proteus_bench.stats import (
    Interval,
    ScoreMatrix,
    cell_ci,
    checkpoint_ci,
    cluster_mean_ci,
    crossed_anova,
    draws_key,
    paired_difference,
    pool_draws,
    score_matrix,
    unbounded_difference,
    verdict,
)
from proteus_bench.stats.verdict import Verdict
from proteus_bench.store import CellKey

Row = dict[str, Any]
SUITE = "all"
"""The task of a line that stands for the mean over all tasks and lengths of a suite."""


@dataclass(frozen=True)
class CellResult:
    """Metrics of one cell. Scores and their intervals in [0, 1]; logprob: mean over questions, nats, None when not finite.

    compat_interval, logprob_interval: around the compat score and the log-probability, clustered by item alike.
    """

    key: CellKey
    interval: Interval
    compat_interval: Interval
    logprob_interval: Interval | None
    n: int
    rows: int
    status: str
    items_sha256: str
    perplexity: Perplexity | None = None

    @property
    def compat(self) -> float:
        """Mean compat score."""
        return self.compat_interval.mean

    @property
    def logprob(self) -> float | None:
        """Mean log-probability."""
        return None if self.logprob_interval is None else self.logprob_interval.mean

    def measured(self) -> dict[str, Any]:
        """What run.json says of the cell, beside its place and status."""
        compat, logprob = self.compat_interval, self.logprob_interval
        return {
            "n": self.n,
            "rows": self.rows,
            "score": self.interval.mean,
            "ci_low": self.interval.lo,
            "ci_high": self.interval.hi,
            "ci_method": self.interval.method,
            "compat": self.compat,
            "compat_ci_low": compat.lo,
            "compat_ci_high": compat.hi,
            "logprob": self.logprob,
            "logprob_ci_low": logprob.lo if logprob else None,
            "logprob_ci_high": logprob.hi if logprob else None,
            "items_sha256": self.items_sha256,
            **({} if self.perplexity is None else {"perplexity": self.perplexity.as_dict()}),
        }


NOTHING_MEASURED: dict[str, Any] = {
    "n": 0, "rows": 0, "score": None, "ci_low": None, "ci_high": None, "ci_method": None, "compat": None, "logprob": None,
    "items_sha256": None,
}  # fmt: skip
"""`CellResult.measured` of a cell without a whole item."""


@dataclass(frozen=True)
class MethodScore:
    """One method on one task and length, over its seeds. unscored: the model gives no log-probabilities."""

    model: str
    task: str
    length: int
    interval: Interval
    logprob: float | None
    seeds: int
    items: int
    unscored: bool = False


@dataclass(frozen=True)
class Comparison:
    """a - b on shared seeds and items; length None for the whole suite."""

    task: str
    length: int | None
    verdict: Verdict
    logprob: Interval | None

    def as_row(self) -> Row:
        """The comparison as scripts read it; differences are fractions, not points."""
        v = self.verdict
        return {
            "a": v.a,
            "b": v.b,
            "task": self.task,
            "length": self.length,
            "diff": v.primary.mean,
            "ci_low": v.primary.lo,
            "ci_high": v.primary.hi,
            "n_seeds": v.seeds,
            "verdict": v.text,
            **self.logprob_fields(),
        }

    def logprob_fields(self) -> Row:
        """Difference of the gold log-probability per item (nats); nulls where a state diverged."""
        i = self.logprob
        low, high = (i.lo, i.hi) if i else (None, None)
        return {"logprob_diff": i.mean if i else None, "logprob_ci_low": low, "logprob_ci_high": high}


def items_digest(rows: Sequence[Row]) -> str:
    """sha256 over the items' hashes in index order, one a line: the form in which a suite freezes its items."""
    by_index = {row["index"]: row["item_sha256"] for row in rows}
    return hashlib.sha256("".join(f"{by_index[i]}\n" for i in sorted(by_index)).encode("ascii")).hexdigest()


def cell_result(key: CellKey, rows: Sequence[Row], complete: bool) -> CellResult:
    """Metrics of the rows of one cell, clustered by item. ``complete``: all planned questions are there."""
    items = [row["item"] for row in rows]
    logprobs = [row["logprob"] for row in rows]
    known = all(value is not None for value in logprobs)
    finite = all(row["logprob"] is not None or row.get("unscored") for row in rows)
    return CellResult(
        key=key,
        interval=cell_ci([row["strict"] for row in rows], items),
        compat_interval=cell_ci([row["compat"] for row in rows], items),
        logprob_interval=cluster_mean_ci(logprobs, items, bounds=None) if known else None,
        n=len(set(items)),
        rows=len(rows),
        status=("complete" if finite else "diverged") if complete else "partial",
        items_sha256=items_digest(rows),
        perplexity=perplexity_of(rows),
    )


def suite_mean(cells: Mapping[CellKey, Sequence[Row]], draws: Mapping[str, str]) -> Interval:
    """One method's mean strict score over all tasks and lengths, equal weights, over the seeds that have all of them: crossed
    variance from two seeds on, items alone for one checkpoint. ``draws``: as in `compare`."""
    places = sorted({(key.task, key.length) for key in cells})
    seeds = set.intersection(*({k.seed for k in cells if (k.task, k.length) == place} for place in places))
    here = [{k: rows for k, rows in cells.items() if (k.task, k.length) == place and k.seed in seeds} for place in places]
    found = [item_scores(held) for held in here]
    keys = [draws_key(place[0], draws, indices_of(held, one.items)) for place, held, one in zip(places, here, found, strict=True)]
    tasks, weights = pool_draws([one.scores for one in found], keys)
    return crossed_anova(tasks, weights=weights) if len(seeds) > 1 else checkpoint_ci(tasks, weights, bounds=(0.0, 1.0))


def indices_of(cells: Mapping[CellKey, Sequence[Row]], items: Sequence[str]) -> list[int]:
    """The index of each item, as their rows say."""
    index = {row["item"]: row["index"] for rows in cells.values() for row in rows}
    return [index[item] for item in items]


def item_scores(cells: Mapping[CellKey, Sequence[Row]], column: str = "strict") -> ScoreMatrix:
    """Mean of ``column`` (strict, logprob) per (seed, item) of one method on one task and length."""
    table: dict[tuple[int, str], list[float]] = {}
    for key, rows in cells.items():
        for row in rows:
            table.setdefault((key.seed, row["item"]), []).append(row[column])
    return score_matrix((seed, item, sum(values) / len(values)) for (seed, item), values in table.items())


def method_score(model: str, task: str, length: int, cells: Mapping[CellKey, Sequence[Row]]) -> MethodScore:
    """Score over seeds and items: crossed variance from two seeds on, the interval of the one cell otherwise."""
    matrix = item_scores(cells)
    every = [row for rows in cells.values() for row in rows]
    if len(matrix.seeds) == 1:
        interval = cell_ci([row["strict"] for row in every], [row["item"] for row in every])
    else:
        interval = crossed_anova(matrix.scores)
    logprobs = [row["logprob"] for row in every]
    mean = None if any(value is None for value in logprobs) else float(np.mean(logprobs))
    unscored = any(row.get("unscored") for row in every)
    return MethodScore(model, task, length, interval, mean, len(matrix.seeds), len(matrix.items), unscored)


def compare(
    a: str, b: str, cells: Mapping[CellKey, Sequence[Row]], draws: Mapping[str, str] | None = None
) -> list[Comparison]:
    """a against b per task and length, and over the suite when there is more than one. Only complete cells go in.

    Pairs the seeds that both have on every task; [] when they share none. ``draws``: by task, what its items are drawn from;
    a task that is not in it shares its draws with itself at other lengths.
    """
    places = sorted({(key.task, key.length) for key in cells})
    if not places:
        return []
    seeds = [{k.seed for k in cells if (k.model, k.task, k.length) == (m, *p)} for m in (a, b) for p in places]
    shared = set.intersection(*seeds)
    if not shared:
        return []
    found, differences, keys = [], [], []
    logprobs: list[Any] = []
    for task, length in places:
        here = {k: rows for k, rows in cells.items() if (k.task, k.length) == (task, length) and k.seed in shared}
        sides = [item_scores({k: rows for k, rows in here.items() if k.model == model}) for model in (a, b)]
        difference = paired_difference(*sides).scores
        differences.append(difference)
        keys.append(draws_key(task, draws or {}, indices_of(here, sides[0].items)))
        logprobs.append(logprob_difference(a, b, here))
        seen = None if logprobs[-1] is None else unbounded_difference(logprobs[-1])
        found.append(Comparison(task, length, verdict(a, b, difference, seed=f"{a}|{b}|{task}|{length}"), seen))
    if len(places) > 1:
        seen = over_finite(places, logprobs, keys)
        pooled, weights = pool_draws(differences, keys)
        found.append(Comparison(SUITE, None, verdict(a, b, pooled, seed=f"{a}|{b}|{SUITE}", weights=weights), seen))
    return found


def over_finite(
    places: Sequence[tuple[str, int]], differences: Sequence[Any], keys: Sequence[Hashable]
) -> Interval | None:
    """The suite's difference in nats over the places where every log-probability is finite; the note names the others."""
    kept = [(d, key) for d, key in zip(differences, keys, strict=True) if d is not None]
    if not kept:
        return None
    left_out = sorted({task for (task, _), d in zip(places, differences, strict=True) if d is None})
    pooled, weights = pool_draws([d for d, _ in kept], [key for _, key in kept])
    seen = unbounded_difference(pooled, weights=weights)
    return replace(seen, note=f"without {', '.join(left_out)}: not finite there") if left_out else seen


def logprob_difference(a: str, b: str, cells: Mapping[CellKey, Sequence[Row]]) -> np.ndarray | None:
    """[seeds, items] of a - b in nats; None when a log-probability is not finite (a diverged state)."""
    if any(row["logprob"] is None for rows in cells.values() for row in rows):
        return None
    sides = [item_scores({k: rows for k, rows in cells.items() if k.model == m}, "logprob") for m in (a, b)]
    return paired_difference(*sides).scores
