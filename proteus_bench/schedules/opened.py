"""How much of a memory is open along a context: by the schedule, or by what was recorded where the data decided."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from proteus_bench.schedules.capacity import Capacity

Traces = Sequence[Sequence[int]]
"""Per item, the positions at which a block opened after the first: the k(t) of a data-dependent schedule."""


def open_blocks(capacity: Capacity, t: int, traces: Traces = ()) -> float:
    """Open blocks at position t >= 1: the mean over `traces` where the data decides, which then needs at least one."""
    if capacity.is_data_dependent:
        return sum(1 + bisect_right(trace, t) for trace in traces) / len(traces)
    return capacity.schedule.active_blocks(t)


def active_share(capacity: Capacity, length: int, traces: Traces = ()) -> float:
    """Mean active fraction over the first ``length`` positions, in (0, 1]; of the traces where the data decided."""
    if capacity.is_static:
        return 1.0
    if capacity.is_data_dependent and traces:
        spent = [length + sum(max(0, length + 1 - time) for time in trace) for trace in traces]
        return sum(spent) / (len(spent) * length * capacity.blocks)
    return capacity.mean_active_fraction(length)
