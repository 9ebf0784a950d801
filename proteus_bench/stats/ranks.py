"""Ranks that show ties as ties: an interval of places from corrected pairwise comparisons, never from point values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Rank:
    """Places ``best`` to ``worst`` (1 is the top) that the comparisons leave open. ``group``: tie group, 1 is the top."""

    name: str
    best: int
    worst: int
    group: int

    def __str__(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best}-{self.worst}"


def rank_intervals(names: Sequence[str], outcomes: Mapping[tuple[str, str], int]) -> list[Rank]:
    """Rank of each name: [1 + significantly better ones, k - significantly worse ones], in the order of ``names``.

    ``outcomes[a, b]``: 1 when a is shown better than b, -1 worse, 0 not separable; one entry for every unordered pair.
    Equal intervals share a tie group. Raises ValueError for a missing pair, one given twice with different results, or
    a name given twice.
    """
    if len(set(names)) != len(names):
        raise ValueError("a name stands twice in a ranking")
    above = dict.fromkeys(names, 0)
    below = dict.fromkeys(names, 0)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            result = _outcome(outcomes, a, b)
            winner, loser = (a, b) if result > 0 else (b, a)
            if result:
                above[loser] += 1
                below[winner] += 1
    spans = {name: (1 + above[name], len(names) - below[name]) for name in names}
    groups = {span: index for index, span in enumerate(sorted(set(spans.values())), 1)}
    return [Rank(name, *spans[name], groups[spans[name]]) for name in names]


def _outcome(outcomes: Mapping[tuple[str, str], int], a: str, b: str) -> int:
    found = {outcomes[a, b]} if (a, b) in outcomes else set()
    found |= {-outcomes[b, a]} if (b, a) in outcomes else set()
    if len(found) != 1 or not found <= {-1, 0, 1}:
        raise ValueError(f"{a} and {b} are not compared, or with two results")
    return found.pop()
