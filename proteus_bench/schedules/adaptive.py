"""Schedules that look at the memory: the next block opens when the open ones no longer predict what they are given.

A plain schedule is a function of t. A data-dependent one is a fold: `start()`, then `observe(opening, signal)` at the end of
every chunk of `every` positions, where signal is the mean relative prediction error of the chunk,

    signal = mean over positions, layers and heads of ||n * (v_t - (g.M)(k_t))|| / ||n * v_t||,

M the memory at the chunk's start, g its open blocks and n the open coordinates of v (all of them unless the axis is value).
The fold's whole state is an `Opening`: small, plain and immutable, so that a pass which is cut anywhere continues exactly.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from proteus_bench.schedules.base import CapacityError, Schedule, check_int, check_position


@dataclass(frozen=True, kw_only=True)
class Opening:
    """Where a data-dependent schedule stands: open blocks, positions seen, block-positions spent, the running error.

    `unlocks` holds the first position of every block after those that were open from the start: the k(t) trace.
    `pending` and `seen` are the sum of the signal and the positions of a chunk that is not yet complete.
    """

    k: int
    position: int = 0
    spent: int = 0
    error: float | None = None
    unlocks: tuple[int, ...] = ()
    pending: float = 0.0
    seen: int = 0

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"unlocks": list(self.unlocks)}


@dataclass(frozen=True, kw_only=True)
class DataDependent(Schedule):
    """The protocol: subclasses decide in `opens(opening)`, asked at the end of every chunk of `every` positions."""

    every: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(self.label, "every", self.every, 1)

    def start(self) -> Opening:
        """Before the first position: one block."""
        return Opening(k=1)

    def opens(self, opening: Opening) -> bool:
        """Whether one more block opens after `opening.position`; `opening.error` is the running error."""
        raise NotImplementedError

    def room(self, opening: Opening) -> int:
        """Positions until the end of the present chunk, at least 1: k cannot change before."""
        return self.every - opening.position % self.every

    def advance(self, opening: Opening, positions: int, signal: float | None) -> Opening:
        """After `positions` more positions (at most `room`) with mean signal `signal`; decides if the chunk is complete.

        None: nothing was written there (a backbone that writes whole segments), which says nothing about the error.
        """
        if not 1 <= positions <= self.room(opening):
            raise ValueError(f"{self.label}: {positions} positions do not fit a chunk with room for {self.room(opening)}")
        seen, pending = opening.seen, opening.pending
        if signal is not None:
            seen, pending = seen + positions, pending + positions * signal
        position, spent = opening.position + positions, opening.spent + positions * opening.k
        opening = dataclasses.replace(opening, position=position, spent=spent, seen=seen, pending=pending)
        return self._decide(opening) if opening.position % self.every == 0 else opening

    def _decide(self, opening: Opening) -> Opening:
        if opening.seen == 0:
            return opening
        opening = dataclasses.replace(
            opening, error=self.observe(opening, opening.pending / opening.seen), pending=0.0, seen=0
        )
        if opening.k == self.blocks or not self.opens(opening):
            return opening
        return dataclasses.replace(opening, k=opening.k + 1, unlocks=(*opening.unlocks, opening.position + 1))

    def observe(self, opening: Opening, signal: float) -> float:
        """The running error after a complete chunk of mean signal `signal`."""
        return signal

    def active_blocks(self, t: int) -> int:
        check_position(t)
        raise CapacityError(f"{self.label} depends on the data: k(t) is known only while a model runs")

    def unlock_times(self) -> tuple[int, ...]:
        raise CapacityError(f"{self.label} depends on the data: it has no unlock times of its own")

    def active_blocks_range(self, start: int, n: int) -> np.ndarray:
        raise CapacityError(f"{self.label} depends on the data: k(t) is known only while a model runs")


@dataclass(frozen=True, kw_only=True)
class Surprise(DataDependent):
    """One more block when the running error of the open ones is above `tau`, as long as the budget allows it.

    The running error is an exponential mean over chunks, `error = memory * error + (1 - memory) * signal`. A block opens
    only if staying at k + 1 to the end of the span would keep the mean active fraction over the span within `budget`
    (default: uniform's at E = 16), so the fraction never exceeds it; past the span the budget no longer binds.
    """

    name: ClassVar[str] = "surprise"
    tau: float = 0.5
    budget: float = 0.53125
    memory: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, low, high in (("tau", 0.0, math.inf), ("budget", 0.0, 1.0), ("memory", 0.0, 1.0)):
            value = getattr(self, field)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not low <= value <= high:
                raise CapacityError(f"surprise: {field} must be a number from {low:g} to {high:g}, not {value!r}")
        if self.blocks > 1 and self.budget * self.blocks < 1:
            raise CapacityError(f"surprise: budget={self.budget} is less than the one block of {self.blocks} open at t=1")

    def observe(self, opening: Opening, signal: float) -> float:
        return signal if opening.error is None else self.memory * opening.error + (1 - self.memory) * signal

    def opens(self, opening: Opening) -> bool:
        if opening.error is None or opening.error <= self.tau:
            return False
        left = max(0, self.span - opening.position)
        return left == 0 or opening.spent + (opening.k + 1) * left <= self.budget * self.blocks * self.span

    def mean_active_fraction(self, length: int | None = None) -> float:
        """An upper bound: the budget up to the span; past it every block may be open."""
        length = self.span if length is None else length
        if length < 1:
            raise CapacityError(f"length must be at least 1, got {length}")
        inside = min(length, self.span)
        most = min(self.budget * self.span, float(inside))
        return (most + length - inside) / length
