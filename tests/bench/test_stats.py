"""The statistics against numbers from other sources, exact enumerations, and the degenerate cases of real runs."""

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.stats import (
    PairingError,
    benjamini_hochberg,
    cell_ci,
    clopper_pearson,
    cluster_mean_ci,
    components,
    crossed_anova,
    holm,
    holm_family,
    minimum_detectable_effect,
    p_value,
    paired_difference,
    pigeonhole_bootstrap,
    primary_method,
    score_matrix,
    sign_flip,
    stream,
    unbounded_difference,
    verdict,
    wilson,
)
from proteus_bench.stats.intervals import constant_bounds, t_quantile

DIFF = (-1.0, 1.0)


@pytest.mark.parametrize(
    ("k", "n", "low"),
    [(10, 10, 0.72247), (50, 50, 0.9287), (100, 100, 0.9630), (200, 200, 0.9812), (500, 500, 0.9924)],
)
def test_wilson_of_an_all_correct_cell(k, n, low):
    lo, hi = wilson(k, n)
    assert lo == pytest.approx(low, abs=5e-5) and hi == 1.0
    assert wilson(0, n) == pytest.approx((0.0, 1 - lo))


@given(n=st.integers(1, 400), data=st.data())
def test_wilson_and_exact_agree_with_scipy(n, data):
    from scipy.stats import binomtest

    k = data.draw(st.integers(0, n))
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        theirs = binomtest(k, n).proportion_ci(0.95, method=method)
        assert ours(k, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_exact_upper_bound_of_no_failure_in_thirty_is_the_rule_of_three():
    assert clopper_pearson(0, 30, 0.90)[1] == pytest.approx(0.0950, abs=5e-5)


def test_clustered_standard_error_is_the_published_one():
    y, groups = list(range(20)), [i % 4 for i in range(20)]
    interval = cluster_mean_ci(y, groups, bounds=None)
    assert interval.se == pytest.approx(0.645497, abs=1e-6)
    assert interval.se * math.sqrt(3 / 4) == pytest.approx(0.559017, abs=1e-6)
    assert interval.df == 3 and interval.n == 4


def test_cluster_variance_equals_the_double_sum_on_a_lopsided_split():
    rng = np.random.default_rng(1)
    x, groups = rng.normal(size=60), [0] * 40 + list(range(1, 21))
    centred = x - x.mean()
    pairs = (centred[i] * centred[j] for i in range(60) for j in range(60) if groups[i] == groups[j])
    expected = math.sqrt(sum(pairs) / 60**2 * 21 / 20)
    assert cluster_mean_ci(x, groups, bounds=None).se == pytest.approx(expected, rel=1e-12)


def test_t_quantiles_have_their_closed_forms():
    for level in (0.5, 0.8, 0.95, 0.99):
        p = (1 + level) / 2
        a = 2 * p - 1
        assert t_quantile(level, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)))
        assert t_quantile(level, 2) == pytest.approx(a * math.sqrt(2 / (1 - a * a)))


def test_paired_standard_error_is_the_published_one():
    a, b = np.array([1, 1, 0, 1, 0, 1.0]), np.array([1, 0, 0, 1, 0, 0.0])
    interval = cluster_mean_ci(a - b, bounds=DIFF)
    assert interval.se == pytest.approx(0.2108185, abs=1e-7)
    from_parts = np.var(a, ddof=1) + np.var(b, ddof=1) - 2 * np.cov(a, b)[0, 1]
    assert interval.se == pytest.approx(math.sqrt(from_parts / 6))


def test_holm_and_benjamini_hochberg_are_the_published_ones():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holm_family({"a": 0.5, "b": 0.5}) == {"a": 1.0, "b": 1.0} and holm([]) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([float("nan")])


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_adjusted_p_values_keep_order_and_agree_with_scipy(p):
    from scipy.stats import false_discovery_control

    adjusted = holm(p)
    assert all(before <= after <= 1 for before, after in zip(p, adjusted, strict=True))
    assert benjamini_hochberg(p) == pytest.approx(list(false_discovery_control(p)))


