"""Every published or independently computed number that the statistics can be held to, and properties of the new parts."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.stats import (
    Variances,
    acceleration,
    bradley_terry,
    checkpoint_ci,
    cluster_mean_ci,
    components,
    crossed_anova,
    detectable,
    improvement_ci,
    iqm,
    iqm_ci,
    item_bootstrap,
    items_needed,
    items_needed_normal,
    jackknife,
    mcnemar,
    minimum_detectable_effect,
    pilot_variances,
    power_of,
    probability_of_improvement,
    proportion_error,
    rank_intervals,
    seeds_needed,
    verdict,
    wilson,
    win_rates,
)
from proteus_bench.stats.intervals import ends

REFERENCE = [10, 12, 12.5, 12.5, 13.9, 15, 21, 22, 23, 34, 50, 81, 89, 121, 134, 213]
SPATIAL = [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41]
LSAT = [576, 635, 558, 578, 666, 580, 555, 661, 651, 605, 653, 575, 545, 572, 594]
GPA = [3.39, 3.30, 2.81, 3.03, 3.44, 3.07, 3.00, 3.43, 3.36, 3.13, 3.12, 2.74, 2.76, 2.88, 2.96]


@pytest.mark.parametrize(
    ("method", "low", "high"), [("basic", 23.77, 79.12), ("percentile", 28.86, 84.21), ("bca", 32.31, 91.43)]
)
def test_one_way_bootstrap_intervals_are_those_of_r(method, low, high):
    interval = item_bootstrap(REFERENCE, method, B=200_000, min_bca=2)
    assert (interval.lo, interval.hi) == pytest.approx((low, high), rel=0.005)


def test_bca_agrees_with_scipy_on_skewed_scores():
    from scipy.stats import bootstrap

    x = np.random.default_rng(3).beta(8, 1, 300)
    ours = item_bootstrap(x, "bca", B=20_000)
    theirs = bootstrap((x,), np.mean, n_resamples=9999, batch=100, rng=np.random.default_rng(1)).confidence_interval
    assert (ours.lo, ours.hi) == pytest.approx((theirs.low, theirs.high), abs=1e-3)


def test_acceleration_of_two_samples_is_the_reference_value():
    y = np.array([10, 27, 31, 40, 46, 50, 52, 104, 146.0])
    z = np.array([16, 23, 38, 94, 99, 141, 197.0])
    values = (jackknife(z, lambda q: q.mean() - y.mean()), jackknife(y, lambda q: z.mean() - q.mean()))
    assert acceleration(*values) == pytest.approx(0.011008228344026734, rel=1e-9)


def test_acceleration_of_the_spatial_and_the_law_school_data():
    assert np.var(SPATIAL) == pytest.approx(171.534, abs=5e-4)
    assert acceleration(jackknife(SPATIAL, np.var)) == pytest.approx(0.0612, abs=5e-5)
    law = np.column_stack([LSAT, GPA])
    assert np.corrcoef(law.T)[0, 1] == pytest.approx(0.7764, abs=5e-5)
    assert acceleration(jackknife(law, lambda q: np.corrcoef(q.T)[0, 1])) == pytest.approx(-0.0757, abs=5e-5)


def test_the_one_way_bootstrap_refuses_what_it_cannot_do_and_repeats_itself():
    assert item_bootstrap([1.0]).lo is None and "one item" in item_bootstrap([1.0]).note
    assert item_bootstrap([1.0] * 300, "bca").lo is None
    assert "at least 200" in item_bootstrap(REFERENCE, "bca").note
    assert item_bootstrap(REFERENCE, B=999) == item_bootstrap(REFERENCE, B=999)
    with pytest.raises(ValueError, match="percentile, basic or bca"):
        item_bootstrap(REFERENCE, "studentized")


@pytest.mark.parametrize(("p", "n", "se"), [(0.836, 164, 0.02891), (0.655, 5000, 0.00672), (0.753, 2500, 0.00863)])
def test_standard_errors_of_published_scores(p, n, se):
    assert proportion_error(p, n) == pytest.approx(se, abs=5e-6)


def test_mcnemar_is_the_reference_value_and_symmetric():
    p, chi2 = mcnemar(59, 121)
    assert p == pytest.approx(4.434e-6, rel=1e-3) and chi2 == pytest.approx(20.672, abs=5e-4)
    assert mcnemar(121, 59) == (p, chi2) and mcnemar(0, 0) == (1.0, 0.0)


@given(b=st.integers(0, 60), c=st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(b, c):
    from scipy.stats import binomtest

    if b + c:
        assert mcnemar(b, c)[0] == pytest.approx(binomtest(min(b, c), b + c).pvalue)


def test_power_is_the_published_one():
    assert items_needed_normal(0.03, 1 / 9) == pytest.approx(968.998, abs=1e-3)
    v = Variances(0, 1 / 9, 0)
    assert items_needed(0.03, v, 1) == 971  # 970.92 with t
    assert power_of(0.03, v, 1, 970.92) == pytest.approx(0.8, abs=1e-6)
    assert items_needed_normal(0.03, 1 / 9) < items_needed(0.03, v, 1)


@pytest.mark.parametrize(("seeds", "sd"), [(3, 3.26), (5, 1.68), (8, 1.16), (10, 1.00)])
def test_what_a_paired_t_over_seeds_detects(seeds, sd):
    assert detectable(Variances(1, 0, 0), seeds, 1) == pytest.approx(sd, abs=5e-3)


def test_power_is_what_the_shipped_verdict_finds():
    v, seeds, items = Variances(0.002, 0.02, 0.06), 5, 60
    difference = detectable(v, seeds, items)
    rng, found = np.random.default_rng(2), 0
    for _ in range(1500):
        D = rng.normal(0, v.seed**0.5, (seeds, 1)) + rng.normal(0, v.item**0.5, (1, items))
        D = difference + D + rng.normal(0, v.residual**0.5, (seeds, items))
        i = crossed_anova(D, bounds=None)
        found += i.lo > 0
    assert found / 1500 == pytest.approx(0.8, abs=0.05)


@given(
    seed=st.floats(0, 0.01), item=st.floats(0.001, 0.2), res=st.floats(0.001, 0.2), S=st.integers(2, 12), N=st.integers(2, 900)
)  # fmt: skip
def test_more_seeds_and_more_items_never_find_less(seed, item, res, S, N):
    v = Variances(seed, item, res)
    here = detectable(v, S, N)
    slack = 1.02  # Satterthwaite's degrees of freedom are an approximation
    assert detectable(v, S + 1, N) <= here * slack and detectable(v, S, 2 * N) <= here * slack
    assert minimum_detectable_effect(seed, item, res, S, N) <= here * 1.001


def test_what_it_takes_and_when_nothing_is_enough():
    v = Variances(0.03**2, 0.3**2, 0.4**2)
    assert items_needed(0.05, v, 3) is None and seeds_needed(0.05, v, 20) is None
    n = items_needed(0.06, v, 8)
    assert power_of(0.06, v, 8, n) >= 0.8 > power_of(0.06, v, 8, n - 1)
    s = seeds_needed(0.05, v, 1000)
    assert power_of(0.05, v, s, 1000) >= 0.8 > power_of(0.05, v, s - 1, 1000)
    with pytest.raises(ValueError, match="not negative"):
        Variances(-1, 0, 0)


def test_pilot_variances_are_recovered():
    rng = np.random.default_rng(4)
    S, N = 60, 400
    tasks = [rng.normal(0, 0.3, (1, N)) + rng.normal(0, 0.4, (S, N)) for _ in range(4)]
    shared = rng.normal(0, 0.1, (S, 1))
    v, mean = pilot_variances([task + shared + 0.2 for task in tasks])
    assert v.seed == pytest.approx(0.01, rel=0.35) and mean == pytest.approx(0.2, abs=0.08)
    assert v.item == pytest.approx(0.09 / 4, rel=0.15) and v.residual == pytest.approx(0.16 / 4, rel=0.05)
    one, _ = pilot_variances(tasks[0][:1])
    assert one.seed == 0 and one.residual == 0 and one.item == pytest.approx(tasks[0][0].var(ddof=1))
    single = pilot_variances(tasks[0])[0]
    assert (single.item, single.residual) == pytest.approx(components(tasks[0]).variances()[1:])


def test_interquartile_mean_and_probability_of_improvement_are_the_published_ones():
    x, y = np.array([[1, 2], [2, 2], [1, 1], [2, 1]]), np.array([[1, 1], [2, 2], [3, 3]])
    assert iqm(x) == 1.5 and iqm(y) == 2
    assert probability_of_improvement(x, y) == pytest.approx(1 / 3)
    assert probability_of_improvement(y, y) == 0.5


@given(x=st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_interquartile_mean_is_scipys_trimmed_mean(x):
    from scipy.stats import trim_mean

    assert iqm(np.array(x)) == pytest.approx(trim_mean(x, 0.25))


@given(seed=st.integers(0, 10**6))
def test_improvement_is_antisymmetric_and_is_mann_whitney(seed):
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, (5, 1)), rng.integers(0, 4, (6, 1))
    p = probability_of_improvement(x, y)
    assert p + probability_of_improvement(y, x) == pytest.approx(1)
    assert p == pytest.approx(mannwhitneyu(x[:, 0], y[:, 0]).statistic / 30)


def test_intervals_of_the_aggregates_hold_their_value_and_need_five_seeds():
    rng = np.random.default_rng(6)
    a = [(rng.random((6, 30)) < 0.7).astype(float) for _ in range(3)]
    b = [(rng.random((6, 30)) < 0.4).astype(float) for _ in range(3)]
    for interval in (iqm_ci(a, B=1000), improvement_ci(a, b, B=500)):
        assert interval.lo <= interval.mean <= interval.hi and interval.lo < interval.hi
    assert improvement_ci(a, b, B=500) == improvement_ci(a, b, B=500)
    assert improvement_ci(a, a, B=50).mean == 0.5
    few = [task[:4] for task in a]
    assert iqm_ci(few).lo is None and "fewer than 5 seeds" in improvement_ci(few, few).note
    with pytest.raises(ValueError, match="same seeds and items"):
        improvement_ci(a, few)


def test_win_rates_with_ties_and_gaps_are_the_published_ones():
    assert win_rates([[1], [2], [3], [4], [5]]) == [0, 0.25, 0.5, 0.75, 1]
    assert win_rates([[1, 3], [2, 1], [3, 2], [4, 5], [5, 4]]) == [0.25, 0.125, 0.375, 0.875, 0.875]
    assert win_rates([[1, 3], [2, 1], [3, None], [4, None], [5, None]]) == [0.5, 0.125, 0.5, 0.75, 1]
    assert win_rates([[1, None, None], [2, None, 1], [3, None, None], [4, None, None], [5, None, None]])[1] == 0.25
    assert win_rates([[1], [1], [1], [4], [5]]) == [0.25, 0.25, 0.25, 0.75, 1.0]
    with pytest.raises(ValueError, match="shares no task"):
        win_rates([[1.0, None], [None, 1.0]])


def test_bradley_terry_strengths_are_the_published_ones():
    wins = np.zeros((4, 4))
    for a, b, won, lost in ((0, 1, 2, 3), (0, 3, 1, 4), (1, 2, 5, 3), (2, 3, 1, 3)):
        wins[a, b], wins[b, a] = won, lost
    assert list(bradley_terry(wins)) == pytest.approx([0.640, 1.043, 0.660, 2.270], abs=5e-4)
    wins[0] = 0
    with pytest.raises(ValueError, match="no finite strengths"):
        bradley_terry(wins)


def test_ranks_are_intervals_and_equal_ones_share_a_group():
    outcomes = {("a", "b"): 1, ("a", "c"): 1, ("b", "c"): 0, ("d", "a"): 0, ("b", "d"): 0, ("c", "d"): 0}
    ranks = {r.name: (r.best, r.worst, r.group) for r in rank_intervals(["a", "b", "c", "d"], outcomes)}
    assert ranks == {"a": (1, 2, 1), "d": (1, 4, 2), "b": (2, 4, 3), "c": (2, 4, 3)}
    with pytest.raises(ValueError, match="not compared"):
        rank_intervals(["a", "b"], {})
    with pytest.raises(ValueError, match="two results"):
        rank_intervals(["a", "b"], {("a", "b"): 1, ("b", "a"): 1})


@given(data=st.data(), k=st.integers(1, 6))
def test_ranks_hold_every_order_that_the_outcomes_allow(data, k):
    """The outcomes come from a true order with ties: its places lie inside the intervals."""
    values = data.draw(st.lists(st.integers(0, 3), min_size=k, max_size=k))
    names = [str(i) for i in range(k)]
    sign = {(a, b): int(np.sign(values[i] - values[j])) for (i, a), (j, b) in itertools.combinations(enumerate(names), 2)}
    for rank in rank_intervals(names, sign):
        mine = values[int(rank.name)]
        assert rank.best == 1 + sum(v > mine for v in values) and rank.worst == sum(v >= mine for v in values)


def score_ends(mean, se, df, bounds=(0.0, 1.0)):
    return tuple(float(end) for end in ends(np.array(mean), np.array(se), np.array(df), 0.95, bounds))


def test_score_intervals_are_wilsons_with_an_effective_number_of_trials():
    se = math.sqrt(0.9 * 0.1 / 50)
    assert score_ends(0.9, se, 1e9) == pytest.approx(wilson(45, 50), abs=1e-6)
    assert score_ends(0.5, 1e-4, 50) == pytest.approx(score_ends(0.5, 1e-4, 50, None), abs=1e-7)


@given(mean=st.floats(0, 1), se=st.floats(0, 0.6), df=st.floats(1, 500))
def test_score_intervals_stay_inside_and_hold_their_mean(mean, se, df):
    lo, hi = score_ends(mean, se, df)
    assert 0 <= lo <= mean + 1e-12 and mean - 1e-12 <= hi <= 1
    if 1e-6 < mean < 1 - 1e-6:
        flipped = score_ends(1 - mean, se, df)
        assert (1 - flipped[1], 1 - flipped[0]) == pytest.approx((lo, hi), abs=1e-6)


def test_a_bound_over_tasks_that_are_all_constant_uses_all_their_items():
    zeros = [np.zeros((3, 4)) for _ in range(8)]
    assert crossed_anova(zeros).hi == pytest.approx(wilson(0, 32)[1])
    unequal = crossed_anova([np.zeros((3, 4)), np.zeros((3, 400))])
    assert wilson(0, 404)[1] < unequal.hi <= wilson(0, 4)[1]
    mixed = crossed_anova([np.zeros((3, 50)), np.ones((3, 50))])
    assert mixed.mean == 0.5 and 0 < mixed.lo < 0.5 < mixed.hi < 1


def test_p_values_exist_where_there_is_no_single_t_interval():
    all_better = verdict("a", "b", np.ones((3, 40)))
    assert all_better.outcome == "better" and all_better.p_value < 1e-6
    same = verdict("a", "b", np.zeros((3, 40)))
    assert same.p_value == 1.0
    rng = np.random.default_rng(8)
    tasks = [np.clip(rng.normal(0.1, 0.5, (1, 30)), -1, 1) for _ in range(3)]
    one = verdict("a", "b", tasks)
    assert one.p_value is None and (one.p_items < 0.05) == one.primary.excludes_zero
    barely = checkpoint_ci(tasks, level=1 - one.p_items)
    assert min(abs(barely.lo), abs(barely.hi)) < 1e-4
    alone = verdict("a", "b", tasks[0])
    assert alone.p_items == pytest.approx(2 * _t_tail(cluster_mean_ci(tasks[0][0], bounds=(-1.0, 1.0))))


def _t_tail(interval):
    from scipy.stats import t

    return t.sf(abs(interval.mean) / interval.se, interval.df)
