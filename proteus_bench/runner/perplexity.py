"""Perplexity of a cell, for tasks whose score is the probability of running text: with an interval, and in bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from proteus_bench.score.rules import PROBABILITY
from proteus_bench.stats.intervals import t_quantile
from proteus_bench.store import CellKey

Row = dict[str, Any]


@dataclass(frozen=True)
class Perplexity:
    """Perplexity per token with its 95% interval (None with one item), the windows' tokens, and bits per UTF-8 byte.

    Where the items count words, those stand for tokens, as in lm-eval's word perplexity.
    """

    value: float
    ci_low: float | None
    ci_high: float | None
    tokens: int
    bits_per_byte: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def perplexity_of(rows: Sequence[Row]) -> Perplexity | None:
    """From the rows of one cell. None for other tasks, and where a log-probability is not finite.

    exp of the ratio (nats of all windows / tokens of all windows); its standard error is that of a ratio of sums over
    independent windows (linearised), with Student's quantile at windows - 1 degrees of freedom.
    """
    if not rows or any(not _is_running(row) or row["logprob"] is None for row in rows):
        return None
    nats = np.array([-row["logprob"] for row in rows])
    tokens = np.array([row.get("words", row["gold_tokens"]) for row in rows], dtype=np.float64)
    mean = float(nats.sum() / tokens.sum())
    octets = sum(row.get("bytes") or sum(len(f" {gold}".encode()) for gold in row["golds"]) for row in rows)
    low = high = None
    if len(rows) > 1:
        n = len(rows)
        spread = math.sqrt(n / (n - 1) * float(((nats - mean * tokens) ** 2).sum())) / float(tokens.sum())
        half = t_quantile(0.95, n - 1) * spread
        low, high = _exp(mean - half), _exp(mean + half)
    bits = float(nats.sum()) / math.log(2) / octets
    return Perplexity(_exp(mean), low, high, int(tokens.sum()), bits)


def _is_running(row: Row) -> bool:
    """Whether a row's gold is text whose perplexity is asked."""
    return "words" in row or row.get("scorers", [None])[0] == PROBABILITY


def _exp(value: float) -> float:
    """exp without overflow: the largest perplexity is 1e300."""
    return min(1e300, math.exp(min(value, 690.0)))


def perplexity_lines(cells: Sequence[tuple[CellKey, Perplexity]], named: bool = False) -> list[str]:
    """The perplexity of each cell as a line of the report, with the task's name where ``named``."""
    lines = []
    for key, found in sorted(cells, key=lambda cell: (cell[0].model, cell[0].length, cell[0].seed, cell[0].task)):
        bounds = "" if found.ci_low is None else f" [{found.ci_low:.2f}, {found.ci_high:.2f}]"
        place = f"{key.model} seed {key.seed} {f'on {key.task} ' if named else ''}at {key.length}"
        lines.append(f"{place}: perplexity {found.value:.2f}{bounds}, {found.bits_per_byte:.3f} bits per byte")
    return lines
