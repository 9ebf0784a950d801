"""Ranks come from corrected paired comparisons of all pairs, the same ones that `compare` makes one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus_bench.leaderboard.pairwise import Method, pair_tests, ranking
from proteus_bench.stats import holm, rank_intervals, verdict


def _methods(seed: int, count: int, tasks: int, seeds: tuple[int, ...], items: int = 12) -> list[Method]:
    """Scores of no few values: whether a variance is at its floor must not hang on the last bit."""
    rng = np.random.default_rng(seed)
    return [
        Method(
            str(i),
            seeds,
            tuple(rng.random((len(seeds), items)) ** rng.uniform(0.2, 5) for _ in range(tasks)),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("seeds", [(0, 1), (0, 1, 2, 3, 4)])
def test_all_pairs_at_once_are_the_verdicts_one_by_one(tasks: int, seeds: tuple[int, ...]) -> None:
    methods = _methods(0, 6, tasks, seeds)
    first = methods[0]
    methods += [
        Method("twin", seeds, first.tasks),
        Method("all", seeds, tuple(np.ones_like(t) for t in first.tasks)),
        Method("none", seeds, tuple(np.zeros_like(t) for t in first.tasks)),
        Method("fewer", seeds[:2], tuple(t[:2] for t in _methods(1, 1, tasks, seeds)[0].tasks)),
    ]
    mean, p = pair_tests(methods)
    for a, left in enumerate(methods):
        for b, right in enumerate(methods):
            if a == b:
                continue
            shared = len(set(left.seeds) & set(right.seeds))
            differences = [x[:shared] - y[:shared] for x, y in zip(left.tasks, right.tasks, strict=True)]
            one = verdict("a", "b", differences, B=0)
            assert mean[a, b] == pytest.approx(one.primary.mean, abs=1e-12)
            assert p[a, b] == pytest.approx(1.0 if one.p_value is None else one.p_value, rel=1e-9, abs=1e-14)


def test_ranks_are_the_intervals_of_holm_corrected_pairs() -> None:
    methods = _methods(3, 7, 2, (0, 1, 2), items=40)
    found = ranking(methods)
    names = [m.name for m in methods]
    pairs = [(a, b) for i, a in enumerate(methods) for b in methods[i + 1 :]]
    judged = [verdict(a.name, b.name, [x - y for x, y in zip(a.tasks, b.tasks, strict=True)], B=0) for a, b in pairs]
    adjusted = holm([v.p_value if v.p_value is not None else 1.0 for v in judged])
    sign = {"better": 1, "worse": -1}
    outcomes = {
        (a.name, b.name): sign.get(v.outcome, 0) if p < 0.05 else 0
        for (a, b), v, p in zip(pairs, judged, adjusted, strict=True)
    }
    assert any(outcomes.values()), "the example must separate something"
    assert found == {rank.name: rank for rank in rank_intervals(names, outcomes)}


def test_methods_without_two_common_seeds_are_ties() -> None:
    methods = _methods(0, 2, 1, (0, 1)) + _methods(5, 1, 1, (2, 3))
    _, p = pair_tests(methods)
    assert (p[:2, 2] == 1).all() and (p[2, :2] == 1).all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)))
def test_ranks_do_not_depend_on_the_order_of_the_methods(order: list[int]) -> None:
    methods = _methods(3, 5, 2, (0, 1, 2), items=40)
    assert ranking([methods[i] for i in order]) == ranking(methods)
