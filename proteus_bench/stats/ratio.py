"""Ratios of paired timings: their median, with an interval that holds whatever the distribution of the noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proteus_bench.stats.intervals import Interval, check_level, check_scores

MIN_PAIRS = 6
"""Fewer pairs cannot hold 95%: between the extremes of five lies the median in 15 of 16 cases."""


def median_ratio(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Median of a_i / b_i with the interval between two of the ratios, by the binomial distribution of the sign test.

    The k-th smallest and the k-th largest of n ratios enclose the true median with probability
    1 - 2 P(Binomial(n, 1/2) < k), so k is the largest with at least ``level`` (David and Nagaraja, Order Statistics, 7.1).
    The percentile bootstrap over pairs is this interval less a rank or so, and covers 87 to 97% where 95 is claimed.
    lo and hi are None when even the extremes do not hold the level.
    Raises ValueError for unequal numbers, fewer than `MIN_PAIRS`, or a time that is not above zero.
    """
    from scipy.special import bdtr

    check_level(level)
    a_N, b_N = (np.asarray(side, dtype=np.float64) for side in (a, b))
    n = a_N.size
    if b_N.size != n or n < MIN_PAIRS:
        raise ValueError(f"paired timings need {MIN_PAIRS} pairs or more: there are {n} and {b_N.size} times")
    check_scores(a_N)
    check_scores(b_N)
    if min(a_N.min(), b_N.min()) <= 0:
        raise ValueError("a time must be above zero")
    ratios_N = np.sort(a_N / b_N)
    k = int((2 * bdtr(np.arange(n // 2), n, 0.5) <= 1 - level).sum())
    lo, hi = (float(ratios_N[k - 1]), float(ratios_N[n - k])) if k else (None, None)
    return Interval(float(np.median(ratios_N)), lo, hi, n, "median_order", level)
