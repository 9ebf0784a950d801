"""Summaries beside the mean: interquartile mean, probability of improvement, win rates, Bradley-Terry strengths.

Descriptive: the mean over tasks with its paired interval decides (`verdict`). Interquartile mean and probability of
improvement are defined as in Agarwal et al. (NeurIPS 2021); their intervals resample checkpoints once for all tasks,
because the same checkpoint is scored on all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from proteus_bench.stats.bootstrap import joint_draws
from proteus_bench.stats.crossed import as_tasks
from proteus_bench.stats.intervals import Interval, check_level, check_scores

MIN_SEEDS = 5


def iqm(scores: np.ndarray) -> float:
    """Mean of the middle half of all entries: floor(n / 4) are cut off at each end."""
    flat = np.sort(np.asarray(scores, dtype=np.float64).ravel())
    check_scores(flat)
    cut = flat.size // 4
    return float(flat[cut : flat.size - cut].mean())


def probability_of_improvement(x_SK: np.ndarray, y_SK: np.ndarray) -> float:
    """P(a run of x beats a run of y) by task, ties half, averaged over tasks. Rows are runs, columns the same tasks."""
    x, y = np.atleast_2d(np.asarray(x_SK, dtype=np.float64)), np.atleast_2d(np.asarray(y_SK, dtype=np.float64))
    check_scores(x)
    check_scores(y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"{x.shape[1]} and {y.shape[1]} tasks")
    return float(np.mean(_wins(x[:, None, :], y[None, :, :])))


def iqm_ci(tasks: Sequence[np.ndarray], B: int = 10_000, seed: int | str = 0, level: float = 0.95) -> Interval:
    """`iqm` over the (seed, task) means of ``tasks`` (each ``[S, N]``) with a pigeonhole percentile interval.

    No interval below five seeds, where a percentile over seeds under-covers.
    """
    checked, _ = as_tasks(list(tasks))
    value = iqm(np.stack([task.mean(axis=1) for task in checked], axis=1))
    if checked[0].shape[0] < MIN_SEEDS:
        return _without(value, checked, "iqm_pigeonhole", level)
    draws = np.sort(joint_draws(checked, B, seed).reshape(B, -1), axis=1)
    cut = draws.shape[1] // 4
    return _interval(value, draws[:, cut : draws.shape[1] - cut].mean(axis=1), checked, "iqm_pigeonhole", level)


def improvement_ci(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    B: int = 2_000,
    seed: int | str = 0,
    level: float = 0.95,
    keys: Sequence[Hashable] | None = None,
) -> Interval:
    """`probability_of_improvement` of a over b from scores ``[S, N]`` by task; seeds and items are drawn for both alike.

    ``keys``: tasks of equal ones are made of the same draws (`pool_draws`), and are resampled together.
    No interval below five seeds. Raises ValueError when the shapes of a and b differ.
    """
    left, _ = as_tasks(list(a))
    right, _ = as_tasks(list(b))
    if [task.shape for task in left] != [task.shape for task in right]:
        raise ValueError("a and b must be scored on the same seeds and items")
    means = [np.stack([task.mean(axis=1) for task in side], axis=1) for side in (left, right)]
    value = probability_of_improvement(*means)
    seeds = left[0].shape[0]
    if seeds < MIN_SEEDS:
        return _without(value, left, "improvement_pigeonhole", level)
    draws = joint_draws([np.stack(pair) for pair in zip(left, right, strict=True)], B, seed, keys)
    wins = _wins(draws[:, 0, :, None, :], draws[:, 1, None, :, :]).mean(axis=(1, 2, 3))
    return _interval(value, wins, left, "improvement_pigeonhole", level)


def win_rates(scores: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean share of the other models that each model (row) beats, ties half, over the tasks (columns) that it has.

    Other models without a score on a task are left out of it, and so is a task where nobody else has one. Raises
    ValueError for a model that meets no other. A relative number: it changes when a model is added.
    """
    rates = []
    for row in range(len(scores)):
        shares = []
        for column, own in enumerate(scores[row]):
            others = [other[column] for r, other in enumerate(scores) if r != row]
            held = [value for value in others if value is not None]
            if own is not None and held:
                shares.append(sum(1.0 if own > value else 0.5 if own == value else 0.0 for value in held) / len(held))
        if not shares:
            raise ValueError(f"model {row} shares no task with another one")
        rates.append(sum(shares) / len(shares))
    return rates


def bradley_terry(wins: np.ndarray, tolerance: float = 1e-12) -> np.ndarray:
    """Strengths (geometric mean one) whose ratio gives the odds, from ``wins[i, j]``: how often i beat j.

    Maximum likelihood by Zermelo's fixed point. Raises ValueError unless every model beats, through some chain, every
    other one: otherwise a strength is infinite.
    """
    w = np.asarray(wins, dtype=np.float64)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or not np.isfinite(w).all() or (w < 0).any():
        raise ValueError("wins must be a square matrix of counts")
    n = w.shape[0]
    reach = np.linalg.matrix_power((w > 0).astype(np.float64) + np.eye(n), max(1, n - 1))
    if not (reach > 0).all():
        raise ValueError("some models never beat others, directly or through a chain: no finite strengths")
    games = w + w.T
    strength = np.ones(n)
    for _ in range(100_000):
        new = w.sum(axis=1) / (games / (strength[:, None] + strength[None, :])).sum(axis=1)
        new /= np.exp(np.log(new).mean())
        if np.abs(new - strength).max() < tolerance:
            return new
        strength = new
    raise ValueError("Bradley-Terry strengths did not converge")


def _wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x > y) + 0.5 * (x == y)


def _interval(value: float, draws_B: np.ndarray, tasks: list[np.ndarray], method: str, level: float) -> Interval:
    check_level(level)
    lo, hi = (float(end) for end in np.quantile(draws_B, [(1 - level) / 2, (1 + level) / 2]))
    if lo == hi:
        return _without(value, tasks, method, level, "no variation between the draws")
    return Interval(value, lo, hi, sum(t.shape[1] for t in tasks), method, level, se=float(draws_B.std()))


def _without(value: float, tasks: list[np.ndarray], method: str, level: float, why: str = "") -> Interval:
    note = why or f"fewer than {MIN_SEEDS} seeds: no interval"
    return Interval(value, None, None, sum(task.shape[1] for task in tasks), method, level, note=note)
