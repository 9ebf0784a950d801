"""How much of the memory is open along a context: its mean and its course, from a capacity that a stranger may have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

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
    from proteus_bench.schedules.opened import active_share, open_blocks

    try:
        sizes = (capacity.get("blocks", 1), capacity.get("span", 1), length)
        if not all(isinstance(size, int) and 0 < size <= MAX_POSITIONS for size in sizes):
            return None
        held = Capacity.from_dict(capacity, _schedules())
        if held.is_static or held.gate == "none":
            return 1.0, [1.0] * CURVE_POINTS
        if held.is_data_dependent and not traces:
            return None
        middles = [min(length, (2 * part + 1) * length // (2 * CURVE_POINTS) + 1) for part in range(CURVE_POINTS)]
        mean = active_share(held, length, traces)
        return _share(mean), [_share(open_blocks(held, t, traces) / held.blocks) for t in middles]
    except (BenchError, NotImplementedError, TypeError, ValueError):
        return None


def _share(value: float) -> float:
    return float(rounded(min(1.0, value)) or 0.0)
