"""What a comparison shows, in plain words.

Which interval decides, by simulated coverage (tests/bench/test_stats_coverage.py holds it): with one seed there is none
over seeds, and nothing is claimed about the methods; from two seeds on the crossed ANOVA interval is primary; from five
on the pigeonhole bootstrap stands beside it as a sensitivity check. Below five it may under-cover and is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from proteus_bench.stats.bootstrap import pigeonhole_bootstrap
from proteus_bench.stats.crossed import as_tasks, crossed_anova
from proteus_bench.stats.intervals import Interval, cluster_mean_ci
from proteus_bench.stats.paired import sign_flip

MIN_BOOTSTRAP_SEEDS = 5

Outcome = Literal["better", "worse", "not_separable", "identical"]


@dataclass(frozen=True)
class Verdict:
    """A against B. ``claim`` is "methods" when it reaches beyond these checkpoints, "checkpoints" with one seed.

    p_value: of no difference between the methods, None with one seed. p_items: with one seed only, of no difference
    between these two checkpoints over new items.
    """

    a: str
    b: str
    outcome: Outcome
    claim: Literal["methods", "checkpoints"]
    primary: Interval
    bootstrap: Interval | None
    p_value: float | None
    p_items: float | None
    sign_flip_p: float | None
    sign_flip_floor: float | None
    seeds: int
    items: int
    text: str

    @property
    def rankable(self) -> bool:
        """Whether a leaderboard may rank by it: never from one seed."""
        return self.claim == "methods"


def primary_method(seeds: int) -> str | None:
    """Name of the interval that decides with this many seeds; None for one."""
    return "crossed_anova" if seeds >= 2 else None


def p_value(interval: Interval) -> float | None:
    """Two-sided p of mean zero from a t interval; None when it has no standard error."""
    if interval.se is None or interval.df is None or interval.se == 0:
        return None
    from scipy.special import stdtr

    return float(2 * stdtr(interval.df, -abs(interval.mean) / interval.se))


def verdict(
    a: str,
    b: str,
    D: np.ndarray | Sequence[np.ndarray],
    *,
    level: float = 0.95,
    B: int = 10_000,
    seed: int | str = 0,
    weights: Sequence[float] | None = None,
) -> Verdict:
    """Judge paired differences a - b: ``D[S, N]`` or one matrix per task (see `paired_difference`), each in [-1, 1].

    A is called better (worse) only when the primary interval excludes zero. ``B=0`` leaves the bootstrap out. Differences
    that are all zero are called identical, with a bound instead of an interval of width zero. One seed judges two
    checkpoints, not two methods.
    """
    tasks, w_K = as_tasks(D, weights)
    seeds, items = tasks[0].shape[0], sum(task.shape[1] for task in tasks)
    bounds = (-1.0, 1.0)
    primary = _primary(tasks, w_K, level, bounds)
    bootstrap = flips = None
    if seeds >= MIN_BOOTSTRAP_SEEDS and B:
        bootstrap = pigeonhole_bootstrap(tasks, B, seed, level, bounds, [float(w) for w in w_K]).overall
    if 2 <= seeds <= 20:
        flips = sign_flip(np.sum([w * task.mean(axis=1) for w, task in zip(w_K, tasks, strict=True)], axis=0))
    same = all(not task.any() for task in tasks)
    p = 1.0 if same else p_value(primary)
    if p is None and primary.lo is not None:
        p = _p_by_level(tasks, w_K, bounds)
    outcome: Outcome = "not_separable"
    if same:
        outcome = "identical"
    elif primary.excludes_zero:
        outcome = "better" if primary.mean > 0 else "worse"
    return Verdict(
        a=a,
        b=b,
        outcome=outcome,
        claim="methods" if seeds > 1 else "checkpoints",
        primary=primary,
        bootstrap=bootstrap,
        p_value=p if seeds > 1 else None,
        p_items=p if seeds == 1 else None,
        sign_flip_p=flips[0] if flips else None,
        sign_flip_floor=flips[1] if flips else None,
        seeds=seeds,
        items=items,
        text=_words(a, b, outcome, primary, seeds, items),
    )


def _primary(tasks: list[np.ndarray], w_K: np.ndarray, level: float, bounds: tuple[float, float]) -> Interval:
    if tasks[0].shape[0] == 1:
        return checkpoint_ci(tasks, w_K, level, bounds)
    return crossed_anova(tasks, level, bounds, [float(w) for w in w_K])


def _p_by_level(tasks: list[np.ndarray], w_K: np.ndarray, bounds: tuple[float, float]) -> float:
    """p of an interval that is no single t interval: one minus the highest level at which it still excludes zero."""
    small, large = -15.0, -1e-9  # powers of ten
    if not _primary(tasks, w_K, 1 - 10**large, bounds).excludes_zero:
        return 1.0
    if _primary(tasks, w_K, 1 - 10**small, bounds).excludes_zero:
        return float(10**small)
    for _ in range(40):
        middle = (small + large) / 2
        if _primary(tasks, w_K, 1 - 10**middle, bounds).excludes_zero:
            large = middle
        else:
            small = middle
    return float(10**large)


def unbounded_difference(
    D: np.ndarray | Sequence[np.ndarray], level: float = 0.95, weights: Sequence[float] | None = None
) -> Interval:
    """Mean of paired differences that have no bounds (gold log-probabilities, nats), by the rule of `verdict`.

    ``D[S, N]`` or one matrix per task (equal weights by default). No interval where nothing varies.
    """
    tasks, w_K = as_tasks(D, weights)
    if len(tasks[0]) == 1:
        return checkpoint_ci(tasks, w_K, level, None)
    return crossed_anova(tasks, level, None, [float(w) for w in w_K])


def checkpoint_ci(
    tasks: Sequence[np.ndarray],
    weights: Sequence[float] | np.ndarray | None = None,
    level: float = 0.95,
    bounds: tuple[float, float] | None = (-1.0, 1.0),
) -> Interval:
    """Weighted mean over tasks of one checkpoint (``[1, N]`` each): items, inside their tasks, are all that varies.

    An item-clustered interval for one task, their sum for several. It says nothing about other seeds.
    """
    checked, w_K = as_tasks(list(tasks), None if weights is None else [float(w) for w in weights])
    parts = [cluster_mean_ci(task[0], level=level, bounds=bounds) for task in checked]
    if len(parts) == 1:
        return parts[0]
    mean = float(sum(w * part.mean for w, part in zip(w_K, parts, strict=True)))
    n = sum(part.n for part in parts)
    if any(part.lo is None or part.hi is None for part in parts):
        return Interval(mean, None, None, n, "item_cluster_t", level, note="one item in a task: no interval")
    # Half-widths of independent tasks add in squares; sides are kept apart because bounds cut them unequally.
    down = sum((w * (part.mean - (part.lo or 0.0))) ** 2 for w, part in zip(w_K, parts, strict=True)) ** 0.5
    up = sum((w * ((part.hi or 0.0) - part.mean)) ** 2 for w, part in zip(w_K, parts, strict=True)) ** 0.5
    return Interval(mean, float(mean - down), float(mean + up), n, "item_cluster_t", level)


def _words(a: str, b: str, outcome: Outcome, primary: Interval, seeds: int, items: int) -> str:
    size = f"{seeds} {'seed' if seeds == 1 else 'seeds'} x {items} {'item' if items == 1 else 'items'}"
    if primary.lo is None or primary.hi is None:
        span = f"no interval ({primary.note})"
    else:
        span = f"[{100 * primary.lo:.1f}, {100 * primary.hi:.1f}]"
    points = 100 * primary.mean
    if outcome == "identical":
        text = f"{a} and {b} are identical on every item, difference within {span} points, {size}"
    elif outcome == "not_separable":
        where = f"n={items} items, {size.split(' x ')[0]}"
        text = f"{a} and {b} are not separable at {where}: difference {points:+.1f} points {span}"
    elif outcome == "better":
        text = f"{a} is better than {b} by {points:.1f} points {span}, {size}"
    else:
        text = f"{a} is worse than {b} by {-points:.1f} points (difference {points:+.1f} {span}), {size}"
    if seeds == 1:
        text += "; one seed: this compares two checkpoints, nothing is claimed about the methods"
    return text
