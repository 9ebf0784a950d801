"""The text side: what was asked for, where it stood, and what came back. Rows of a run and its items become records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proteus_bench.errors import InvalidFileError
from proteus_bench.stats import (
    Interval,
    ScoreMatrix,
    cell_ci,
    cluster_mean_ci,
    crossed_anova,
    paired_difference,
    score_matrix,
    unbounded_difference,
    verdict,
)
from proteus_bench.store import CellKey

Row = dict[str, Any]
BLOCKS = 16


@dataclass(frozen=True)
class Record:
    """One answered question. block: of its fact, 0..15 of the context. distance: tokens from the fact to the context's end.

    stale: 1.0 when the value that was replaced is in the answer. logprob: nats, None when not finite.
    """

    model: str
    task: str
    length: int
    seed: int
    index: int
    key: str
    role: str
    block: int
    distance: int
    strict: float
    stale: float
    logprob: float | None


def records(
    rows: Mapping[CellKey, Sequence[Row]], item_of: Callable[[CellKey, int], Any]
) -> list[Record]:
    """One record a row. ``item_of(cell, index)`` makes the item again; InvalidFileError when it is not the one asked."""
    found: list[Record] = []
    items: dict[tuple[str, int, int, str], Any] = {}
    for key, answered in rows.items():
        for row in answered:
            name = (key.task, key.length, row["index"], row["item_sha256"])
            if name not in items:
                item = items[name] = item_of(key, row["index"])
                if item.sha256 != row["item_sha256"]:
                    raise InvalidFileError(f"{row['item']}: the item that was answered cannot be made again")
            found.append(_record(key, row, items[name]))
    return found


def _record(key: CellKey, row: Row, item: Any) -> Record:
    asked, slot = item.meta["asked"], row["question"]
    needle = item.needles[asked[slot]]
    tokens, stale = row["context_tokens"], item.meta["stale"][slot]
    return Record(
        model=key.model,
        task=key.task,
        length=key.length,
        seed=key.seed,
        index=row["index"],
        key=needle.key,
        role=item.meta["roles"][asked[slot]],
        block=min(BLOCKS - 1, BLOCKS * needle.token_offset // tokens),
        distance=tokens - needle.token_offset,
        strict=row["strict"],
        stale=float(stale is not None and stale in row["output"]),
        logprob=row["logprob"],
    )


def pick(found: Iterable[Record], **wanted: Any) -> list[Record]:
    """Records whose fields have these values."""
    return [record for record in found if all(getattr(record, name) == value for name, value in wanted.items())]


def matrix(found: Sequence[Record], column: str = "strict") -> ScoreMatrix:
    """Mean of a column by seed and item index. PairingError when a seed lacks an item."""
    table: dict[tuple[int, int], list[float]] = {}
    for record in found:
        table.setdefault((record.seed, record.index), []).append(getattr(record, column))
    return score_matrix((seed, str(index), float(np.mean(values))) for (seed, index), values in table.items())


def estimate(found: Sequence[Record], column: str = "strict") -> Interval | None:
    """Mean with an interval over seeds and items (over items with one seed). None without records or when not finite."""
    if not found or any(getattr(record, column) is None for record in found):
        return None
    if column == "logprob":
        seen = unbounded_difference(matrix(found, column).scores)
        return replace(seen, hi=None if seen.hi is None else min(0.0, seen.hi))  # no log-probability is above zero
    if len({record.seed for record in found}) > 1:
        return crossed_anova(matrix(found, column).scores)
    values = [getattr(record, column) for record in found]
    clusters = [record.index for record in found]
    if len(set(clusters)) == len(clusters):
        return cell_ci(values)
    return cluster_mean_ci(values, clusters)


def effect(name: str, a: Sequence[Record], b: Sequence[Record], column: str = "strict") -> Interval | None:
    """Mean of a - b, paired by seed and item index; the interval by the rules of every comparison. None when not finite."""
    if not a or not b or any(getattr(record, column) is None for record in (*a, *b)):
        return None
    difference = paired_difference(matrix(a, column), matrix(b, column)).scores
    return effect_of(name, difference, column)


def effect_of(name: str, difference: np.ndarray, column: str = "strict") -> Interval:
    """The interval of paired differences ``[seeds, items]``."""
    if column == "logprob":
        return unbounded_difference(difference)
    return verdict(name, "", difference, seed=name).primary
