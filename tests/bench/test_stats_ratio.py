"""The median of paired ratios: its interval covers what it says, which the percentile bootstrap does not."""

from math import comb

import numpy as np
import pytest
from scipy.special import bdtrc

from proteus_bench.stats import median_ratio
from proteus_bench.stats.ratio import MIN_PAIRS


def coverage(n: int, low: int, high: int) -> float:
    """Exact probability that the true median lies between the low-th and the high-th smallest of n."""
    return sum(comb(n, k) for k in range(low, high)) / 2**n


def test_its_coverage_is_at_least_the_level_whatever_the_distribution() -> None:
    for n in range(MIN_PAIRS, 121):
        for level in (0.95, 0.99):
            found = median_ratio(np.arange(1.0, n + 1), np.ones(n), level)
            if found.lo is None or found.hi is None:
                assert coverage(n, 1, n) < level
                continue
            low, high = int(found.lo), int(found.hi)
            assert low + high == n + 1
            assert coverage(n, low, high) >= level > coverage(n, low + 1, high - 1)
            assert found.mean == (n + 1) / 2 and found.n == n


def test_the_percentile_bootstrap_would_not_cover() -> None:
    """Negative control. With infinitely many resamples of n (odd) pairs its ends are ranks as well."""
    covered = []
    for n in range(7, 62, 2):
        at_most = bdtrc((n - 1) // 2, n, np.arange(1, n + 1) / n)
        covered.append(coverage(n, *(int(np.searchsorted(at_most, p)) + 1 for p in (0.025, 0.975))))
    assert min(covered) < 0.88 and np.median(covered) < 0.95


def test_a_drift_of_the_machine_cancels_in_pairs() -> None:
    drift = np.linspace(1, 9, 21)
    found = median_ratio(1.25 * drift, drift)
    assert (found.lo, found.mean, found.hi) == (1.25, 1.25, 1.25)
    shuffled = median_ratio(1.25 * drift, drift[::-1])
    assert shuffled.hi is not None and shuffled.lo is not None and shuffled.hi / shuffled.lo > 4


@pytest.mark.parametrize(
    ("a", "b"),
    [([1.0] * 5, [1.0] * 5), ([1.0] * 8, [1.0] * 7), ([0.0] * 7, [1.0] * 7), ([1.0] * 7, [float("nan")] * 7)],
)
def test_what_is_no_sample_of_pairs_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"pairs or more|above zero|finite"):
        median_ratio(a, b)
