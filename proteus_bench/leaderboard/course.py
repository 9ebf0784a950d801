"""How much of the memory is open along a context: its mean and its course, from a capacity that a stranger may have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from proteus_bench.errors import BenchError
from proteus_bench.leaderboard.forms import rounded
from proteus_bench.leaderboard.schema import CURVE_POINTS

MAX_POSITIONS = 1 << 24
"""No real context is longer; a capacity that a stranger wrote may say so."""


@lru_cache(maxsize=1)
def _schedules() -> dict[str, Any]:
    """Looking for plugins takes a tenth of a second; a leaderboard asks a thousand times."""
    from proteus_bench.registry import schedule_classes

    return schedule_classes()


def capacity_course(
    capacity: Mapping[str, Any], length: int, traces: Sequence[Sequence[int]] = ()
) -> tuple[float, list[float]] | None:
    """(mean open share, its course in `CURVE_POINTS` equal parts) over a context of ``length`` tokens.

    traces: where blocks opened, of a schedule that depends on the data. None for a schedule that is not known here.
    """
    from proteus_bench.schedules import Capacity

    try:
        sizes = (capacity.get("blocks", 1), capacity.get("span", 1), length)
        if not all(isinstance(size, int) and 0 < size <= MAX_POSITIONS for size in sizes):
            return None
        held = Capacity.from_dict(capacity, _schedules())
        if held.is_static or held.gate == "none":
            return 1.0, [1.0] * CURVE_POINTS
        positions = np.linspace(0, length, 2 * CURVE_POINTS + 1)[1::2].astype(np.int64) + 1
        if held.is_data_dependent:
            if not traces:
                return None
            blocks = np.array([[1 + np.searchsorted(trace, at, "right") for at in positions] for trace in traces]).mean(0)
            spent = [length + sum(max(0, length + 1 - time) for time in trace) for trace in traces]
            mean = sum(spent) / (len(spent) * length * held.blocks)
        else:
            blocks = np.array([held.schedule.active_blocks(int(min(at, length))) for at in positions])
            mean = held.mean_active_fraction(length)
        course = [float(rounded(min(1.0, b / held.blocks)) or 0.0) for b in blocks]
        return float(rounded(min(1.0, mean)) or 0.0), course
    except (BenchError, NotImplementedError, TypeError, ValueError):
        return None
