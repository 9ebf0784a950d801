"""Tasks made of the same draws: the mean over a suite covers what it promises only when they are pooled."""

import numpy as np
import pytest

from proteus_bench.compare import compare_runs
from proteus_bench.leaderboard.pairwise import Method, pair_tests
from proteus_bench.schedules import Capacity, Uniform
from proteus_bench.stats import crossed_anova, improvement_ci, pool_draws, verdict
from proteus_bench.stats.bootstrap import joint_draws

LENGTHS = 3


def test_pooling_keeps_the_mean_and_the_weights_of_the_tasks():
    rng = np.random.default_rng(0)
    tasks = [rng.random((3, 7)), rng.random((3, 7)), rng.random((3, 5))]
    pooled, weights = pool_draws(tasks, ["a", "a", "b"])
    assert [task.shape for task in pooled] == [(3, 7), (3, 5)] and weights == pytest.approx([2 / 3, 1 / 3])
    np.testing.assert_allclose(pooled[0], (tasks[0] + tasks[1]) / 2)
    found, plain = crossed_anova(pooled, weights=weights), crossed_anova(tasks)
    assert found.mean == pytest.approx(plain.mean) and found.n == 12

    apart, equal = pool_draws(tasks, [0, 1, 2])
    assert all(a is not None and (a == b).all() for a, b in zip(apart, tasks, strict=True))
    assert crossed_anova(apart, weights=equal) == plain
    with pytest.raises(ValueError, match="same seeds and items"):
        pool_draws(tasks, ["a", "a", "a"])


def _hits(same_rows: bool, pooled: bool, replications: int = 1500) -> float:
    """How often the interval over rows shown at several lengths holds the truth (zero)."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(replications):
        rows = rng.normal(size=(1 if same_rows else LENGTHS, 1, 40))
        noise = rng.normal(size=(LENGTHS, 3, 40))
        tasks = list(0.15 * (rows + 0.3 * noise + 0.1 * rng.normal(size=(1, 3, 1))))
        D, weights = pool_draws(tasks, [0] * LENGTHS) if pooled else (tasks, None)
        found = verdict("a", "b", D, B=0, weights=weights).primary
        hits += bool(found.lo is not None and found.hi is not None and found.lo <= 0 <= found.hi)
    return hits / replications


def test_rows_that_are_shown_at_several_lengths_are_covered_when_pooled_and_not_otherwise():
    assert _hits(same_rows=True, pooled=False) < 0.90
    assert 0.92 <= _hits(same_rows=True, pooled=True) <= 0.985


def test_pooling_is_right_for_independent_tasks_too():
    assert 0.92 <= _hits(same_rows=False, pooled=True) <= 0.985


def test_resampling_draws_tasks_of_one_key_together():
    rng = np.random.default_rng(2)
    task = rng.random((5, 30))
    together = joint_draws([task, task], 200, "x", keys=["a", "a"])
    np.testing.assert_allclose(together[..., 0], together[..., 1])
    apart = joint_draws([task, task], 200, "x")
    assert not np.allclose(apart[..., 0], apart[..., 1])
    assert (apart == joint_draws([task, task], 200, "x", keys=["a", "b"])).all()
    noisy = task + rng.normal(0, 0.2, task.shape)
    pair, single = improvement_ci([task, task], [noisy, noisy], keys=["a", "a"]), improvement_ci([task], [noisy])
    assert (pair.mean, pair.lo, pair.hi) == (single.mean, single.lo, single.hi)


def test_a_board_weighs_pooled_tasks_as_the_verdict_does():
    rng = np.random.default_rng(3)
    weights = [0.75, 0.25]
    methods = [Method(str(i), (0, 1, 2), (rng.random((3, 12)), rng.random((3, 20)))) for i in range(3)]
    mean, p = pair_tests(methods, weights)
    for a in range(3):
        for b in range(3):
            if a != b:
                D = [x - y for x, y in zip(methods[a].tasks, methods[b].tasks, strict=True)]
                one = verdict("a", "b", D, B=0, weights=weights)
                assert mean[a, b] == pytest.approx(one.primary.mean) and p[a, b] == pytest.approx(one.p_value)


def test_rows_shown_at_two_lengths_are_counted_once_by_compare(make_run):
    """The same scores twice say no more than once: the suite's interval is that of either length."""
    places = [("t.one", 512), ("t.one", 1024)]
    rng = np.random.default_rng(4)
    sides = [("titans", 0.9, None), ("titans+proteus", 0.5, Capacity(schedule=Uniform(blocks=16, span=4096), axis="value"))]
    scores = [(rng.random((3, 20)) < rate).astype(float) for _, rate, _ in sides]

    def runs(name, at):
        made = [
            {"label": label, "scores": dict.fromkeys(at, held), "capacity": capacity}
            for (label, _, capacity), held in zip(sides, scores, strict=True)
        ]
        return compare_runs([make_run(name, *made)]).suites[0]

    twice, once = runs("twice", places), runs("once", places[:1])
    suite, line = twice.lines[0].verdict, once.lines[0].verdict
    assert (suite.primary.lo, suite.primary.hi, suite.items) == pytest.approx((line.primary.lo, line.primary.hi, 20))
    assert (twice.lines[0].logprob.lo, twice.lines[0].logprob.hi) == pytest.approx(
        (once.lines[0].logprob.lo, once.lines[0].logprob.hi)
    )
    for a, b in zip(twice.methods, once.methods, strict=True):
        assert (a.score.lo, a.score.hi, a.score.n) == pytest.approx((b.score.lo, b.score.hi, 20))
