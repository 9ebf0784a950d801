"""Simulated coverage in the design of a real run: S seeds x N items that all seeds share, both drawn anew.

It decides which interval is primary, so it also has to show that it can tell: two wrong methods must fail it.
"""

import numpy as np
import pytest

from proteus_bench.stats import crossed_anova
from proteus_bench.stats.crossed import components, variance_and_df

ITEMS = 200
SEED_SD, ITEM_SD, RESIDUAL_SD = 0.03, 0.3, 0.4


def simulate(replications: int, seeds: int, seed_sd: float, stream: int) -> np.ndarray:
    """True mean zero: ``[R, S, N]``. Seed sd is scaled so that its share is that of 500 items."""
    rng = np.random.default_rng(stream)
    seed = rng.normal(0, seed_sd * np.sqrt(500 / ITEMS), (replications, seeds, 1))
    item = rng.normal(0, ITEM_SD, (replications, 1, ITEMS))
    return seed + item + rng.normal(0, RESIDUAL_SD, (replications, seeds, ITEMS))


def anova_hits(D: np.ndarray) -> np.ndarray:
    from scipy.special import stdtrit

    c = components(D)
    variance, df = variance_and_df(c)
    return np.abs(c.mean) <= stdtrit(df, 0.975) * np.sqrt(variance)


def pigeonhole_hits(D: np.ndarray, B: int = 999) -> np.ndarray:
    """The estimator of `pigeonhole_bootstrap`, all replications at once with shared counts."""
    rng = np.random.default_rng(9)
    S, N = D.shape[1:]
    items_NB = rng.multinomial(N, np.full(N, 1 / N), size=B).T / N
    seeds_BS = rng.multinomial(S, np.full(S, 1 / S), size=B) / S
    draws_RB = np.einsum("rsb,bs->rb", D @ items_NB, seeds_BS)
    lo, hi = np.quantile(draws_RB, [0.025, 0.975], axis=1)
    return (lo <= 0) & (hi >= 0)


def pooled_hits(D: np.ndarray) -> np.ndarray:
    flat = D.reshape(len(D), -1)
    return np.abs(flat.mean(axis=1)) <= 1.96 * flat.std(axis=1, ddof=1) / np.sqrt(flat.shape[1])


def seed_percentile_hits(D: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(8)
    S = D.shape[1]
    picks = rng.multinomial(S, np.full(S, 1 / S), size=499).T / S
    lo, hi = np.quantile(D.mean(axis=2) @ picks, [0.025, 0.975], axis=1)
    return (lo <= 0) & (hi >= 0)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("seed_sd", [0.0, SEED_SD, 0.08])
def test_the_primary_interval_covers(seeds, seed_sd):
    coverage = anova_hits(simulate(2000, seeds, seed_sd, stream=seeds)).mean()
    # Three seeds cannot estimate a seed variance well: 0.926 is known for this design and stated in the docs.
    assert (0.91 if seeds == 3 else 0.935) <= coverage <= 0.985


def test_five_seeds_cover_what_they_claim():
    from scipy.stats import binomtest

    hits = int(anova_hits(simulate(2000, 5, SEED_SD, stream=11)).sum())
    assert binomtest(hits, 2000, 0.95).pvalue > 0.01


def test_the_bootstrap_beside_it_covers_from_five_seeds_on():
    assert 0.93 <= pigeonhole_hits(simulate(600, 5, SEED_SD, stream=12)).mean() <= 0.99


@pytest.mark.parametrize("wrong", [pooled_hits, seed_percentile_hits])
@pytest.mark.parametrize("seeds", [3, 5])
def test_wrong_methods_fail_here(wrong, seeds):
    assert wrong(simulate(2000, seeds, SEED_SD, stream=13)).mean() < 0.90


def test_binary_paired_differences_cover_too():
    """Scores of a run are 0/1: true difference zero, items of unequal difficulty, seeds that differ."""
    rng = np.random.default_rng(14)
    difficulty = rng.normal(1.0, 1.0, (2000, 1, 100))
    shift = rng.normal(0, 0.3, (2, 2000, 5, 1))
    a, b = (rng.random((2000, 5, 100)) < 1 / (1 + np.exp(-difficulty - shift[side])) for side in (0, 1))
    assert 0.935 <= anova_hits(a.astype(float) - b).mean() <= 0.985


def test_the_simulation_runs_the_shipped_estimator():
    D = simulate(20, 5, SEED_SD, stream=15)
    shipped = [crossed_anova(d, bounds=(-9.0, 9.0)) for d in D]
    assert [not interval.excludes_zero for interval in shipped] == list(anova_hits(D))
