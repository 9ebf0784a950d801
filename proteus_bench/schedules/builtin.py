"""The built-in schedules. Budgets below are mean active fractions over the span N, for N a multiple of E blocks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from proteus_bench.schedules.adaptive import Surprise
from proteus_bench.schedules.base import CapacityError, Schedule, check_fraction, check_int, check_position


@dataclass(frozen=True, kw_only=True)
class Static(Schedule):
    """Everything is active from the first position: the base model. Budget 1."""

    name: ClassVar[str] = "static"
    blocks: int = 1

    def unlock_times(self) -> tuple[int, ...]:
        return (1,) * self.blocks


@dataclass(frozen=True, kw_only=True)
class Uniform(Schedule):
    """The paper's uniform prefix: one more block every ``max(1, N // E)`` positions. Budget (E+1)/2E (0.531 at E=16).

    Proteus, arXiv 2608.16844. N is the training context; past it all blocks stay open.
    With fewer positions than blocks (N < E) the last blocks open past the span.
    """

    name: ClassVar[str] = "uniform"

    @property
    def delta(self) -> int:
        """Positions between two unlocks."""
        return max(1, self.span // self.blocks)

    def active_blocks(self, t: int) -> int:
        check_position(t)
        return min(self.blocks, 1 + (t - 1) // self.delta)

    def unlock_times(self) -> tuple[int, ...]:
        return tuple(1 + block * self.delta for block in range(self.blocks))


@dataclass(frozen=True, kw_only=True)
class Stretched(Uniform):
    """Uniform with its step multiplied by ``factor``, so that it goes on opening past the training span.

    The step is ``max(1, floor(max(1, N // E) * factor))``. Budget over N: about uniform's for factor 1, below it for
    factor > 1 ((E/factor + 1)/2E when factor divides E); over ``factor * N`` it is uniform's.
    """

    name: ClassVar[str] = "stretched"
    factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.factor, int | float) and not isinstance(self.factor, bool)
        # 2^20 keeps every unlock time of any real span inside 64-bit positions.
        if not number or not (math.isfinite(self.factor) and 0 < self.factor <= 2**20):
            raise CapacityError(f"stretched: factor must be a number in (0, {2**20}], not {self.factor!r}")

    @property
    def delta(self) -> int:
        return max(1, math.floor(super().delta * self.factor))


@dataclass(frozen=True, kw_only=True)
class Geometric(Schedule):
    """Unlock times double: the last block opens after N/2 positions, the one before after N/4, and so on.

    Where halving falls below one position a block (E > log2 N) the first blocks open one position apart. The budget is
    therefore far above uniform's (about 1 - 1/E: 0.937 at E=16, N=8192): state it, or compare at another ``blocks``.
    """

    name: ClassVar[str] = "geometric"

    def unlock_times(self) -> tuple[int, ...]:
        offsets = (max(block - 1, self.span >> (self.blocks - block + 1)) for block in range(2, self.blocks + 1))
        return (1, *(1 + offset for offset in offsets))


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Schedule):
    """``few`` blocks until ``floor(until * N)`` positions have passed, then all: the early force alone.

    Budget ``until * few / E + 1 - until``: the defaults have exactly uniform's, (E+1)/2E.
    """

    name: ClassVar[str] = "bottleneck"
    until: float = 0.5
    few: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("bottleneck", "until", self.until)
        check_int("bottleneck", "few", self.few, 1)
        if self.few > self.blocks:
            raise CapacityError(f"bottleneck: few={self.few} is more than blocks={self.blocks}")

    def unlock_times(self) -> tuple[int, ...]:
        opening = 1 + math.floor(self.until * self.span)
        return (1,) * self.few + (opening,) * (self.blocks - self.few)


@dataclass(frozen=True, kw_only=True)
class Late(Schedule):
    """Half of the blocks (rounded up) at first, the rest after ``floor(start * N)`` positions: fresh capacity alone.

    Budget for even E: ``1 - start / 2``; it is uniform's at ``start = 1 - 1/E``.
    """

    name: ClassVar[str] = "late"
    start: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction("late", "start", self.start)

    def unlock_times(self) -> tuple[int, ...]:
        early = (self.blocks + 1) // 2
        opening = 1 + math.floor(self.start * self.span)
        return (1,) * early + (opening,) * (self.blocks - early)


@dataclass(frozen=True, kw_only=True)
class Random(Schedule):
    """Unlock times drawn from ``seed``, moved until the budget is **exactly** uniform's: the control for timing.

    The first block is open from position 1, the others open inside the span. Drawn with ``random.Random``, whose
    ``random()`` is stable across Python versions.
    """

    name: ClassVar[str] = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("random", "seed", self.seed, 0)

    def unlock_times(self) -> tuple[int, ...]:
        count = self.blocks - 1
        if count == 0:
            return (1,)
        # With fewer positions than blocks uniform leaves blocks closed, and so must its control (offset N: never seen).
        low, high = 1, self.span if self.blocks > self.span else self.span - 1
        twin = Uniform(blocks=self.blocks, span=self.span).unlock_times()
        target = sum(min(time - 1, self.span) for time in twin[1:])
        rng = random.Random(self.seed)
        offsets = [low + int(rng.random() * (high - low + 1)) for _ in range(count)]
        order = sorted(range(count), key=lambda _: rng.random())
        return (1, *sorted(1 + offset for offset in _move_to_sum(offsets, target, low, high, order)))


def _move_to_sum(offsets: list[int], target: int, low: int, high: int, order: list[int]) -> list[int]:
    """Shift all offsets alike, inside [low, high], until they sum to ``target``; the odd units go in ``order``."""
    moved = list(offsets)
    while missing := target - sum(moved):
        sign = 1 if missing > 0 else -1
        share = abs(missing) // len(moved)
        for index in order:
            step = min(max(share, 1), abs(target - sum(moved)))
            moved[index] = min(high, max(low, moved[index] + sign * step))
    return moved


@dataclass(frozen=True, kw_only=True)
class Reverse(Schedule):
    """Uniform run backwards: all blocks at first, one fewer every step, one block past the span. Negative control.

    Budget (E+1)/2E, exactly uniform's when E divides N (below it otherwise: the remainder is spent with one block).
    """

    name: ClassVar[str] = "reverse"
    monotone: ClassVar[bool] = False

    def active_blocks(self, t: int) -> int:
        return self.blocks + 1 - self._twin.active_blocks(t)

    def active_blocks_range(self, start: int, n: int) -> np.ndarray:
        return self.blocks + 1 - self._twin.active_blocks_range(start, n)

    def mean_active_fraction(self, length: int | None = None) -> float:
        return 1 + 1 / self.blocks - self._twin.mean_active_fraction(length)

    @cached_property
    def _twin(self) -> Uniform:
        return Uniform(blocks=self.blocks, span=self.span)


BUILTIN: dict[str, type[Schedule]] = {
    cls.name: cls for cls in (Static, Uniform, Stretched, Geometric, Bottleneck, Late, Random, Reverse, Surprise)
}
