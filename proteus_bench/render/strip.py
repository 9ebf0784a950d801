"""The schedule strip: how much of the memory is open along the positions, one line a model."""

from __future__ import annotations

from proteus_bench.schedules import Capacity

_BARS = "▁▂▃▄▅▆▇█"
_ASCII = "12345678"
_MARK, _ASCII_MARK = "│", "|"


def schedule_strip(capacity: Capacity, length: int, train_length: int, width: int = 48, unicode: bool = True) -> str:
    """``width`` columns over positions 1..``length``; the height of a column is the share of open blocks at its middle.

    A bar stands where training ended, when the length goes beyond it. Raises ValueError for a length or width under 1.
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
        k = capacity.blocks if open_all else capacity.schedule.active_blocks(min(middle, length))
        text += bars[max(0, -(-k * len(bars) // capacity.blocks) - 1)]
    return text


def active_share(capacity: Capacity, length: int) -> float:
    """Mean active fraction over the first ``length`` positions, in (0, 1]."""
    return 1.0 if capacity.is_static else capacity.mean_active_fraction(length)