@pytest.mark.parametrize(("seeds", "floor"), [(3, 0.25), (5, 0.0625), (8, 0.0078125), (10, 0.001953125)])
def test_sign_flips_cannot_go_below_their_floor(seeds, floor):
    assert sign_flip(np.arange(1, seeds + 1) / 10) == (floor, floor)


def test_sign_flip_is_exact():
    d = [0.3, -0.1, 0.2, 0.4]
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in itertools.product((1, -1), repeat=4)]
    assert sign_flip(d)[0] == np.mean([total >= 0.8 - 1e-9 for total in sums])
    assert sign_flip([0.0, 0.0])[0] == 1.0


def test_bootstrap_variance_is_the_exact_one_by_enumeration():
    x = np.array([0.0, 1.0, 5.0])
    means = [np.mean(pick) for pick in itertools.product(x, repeat=3)]
    assert np.var(means) == pytest.approx(1.5556, abs=5e-5)
    draws = pigeonhole_bootstrap(x[None, :], B=200_000, bounds=(0, 5)).draws[:, 0]
    assert draws.var() == pytest.approx(np.var(means), rel=0.02)
    assert set(np.round(np.unique(draws), 9)) == set(np.round(np.unique(means), 9))


def test_bootstrap_of_seeds_and_items_is_exact_by_enumeration():
    D = np.array([[0.0, 1.0, 0.5], [1.0, 1.0, 0.0]])
    means = [
        D[np.ix_(rows, columns)].mean()
        for rows in itertools.product(range(2), repeat=2)
        for columns in itertools.product(range(3), repeat=3)
    ]
    draws = pigeonhole_bootstrap(D, B=200_000).draws[:, 0]
    assert draws.mean() == pytest.approx(np.mean(means), abs=0.002)
    assert draws.var() == pytest.approx(np.var(means), rel=0.02)


def test_percentile_interval_of_the_reference_sample():
    x = np.array([10, 12, 12.5, 12.5, 13.9, 15, 21, 22, 23, 34, 50, 81, 89, 121, 134, 213])
    rows = np.stack([x, x])  # equal seeds add nothing: the interval is that of the items
    interval = pigeonhole_bootstrap(rows, B=200_000, bounds=(0, 300)).overall
    assert (interval.lo, interval.hi) == pytest.approx((28.86, 84.21), rel=0.01)


def test_one_seed_resample_serves_all_tasks():
    rng = np.random.default_rng(2)
    seed_effect = rng.normal(size=(5, 1))
    tasks = [seed_effect + 1e-6 * rng.normal(size=(5, 50)) for _ in range(2)]
    draws = pigeonhole_bootstrap(tasks, B=2000, bounds=(-9, 9)).draws
    assert np.corrcoef(draws.T)[0, 1] > 0.999


def test_the_bootstrap_is_bit_identical_and_leaves_global_state_alone():
    D = np.random.default_rng(3).random((5, 40))
    before = np.random.get_state()[1].copy()
    first, second = (pigeonhole_bootstrap([D, D[:, :7]], B=999, seed="abc") for _ in range(2))
    assert (first.draws == second.draws).all() and first.overall == second.overall
    assert (np.random.get_state()[1] == before).all()
    assert (pigeonhole_bootstrap([D, D[:, :7]], B=999, seed="abd").draws != first.draws).any()
    assert stream("a", "b").random() != stream("ab").random()


def test_mean_squares_are_those_of_the_definition():
    rng = np.random.default_rng(4)
    D = rng.random((4, 7))
    c = components(D)
    rows, columns = D.mean(axis=1), D.mean(axis=0)
    assert c.ms_seed == pytest.approx(7 * rows.var(ddof=1)) and c.ms_item == pytest.approx(4 * columns.var(ddof=1))
    total = ((D - D.mean()) ** 2).sum()
    assert c.ms_seed * 3 + c.ms_item * 6 + c.ms_res * 18 == pytest.approx(total)
    interval = crossed_anova(D)
    assert interval.se**2 * 28 == pytest.approx(max(c.ms_seed + c.ms_item - c.ms_res, c.ms_res))


