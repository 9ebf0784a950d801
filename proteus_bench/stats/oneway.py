"""One-way bootstrap of one sample of items: percentile, basic and bias-corrected accelerated (BCa) intervals.

For a sample of many independent items. It is not the interval of a method (seeds are shared, see `bootstrap`), and BCa is
no cure for small samples: it needs `MIN_BCA` items, below which it under-covers the mean.
Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 12-14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np

from proteus_bench.stats.bootstrap import stream
from proteus_bench.stats.intervals import Interval, check_level, check_scores

Method = Literal["percentile", "basic", "bca"]
MIN_BCA = 200
_CHUNK_CELLS = 1 << 20


def item_bootstrap(
    scores: Sequence[float] | np.ndarray,
    method: Method = "percentile",
    B: int = 10_000,
    seed: int | str = 0,
    level: float = 0.95,
    min_bca: int = MIN_BCA,
) -> Interval:
    """Interval of the mean of independent ``scores`` ``[n]`` from B resamples; memory does not grow with B.

    No interval (``lo`` None, with the reason) for fewer than two items, for constant scores, and for BCa below
    ``min_bca`` items. Raises ValueError for an unknown method or non-finite scores.
    """
    x_N = np.asarray(scores, dtype=np.float64)
    check_scores(x_N)
    check_level(level)
    if method not in ("percentile", "basic", "bca"):
        raise ValueError(f"unknown bootstrap method {method!r}: percentile, basic or bca")
    name, mean, n = f"bootstrap_{method}", float(x_N.mean()), x_N.size
    why = "one item: no interval" if n < 2 else "all items score the same" if np.ptp(x_N) == 0 else ""
    if method == "bca" and n < min_bca:
        why = why or f"BCa needs at least {min_bca} items"
    if why:
        return Interval(mean, None, None, n, name, level, note=why)
    draws_B = _means(x_N, B, seed)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "bca":
        tails = _bca_tails(x_N, mean, draws_B, tails)
    lo, hi = (float(end) for end in np.quantile(draws_B, tails))
    if method == "basic":
        lo, hi = 2 * mean - hi, 2 * mean - lo
    return Interval(mean, lo, hi, n, name, level, se=float(draws_B.std(ddof=1)))


def jackknife(sample: Sequence[float] | np.ndarray, statistic: Callable[[np.ndarray], float]) -> np.ndarray:
    """``statistic`` of ``sample`` (observations along axis 0) with each observation left out in turn, ``[n]``."""
    x = np.asarray(sample, dtype=np.float64)
    return np.array([statistic(np.delete(x, i, axis=0)) for i in range(len(x))])


def acceleration(*values: np.ndarray) -> float:
    """Acceleration of a statistic from its jackknife values, one array a sample (several samples: left out one apart).

    With U_i = (n - 1)(mean - value_i): sum_k sum U^3 / n_k^3 over 6 (sum_k sum U^2 / n_k^2)^(3/2).
    """
    cubes = squares = 0.0
    for value in values:
        n = len(value)
        u = (n - 1) * (value.mean() - value)
        cubes += float((u**3).sum()) / n**3
        squares += float((u**2).sum()) / n**2
    return cubes / (6 * squares**1.5) if squares else 0.0


def _means(x_N: np.ndarray, B: int, seed: int | str) -> np.ndarray:
    rng = stream("item_bootstrap", seed)
    out_B = np.empty(B)
    step = max(1, _CHUNK_CELLS // x_N.size)
    for start in range(0, B, step):
        rows = min(step, B - start)
        out_B[start : start + rows] = x_N[rng.integers(0, x_N.size, size=(rows, x_N.size), dtype=np.int32)].mean(axis=1)
    return out_B


def _bca_tails(x_N: np.ndarray, mean: float, draws_B: np.ndarray, tails: np.ndarray) -> np.ndarray:
    """Quantiles to read off, corrected for the median bias of the draws and for the acceleration of the mean."""
    normal = NormalDist()
    share = (float((draws_B < mean).mean()) + float((draws_B <= mean).mean())) / 2
    bias = normal.inv_cdf(min(max(share, 1 / (2 * draws_B.size)), 1 - 1 / (2 * draws_B.size)))
    a = acceleration((x_N.sum() - x_N) / (x_N.size - 1))
    z = [bias + normal.inv_cdf(float(tail)) for tail in tails]
    return np.array([normal.cdf(bias + value / (1 - a * value)) for value in z])
