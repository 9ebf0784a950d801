"""Recall against load: where it falls below a level, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proteus_bench.stats import Interval


@dataclass(frozen=True)
class Overload:
    """The load (pairs) at which recall falls below ``level``: ``point``, and the interval ``lo`` to ``hi``.

    -inf: below the smallest load that was asked; inf: above the largest.
    """

    level: float
    point: float
    lo: float
    hi: float
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"{self._word(self.point)} [{self._word(self.lo)}, {self._word(self.hi)}]"

    def _word(self, load: float) -> str:
        if math.isinf(load):
            return f"< {self.smallest:g}" if load < 0 else f"> {self.largest:g}"
        return f"{load:.0f}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what lies outside the loads is None, and in words in ``text``."""
        ends = {name: None if math.isinf(v) else v for name, v in (("point", self.point), ("lo", self.lo), ("hi", self.hi))}
        return {"level": self.level, **ends, "smallest": self.smallest, "largest": self.largest, "text": str(self)}


def falling(values: Sequence[float]) -> np.ndarray:
    """The closest sequence (least squares, equal weights) that never rises: pool adjacent violators."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] < mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    return np.concatenate([np.full(size, mean) for mean, size in blocks])


def crossing(loads: Sequence[float], values: Sequence[float], level: float) -> float:
    """Where a falling curve goes under ``level``, linear in log2(load): -inf before the first load, inf after the last."""
    curve = falling(values)
    if curve[0] < level:
        return -math.inf
    if curve[-1] >= level:
        return math.inf
    i = int(np.argmax(curve < level))
    share = (curve[i - 1] - level) / (curve[i - 1] - curve[i])
    return float(2 ** (math.log2(loads[i - 1]) + share * (math.log2(loads[i]) - math.log2(loads[i - 1]))))


def overload(loads: Sequence[float], intervals: Sequence[Interval], level: float = 0.9) -> Overload:
    """Point: the falling mean's crossing. Interval: the loads whose recall interval holds the level (a test, inverted), so
    from the crossing of the lower ends to that of the upper ends. An interval that is missing is taken as [0, 1]."""
    if len(loads) < 2 or list(loads) != sorted(set(loads)) or len(loads) != len(intervals):
        raise ValueError("an overload point needs at least two rising loads")
    lows = [0.0 if interval.lo is None else interval.lo for interval in intervals]
    highs = [1.0 if interval.hi is None else interval.hi for interval in intervals]
    point, lo, hi = (crossing(loads, v, level) for v in ([interval.mean for interval in intervals], lows, highs))
    return Overload(level, point, lo, hi, float(loads[0]), float(loads[-1]))
