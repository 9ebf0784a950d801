"""Item scores as an entry holds them: one text a seed, apart for each role of the asked facts where a probe has several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proteus_bench.leaderboard.forms import DECIMALS
from proteus_bench.leaderboard.schema import RoleScores

if TYPE_CHECKING:
    from proteus_bench.leaderboard.items import Facts

Rows = Sequence[Mapping[str, Any]]


def item_text(rows: Rows) -> str:
    """Mean strict score of each item's questions, in index order, parted by spaces."""
    table: dict[int, list[float]] = {}
    for row in rows:
        table.setdefault(row["index"], []).append(row["strict"])
    return " ".join(f"{sum(table[index]) / len(table[index]):.{DECIMALS}g}" for index in sorted(table))


def role_scores(by_seed: Sequence[Rows], facts: Sequence[Facts] | None) -> list[RoleScores]:
    """Scores of each role of the asked facts; [] where the items name none, or were not made again."""
    if not facts or "roles" not in facts[0].scored.meta:
        return []
    role_of = _roles(facts)
    roles = sorted({role_of(row) for row in by_seed[0]})
    return [
        RoleScores(
            role=role,
            asked=sum(row["index"] == by_seed[0][0]["index"] and role_of(row) == role for row in by_seed[0]),
            scores=[item_text([row for row in rows if role_of(row) == role]) for rows in by_seed],
        )
        for role in roles
    ]


def _roles(facts: Sequence[Facts]) -> Callable[[Mapping[str, Any]], str]:
    def role_of(row: Mapping[str, Any]) -> str:
        meta = facts[row["index"]].scored.meta
        return str(meta["roles"][meta["asked"][row["question"]]])

    return role_of


def parse_scores(scores: Sequence[str]) -> np.ndarray:
    """``[seeds, items]`` from an entry's texts. ValueError for rows of different lengths or scores outside of [0, 1]."""
    rows = [np.array(text.split(" "), dtype=np.float64) for text in scores]
    if len({len(row) for row in rows}) != 1:
        raise ValueError("the seeds have different numbers of items")
    matrix = np.stack(rows)
    if not ((matrix >= 0) & (matrix <= 1)).all():
        raise ValueError("a score is not between 0 and 1")
    return matrix