@given(seed=st.integers(0, 10**6), S=st.integers(2, 6), N=st.integers(2, 12))
def test_a_suite_of_one_task_is_that_task_and_weights_matter_by_ratio_only(seed, S, N):
    D = np.random.default_rng(seed).random((S, N))
    one, twice = crossed_anova(D), crossed_anova([D, D.copy()], weights=[1, 0])
    assert (one.mean, one.se) == pytest.approx((twice.mean, twice.se))
    assert crossed_anova([D, 1 - D], weights=[2, 2]) == crossed_anova([D, 1 - D])


@given(seed=st.integers(0, 10**6))
def test_order_and_labels_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    D = rng.random((4, 9)) - rng.random((4, 9))
    shuffled = D[rng.permutation(4)][:, rng.permutation(9)]
    first, second, swapped = (crossed_anova(x, bounds=DIFF) for x in (D, shuffled, -D))
    assert (first.lo, first.hi) == pytest.approx((second.lo, second.hi))
    assert (first.lo, first.hi) == pytest.approx((-swapped.hi, -swapped.lo))


def test_two_seeds_are_printed_with_their_honest_width():
    D = np.array([[0.0] * 50, [0.1] * 50])
    interval = crossed_anova(D, bounds=(-9, 9))
    assert interval.df == pytest.approx(1) and interval.hi - interval.mean == pytest.approx(12.706 * 0.05, rel=1e-3)


