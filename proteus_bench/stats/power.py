"""Planning: which true difference a number of seeds and items can find, and what a difference takes.

The design is that of `crossed`: S seeds x N items, the variances are those of paired differences. Everything is computed
with the noncentral t distribution at the planned Satterthwaite degrees of freedom; the normal formula of
Miller (arXiv 2411.00640), which is optimistic for few seeds, is kept beside it as `minimum_detectable_effect`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from proteus_bench.stats.crossed import as_tasks, components
from proteus_bench.stats.intervals import check_level

MAX_SEEDS = 1000
MAX_ITEMS = 10_000_000


@dataclass(frozen=True)
class Variances:
    """Variance components of one paired difference: between seeds, between items, and what is left (squared scores).

    For a suite they are those of the weighted mean over its tasks, with N items in every task.
    """

    seed: float
    item: float
    residual: float

    def __post_init__(self) -> None:
        values = (self.seed, self.item, self.residual)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"variances must be finite and not negative, got {values}")


def minimum_detectable_effect(
    seed_var: float, item_var: float, res_var: float, seeds: int, items: int, level: float = 0.95, power: float = 0.8
) -> float:
    """Smallest true difference found with ``power``: (z + z_power) sqrt(s2_seed/S + s2_item/N + s2_res/(S N)).

    The variances are those of paired differences (`Components.variances`). A normal approximation: optimistic for few
    seeds, where t quantiles are larger; `detectable` is the exact one.
    """
    if seeds < 1 or items < 1 or min(seed_var, item_var, res_var) < 0:
        raise ValueError("need at least one seed and one item, and non-negative variances")
    return _reach(level, power) * math.sqrt(seed_var / seeds + item_var / items + res_var / (seeds * items))


def proportion_error(p: float, n: int) -> float:
    """Standard error sqrt(p (1 - p) / n) of a share ``p`` of ``n`` items: for planning, never for an interval."""
    if n < 1 or not 0 <= p <= 1:
        raise ValueError(f"need a share between 0 and 1 of at least one item, got {p} of {n}")
    return math.sqrt(p * (1 - p) / n)


def pilot_variances(
    D: np.ndarray | Sequence[np.ndarray], weights: Sequence[float] | None = None
) -> tuple[Variances, float]:
    """Variance components of paired differences ``D[S, N]`` (or one matrix per task), and their mean.

    Negative estimates are set to zero. With one seed the seed variance cannot be known: it is given as 0 and everything
    else as item variance, so that a plan from it is a lower bound. Raises ValueError for a task with one item.
    """
    tasks, w_K = as_tasks(D, weights)
    seeds = tasks[0].shape[0]
    if min(task.shape[1] for task in tasks) < 2:
        raise ValueError("a pilot needs at least two items in every task")
    mean = float(sum(w * task.mean() for w, task in zip(w_K, tasks, strict=True)))
    if seeds == 1:
        item = sum(w * w * float(task[0].var(ddof=1)) for w, task in zip(w_K, tasks, strict=True))
        return Variances(0.0, float(item), 0.0), mean
    y_S = sum(w * task.mean(axis=1) for w, task in zip(w_K, tasks, strict=True))
    parts = [components(task).variances() for task in tasks]
    item, residual = (sum(w * w * part[i] for w, part in zip(w_K, parts, strict=True)) for i in (1, 2))
    noise = sum(w * w * part[2] / task.shape[1] for w, part, task in zip(w_K, parts, tasks, strict=True))
    return Variances(max(0.0, float(np.var(y_S, ddof=1)) - noise), item, residual), mean


def planned_error(v: Variances, seeds: float, items: float) -> tuple[float, float]:
    """(standard error, degrees of freedom) of a difference with ``seeds`` x ``items``; one seed: over items only."""
    if seeds < 1 or items < 1 or seeds * items <= 1:
        raise ValueError(f"need at least one seed, one item and two scores, got {seeds} x {items}")
    variance = v.seed / seeds + v.item / items + v.residual / (seeds * items)
    if seeds == 1:
        return math.sqrt(v.item / items + v.residual / items), items - 1
    if items == 1:
        return math.sqrt(v.seed / seeds + v.residual / seeds), seeds - 1
    ms_seed, ms_item = v.residual + items * v.seed, v.residual + seeds * v.item
    spread = ms_seed**2 / (seeds - 1) + ms_item**2 / (items - 1) + v.residual**2 / ((seeds - 1) * (items - 1))
    total = ms_seed + ms_item - v.residual
    df = total**2 / spread if spread > 0 else (seeds - 1) * (items - 1)
    return math.sqrt(variance), max(df, min(seeds, items) - 1)


def power_of(difference: float, v: Variances, seeds: float, items: float, level: float = 0.95) -> float:
    """Probability that the interval of a true ``difference`` excludes zero on its side.

    Never more than with any number of items and these seeds, or of seeds and these items: where few seeds dominate, the
    planned degrees of freedom alone would say that fewer items find more.
    """
    check_level(level)
    found = _power(difference, *planned_error(v, seeds, items), level)
    if seeds > 1 and items > 1:
        found = min(found, _power(difference, math.sqrt(v.seed / seeds), seeds - 1, level))
        found = min(found, _power(difference, math.sqrt(v.item / items), items - 1, level))
    return found


def _power(difference: float, se: float, df: float, level: float) -> float:
    from scipy.special import nctdtr, stdtrit

    if se == 0:
        return 1.0 if difference else 0.0
    critical = float(stdtrit(df, (1 + level) / 2))
    shift = abs(difference) / se
    if shift > critical + 30:  # the distribution function loses its digits there, and the power is one
        return 1.0
    return float(1 - nctdtr(df, shift, critical))


def detectable(v: Variances, seeds: float, items: float, level: float = 0.95, power: float = 0.8) -> float:
    """The true difference that is found with ``power``: exact where the differences are normal (noncentral t)."""
    check_level(power)
    se, _ = planned_error(v, seeds, items)
    if se == 0:
        return 0.0
    low, high = 0.0, se
    while power_of(high, v, seeds, items, level) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        if power_of(middle, v, seeds, items, level) < power:
            low = middle
        else:
            high = middle
    return high


def items_needed(
    difference: float, v: Variances, seeds: int, level: float = 0.95, power: float = 0.8
) -> int | None:
    """Fewest items (per task) that find ``difference`` with ``power``; None when no number does with these seeds."""
    return _fewest(lambda n: power_of(difference, v, seeds, n, level) >= power, 2, MAX_ITEMS)


def seeds_needed(
    difference: float, v: Variances, items: int, level: float = 0.95, power: float = 0.8
) -> int | None:
    """Fewest seeds (at least 2) that find ``difference`` with ``power``; None when no number does with these items."""
    return _fewest(lambda s: power_of(difference, v, s, items, level) >= power, 2, MAX_SEEDS)


def items_needed_normal(difference: float, variance: float, level: float = 0.95, power: float = 0.8) -> float:
    """(z + z_power)^2 variance / difference^2, not rounded: Miller's formula, for one seed."""
    if difference == 0 or variance < 0:
        raise ValueError("need a difference that is not zero and a variance that is not negative")
    return _reach(level, power) ** 2 * variance / difference**2


def _reach(level: float, power: float) -> float:
    check_level(level)
    check_level(power)
    return NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(power)


def _fewest(enough, low: int, most: int) -> int | None:  # type: ignore[no-untyped-def]
    """The least integer from ``low`` on for which ``enough`` holds (it is monotone), or None up to ``most``."""
    if enough(low):
        return low
    high = low
    while not enough(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
