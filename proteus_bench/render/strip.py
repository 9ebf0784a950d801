"""The schedule strip: how much of the memory is open along the positions, one line a model."""

from __future__ import annotations

import math

from proteus_bench.schedules import Capacity
from proteus_bench.schedules.opened import Traces, open_blocks

_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "12345678"
_MARK, _ASCII_MARK = "│", "|"


def schedule_strip(
    capacity: Capacity, length: int, train_length: int, width: int = 48, unicode: bool = True, traces: Traces = ()
) -> str:
    """``width`` columns over positions 1..``length``; the height of a column is the share of open blocks at its middle.

    A bar stands where training ended, when the length goes beyond it. A data-dependent schedule is drawn as the mean of
    its `traces`, and as dots without one. Raises ValueError for a length or width under 1.
    """
    if length < 1 or width < 1:
        raise ValueError(f"length and width must be at least 1, got {length} and {width}")
    bars, mark = (_BARS, _MARK) if unicode else (_ASCII, _ASCII_MARK)
    columns = min(width, length)
    open_all = capacity.gate == "none" or capacity.is_static
    text = ""
    for column in range(columns):
        begin = column * length // columns
        if column and begin >= train_length > (column - 1) * length // columns:
            text += mark
        middle = (begin + (column + 1) * length // columns) // 2 + 1
        if capacity.is_data_dependent and not traces:
            text += "."
            continue
        k = capacity.blocks if open_all else open_blocks(capacity, min(middle, length), traces)
        text += bars[max(0, math.ceil(k * len(bars) / capacity.blocks) - 1)]
    return text