def test_one_seed_and_one_item_give_no_interval_and_say_why():
    one_seed = crossed_anova(np.ones((1, 9)))
    assert one_seed.lo is None and "one seed" in one_seed.note and primary_method(1) is None
    assert pigeonhole_bootstrap(np.ones((1, 9)), B=10).overall.lo is None
    assert crossed_anova(np.array([[0.0], [1.0]])).lo is None
    assert cell_ci([1.0]).lo is None and "one item" in cell_ci([1.0]).note


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_constant_scores_never_give_a_width_of_zero(value):
    D = np.full((3, 50), value)
    wide = (
        crossed_anova(D),
        pigeonhole_bootstrap(D, B=50).overall,
        crossed_anova([D, D]),
        cell_ci(D[0]),
        cluster_mean_ci([value] * 100, [i // 2 for i in range(100)]),
        cluster_mean_ci([0.0, 1.0] * 50, [i // 2 for i in range(100)]),
    )
    assert all(0.02 < interval.hi - interval.lo < 0.3 for interval in wide)
    assert constant_bounds(1.0, 50, 0.95) == pytest.approx(wilson(50, 50))


def test_seeds_that_cancel_between_tasks_give_no_interval_instead_of_a_point():
    rows = np.array([[0.0] * 4, [1.0] * 4])
    assert crossed_anova([rows, 1 - rows]).lo is None


@pytest.mark.parametrize("bad", [np.zeros((0, 3)), np.array([[np.nan, 1]]), np.zeros(3)])
def test_empty_nan_and_misshapen_scores_are_refused(bad):
    for call in (crossed_anova, pigeonhole_bootstrap):
        with pytest.raises(ValueError, match="scores"):
            call(bad)
    with pytest.raises(ValueError, match="same seeds"):
        crossed_anova([np.zeros((2, 3)), np.zeros((3, 3))])
    with pytest.raises(ValueError, match="weights"):
        crossed_anova([np.zeros((2, 3))], weights=[-1])
    with pytest.raises(ValueError, match="fraction"):
        wilson(1, 2, level=95)


def _rows(seeds, items, value=lambda s, i: (s + int(i)) % 2):
    return [(s, str(i), value(s, i)) for s in seeds for i in items]


def test_pairing_is_exact_whatever_the_order():
    a, b = _rows([0, 1, 2], range(5)), _rows([0, 1, 2], range(5), lambda s, i: (s * i) % 2)
    difference = paired_difference(score_matrix(a), score_matrix(random.Random(0).sample(b, len(b))))
    table = {(s, i): v for s, i, v in b}
    expected = {(s, i): v - table[s, i] for s, i, v in a}
    got = {(s, i): difference.scores[x, y] for x, s in enumerate((0, 1, 2)) for y, i in enumerate(difference.items)}
    assert got == expected


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (_rows([0, 1], range(4)), _rows([0, 2], range(4)), "seed 1"),
        (_rows([0, 1], range(4)), _rows([0, 1], range(5)), "item 4"),
        (_rows([0, 1], range(4)) * 2, _rows([0, 1], range(4)), "scored twice"),
        (_rows([0, 1], range(4))[:-1], _rows([0, 1], range(4)), "no score for item 3"),
        ([], [], "no scores"),
    ],
)
def test_anything_but_exact_pairs_is_refused(a, b, message):
    with pytest.raises(PairingError, match=message) as caught:
        paired_difference(score_matrix(a), score_matrix(b))
    assert caught.value.exit_code == 3


def test_the_verdict_says_what_the_interval_says():
    rng = np.random.default_rng(5)
    noise = rng.normal(0, 0.1, (5, 200))
    better = verdict("titans+proteus", "titans", np.clip(noise + 0.1, -1, 1))
    assert better.outcome == "better" and better.rankable and better.bootstrap is not None
    assert better.text.startswith("titans+proteus is better than titans by 10.")
    assert better.text.endswith("5 seeds x 200 items")
    worse = verdict("titans", "titans+proteus", -np.clip(noise + 0.1, -1, 1))
    assert worse.outcome == "worse" and worse.primary.mean == -better.primary.mean and "(difference -10." in worse.text
    close = verdict("a", "b", noise[:3] - noise[:3].mean())
    assert close.outcome == "not_separable" and close.bootstrap is None and close.sign_flip_floor == 0.25
    assert "a and b are not separable at n=200 items, 3 seeds: difference" in close.text
    assert better.p_value < 0.05 < close.p_value


def test_the_verdict_agrees_with_its_p_value():
    rng = np.random.default_rng(6)
    for _ in range(200):
        result = verdict("a", "b", np.clip(rng.normal(0.02, 0.2, (3, 30)), -1, 1))
        assert (result.p_value < 0.05) == (result.outcome in ("better", "worse"))
    assert p_value(crossed_anova(np.array([[0.0] * 9, [2.0] * 9]), bounds=(-99, 99))) == pytest.approx(0.5)


def test_identical_runs_are_called_identical_with_a_bound():
    result = verdict("a", "b", [np.zeros((3, 50)), np.zeros((3, 50))])
    assert result.outcome == "identical" and "identical on every item" in result.text
    assert 0.02 < result.primary.hi == -result.primary.lo < 0.1 and result.sign_flip_p == 1.0


def test_one_seed_claims_nothing_about_the_methods():
    D = np.ones((1, 20))
    D[0, 0] = 0
    result = verdict("a", "b", [D, D])
    assert result.outcome == "better" and result.claim == "checkpoints" and not result.rankable
    assert result.text.endswith("one seed: this compares two checkpoints, nothing is claimed about the methods")
    assert "1 seed x 40 items" in result.text and result.p_value is None and result.bootstrap is None
    assert "no interval" in verdict("a", "b", np.array([[1.0]])).text


def test_planning_numbers():
    assert minimum_detectable_effect(0, 1 / 9, 0, 1, 969) == pytest.approx(0.03, rel=1e-4)
    by_hand = (1.95996 + 0.84162) * math.sqrt(0.0009 / 5 + 0.09 / 500 + 0.16 / 2500)
    assert minimum_detectable_effect(0.03**2, 0.3**2, 0.4**2, 5, 500) == pytest.approx(by_hand, rel=1e-4)
    c = components(np.random.default_rng(7).normal(size=(5, 40)))
    assert len(c.variances()) == 3 and min(c.variances()) >= 0


def test_unbounded_differences_are_judged_in_their_own_unit() -> None:
    rng = np.random.default_rng(0)
    apart = -3.0 + rng.normal(size=(3, 40))
    found = unbounded_difference([apart, apart - 1])
    assert found.excludes_zero and found.hi is not None and found.hi < -1.5
    assert abs(found.mean + 3.5) < 0.5
    one = unbounded_difference(apart[:1])
    assert one.excludes_zero and one.method == "item_cluster_t"
    nothing = unbounded_difference(np.zeros((3, 5)))
    assert nothing.lo is None and nothing.note
    wide = unbounded_difference(rng.normal(size=(3, 40)) * 5)
    assert not wide.excludes_zero
