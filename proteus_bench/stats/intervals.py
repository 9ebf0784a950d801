"""Intervals of one cell: one model, one seed, many items. NumPy; SciPy only for quantiles, imported when needed."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

SCORE_BOUNDS = (0.0, 1.0)


@dataclass(frozen=True)
class Interval:
    """A mean with its interval. ``lo`` and ``hi`` are None when no interval can be estimated; ``note`` says why.

    n: items (or trials) behind it. df: degrees of freedom of a t interval. se: standard error, None when not defined.
    """

    mean: float
    lo: float | None
    hi: float | None
    n: int
    method: str
    level: float = 0.95
    df: float | None = None
    se: float | None = None
    note: str = ""

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference of zero lies outside (False when there is no interval)."""
        return self.lo is not None and self.hi is not None and (self.lo > 0 or self.hi < 0)


def z_quantile(level: float) -> float:
    """Two-sided normal quantile: 1.96 at 0.95."""
    check_level(level)
    return NormalDist().inv_cdf((1 + level) / 2)


def t_quantile(level: float, df: float) -> float:
    """Two-sided Student quantile: 12.71 at 0.95 and one degree of freedom."""
    from scipy.special import stdtrit

    check_level(level)
    return float(stdtrit(df, (1 + level) / 2))


def check_level(level: float) -> None:
    """Levels are fractions; 95 instead of 0.95 raises ValueError."""
    if not 0 < level < 1:
        raise ValueError(f"a level is a fraction between 0 and 1, got {level}")


def check_scores(scores: np.ndarray) -> None:
    """Raise ValueError for an empty array or for NaN and infinities: a failed item is a status, not a score."""
    if scores.size == 0:
        raise ValueError("no scores")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")


def wilson(k: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson interval of ``k`` successes in ``n`` trials. Inside [0, 1], never of width zero: not [1, 1] for n of n."""
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"need 0 <= k <= n and n >= 1, got k={k}, n={n}")
    z2 = z_quantile(level) ** 2
    p = k / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    lo = 0.0 if k == 0 else max(0.0, centre - half)
    hi = 1.0 if k == n else min(1.0, centre + half)
    return lo, hi


def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact (conservative) interval of ``k`` successes in ``n`` trials."""
    from scipy.special import betaincinv

    check_level(level)
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"need 0 <= k <= n and n >= 1, got k={k}, n={n}")
    tail = (1 - level) / 2
    lo = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    hi = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return lo, hi


def constant_bounds(
    value: float, n: int, level: float, bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """Interval of a mean when all ``n`` observations equal ``value``: a rule of three, never of width zero.

    The share q of units that would differ is at most Wilson's bound for 0 of n, z^2 / (n + z^2) (about 3.8 / n), and a
    unit that differs can move the mean at most to the ends of ``bounds``. At value 1 in [0, 1] this is Wilson for n/n.
    """
    q = wilson(0, n, level)[1]
    return value - q * (value - bounds[0]), value + q * (bounds[1] - value)


def cluster_mean_ci(
    scores: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    bounds: tuple[float, float] | None = (0.0, 1.0),
) -> Interval:
    """Mean of ``scores`` ``[n]`` with a t interval (see `ends`) that treats each cluster (item) as one draw; df = C - 1.

    SE^2 = C/(C-1) * sum_c (sum_{i in c} (x_i - mean))^2 / n^2. Without ``clusters`` every score is its own. One cluster
    gives no interval; equal clusters give `constant_bounds`, or no interval where ``bounds`` of one score are None.
    """
    x_N = np.asarray(scores, dtype=np.float64)
    check_scores(x_N)
    if clusters is not None and len(clusters) != x_N.size:
        raise ValueError(f"{x_N.size} scores but {len(clusters)} cluster labels")
    if clusters is None:
        group_N = np.arange(x_N.size)
    else:
        index: dict[Hashable, int] = {}
        group_N = np.array([index.setdefault(label, len(index)) for label in clusters])
    count = int(group_N.max()) + 1
    mean = float(x_N.mean())
    if count < 2:
        return Interval(mean, None, None, count, "item_cluster_t", level, note="one item: no interval")
    sums_C = np.bincount(group_N, weights=x_N - mean, minlength=count)
    se = math.sqrt(count / (count - 1) * float(sums_C @ sums_C)) / x_N.size
    if np.abs(sums_C).max() < 1e-12 * max(1.0, float(np.abs(x_N).max())):
        if bounds is None:
            return Interval(mean, None, None, count, "item_cluster_t", level, note="no variance between items")
        lo, hi = constant_bounds(mean, count, level, bounds)
        return Interval(mean, lo, hi, count, "wilson_constant", level, note="all items score the same")
    return t_interval(mean, se, count - 1, count, "item_cluster_t", level, bounds)


def t_interval(
    mean: float, se: float, df: float, n: int, method: str, level: float, bounds: tuple[float, float] | None
) -> Interval:
    """The interval of `ends` around one mean."""
    lo, hi = (float(end) for end in ends(np.asarray(mean), np.asarray(se), np.asarray(df), level, bounds))
    return Interval(mean, lo, hi, n, method, level, df, se)


def ends(
    mean: np.ndarray, se: np.ndarray, df: np.ndarray, level: float, bounds: tuple[float, float] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends for means with standard errors, elementwise.

    Without bounds: mean -+ t se. For scores (bounds 0 and 1): Wilson's equation with t for z and the effective number of
    trials mean (1 - mean) / se^2, because near 0 and 1 a symmetric interval covers 90% where 95 is claimed (the survey
    form of Dean and Pagano, J. Surv. Stat. Methodol. 2015). For other bounds: mean -+ t se, cut to what a mean can be.
    """
    from scipy.special import stdtrit

    check_level(level)
    half = stdtrit(df, (1 + level) / 2) * se
    if bounds is None:
        return mean - half, mean + half
    lo, hi = np.maximum(bounds[0], mean - half), np.minimum(bounds[1], mean + half)
    if bounds != SCORE_BOUNDS:
        return lo, hi
    spread = mean * (1 - mean)
    inside = spread > 1e-12  # nearer to an end a mean says nothing of its spread
    # t^2 / n_effective, written so that se = 0 is no special case.
    r = half**2 / np.where(inside, spread, 1.0)
    centre = (mean + r / 2) / (1 + r)
    reach = np.sqrt(r * spread + r * r / 4) / (1 + r)
    return np.where(inside, np.maximum(0.0, centre - reach), lo), np.where(inside, np.minimum(1.0, centre + reach), hi)


def cell_ci(
    scores: Sequence[float] | np.ndarray, clusters: Sequence[Hashable] | None = None, level: float = 0.95
) -> Interval:
    """The interval of one cell: Wilson for one 0/1 score an item, `cluster_mean_ci` otherwise. One item gives none."""
    x_N = np.asarray(scores, dtype=np.float64)
    check_scores(x_N)
    one_each = clusters is None or len(set(clusters)) == len(clusters) == x_N.size
    if x_N.size < 2 or not one_each or not np.isin(x_N, (0.0, 1.0)).all():
        return cluster_mean_ci(x_N, clusters, level)
    lo, hi = wilson(float(x_N.sum()), x_N.size, level)
    return Interval(float(x_N.mean()), lo, hi, int(x_N.size), "wilson", level)
