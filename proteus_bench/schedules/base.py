"""The schedule protocol: how many blocks of a memory are active at position t (1-based).

Source: Proteus, arXiv 2608.16844 (uniform prefix); the other schedules are controls around it.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from proteus_bench.errors import UsageError

MAX_BLOCKS = 1 << 16
# Past this position a block that has not opened counts as one that never opens; no span may be longer.
MAX_POSITION = 1 << 40


class CapacityError(UsageError):
    """A schedule or a capacity that cannot exist (exit 2)."""


def check_int(owner: str, field: str, value: object, low: int, high: int | None = None) -> None:
    """Raise CapacityError unless ``value`` is a real int (no bool) with low <= value (<= high)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise CapacityError(f"{owner}: {field} must be an integer of at least {low}, not {value!r}")
    if high is not None and value > high:
        raise CapacityError(f"{owner}: {field} must be at most {high}, not {value}")


def check_fraction(owner: str, field: str, value: object) -> None:
    """Raise CapacityError unless ``value`` is a number with 0 <= value <= 1 (a fraction of the span)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise CapacityError(f"{owner}: {field} must be a fraction of the span between 0 and 1, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which prefix of ``blocks`` equal memory blocks is active at each position of ``span``.

    A new schedule subclasses this, sets ``name``, and overrides **one** of ``active_blocks`` and ``unlock_times``; the
    other follows. Extra dataclass fields become its parameters in the model grammar (``titans+mine(rate=2)``).
    A schedule that may close blocks again sets ``monotone = False`` and overrides ``active_blocks``.
    """

    name: ClassVar[str] = ""
    monotone: ClassVar[bool] = True

    blocks: int = 16
    span: int = 8192

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.active_blocks is Schedule.active_blocks and (
            cls.unlock_times is Schedule.unlock_times or not cls.monotone
        ):
            need = "active_blocks or unlock_times" if cls.monotone else "active_blocks (it is not monotone)"
            raise TypeError(f"schedule {cls.__name__} must define {need}")

    def __post_init__(self) -> None:
        check_int(self.label, "blocks", self.blocks, 1, MAX_BLOCKS)
        check_int(self.label, "span", self.span, 1, MAX_POSITION)

    @property
    def label(self) -> str:
        """The registered name, or the class name of an unregistered schedule."""
        return self.name or type(self).__name__

    def active_blocks(self, t: int) -> int:
        """Number of active blocks k(t), 1 <= k <= blocks, at 1-based position ``t``. Raises ValueError for t < 1."""
        check_position(t)
        return bisect_right(self._unlocks, t)

    def unlock_times(self) -> tuple[int, ...]:
        """First position at which each block is active: ``blocks`` ascending ints, the first is 1.

        Raises CapacityError for a schedule that is not monotone or that never opens all blocks.
        """
        if not self.monotone:
            raise CapacityError(f"{self.label} closes blocks again: it has no unlock times")
        return tuple(self._first_position(block) for block in range(1, self.blocks + 1))

    def _first_position(self, block: int) -> int:
        high = 1
        while self.active_blocks(high) < block:
            high *= 2
            if high > MAX_POSITION:
                raise CapacityError(f"{self.label} never opens block {block} of {self.blocks}")
        low = high // 2 + 1 if high > 1 else 1
        while low < high:
            middle = (low + high) // 2
            if self.active_blocks(middle) >= block:
                high = middle
            else:
                low = middle + 1
        return low

    @cached_property
    def _unlocks(self) -> tuple[int, ...]:
        return self.unlock_times()

    def active_blocks_range(self, start: int, n: int) -> np.ndarray:
        """k at the ``n`` positions after the first ``start`` ones (positions start+1 .. start+n). int64 ``[n]``."""
        if start < 0 or n < 0:
            raise ValueError(f"start and n must not be negative, got {start} and {n}")
        if self.monotone:
            positions = np.arange(start + 1, start + n + 1, dtype=np.int64)
            return np.searchsorted(np.asarray(self._unlocks, dtype=np.int64), positions, side="right").astype(np.int64)
        return np.fromiter((self.active_blocks(t) for t in range(start + 1, start + n + 1)), dtype=np.int64, count=n)

    def mean_active_fraction(self, length: int | None = None) -> float:
        """Mean of k/E over the first ``length`` positions, in (0, 1]; over the span when None, which is the budget.

        Two schedules are compared at equal budget.
        """
        length = self.span if length is None else length
        if length < 1:
            raise CapacityError(f"length must be at least 1, got {length}")
        if self.monotone:  # a block that opens at u is active for length - u + 1 positions: no array needed
            total = sum(max(0, length + 1 - time) for time in self._unlocks)
        else:
            total = int(self.active_blocks_range(0, length).sum())
        return total / (length * self.blocks)

    def params(self) -> dict[str, Any]:
        """The schedule's own parameters: every field but ``blocks`` and ``span``."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("blocks", "span")}

    def with_span(self, span: int) -> Schedule:
        """The same schedule over another span (a length curriculum stretches the span with the length)."""
        return dataclasses.replace(self, span=span)


def check_position(t: int) -> None:
    """Positions are 1-based; a zero is nearly always an index that was not shifted, so it raises."""
    if t < 1:
        raise ValueError(f"positions are 1-based, got t={t}")
