"""The schedules do what their definitions say, at every position that the definitions name and at random ones."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.schedules import (
    BUILTIN,
    Bottleneck,
    CapacityError,
    DataDependent,
    Geometric,
    Late,
    Random,
    Reverse,
    Schedule,
    Static,
    Stretched,
    Surprise,
    Uniform,
)

TIMED = {name: cls for name, cls in BUILTIN.items() if not issubclass(cls, DataDependent)}
MONOTONE = [cls for cls in TIMED.values() if cls.monotone]
shapes = st.tuples(st.integers(1, 40), st.integers(1, 600))


@pytest.mark.parametrize(
    ("span", "blocks", "delta", "vectors"),
    [
        (8192, 16, 512, {1: 1, 512: 1, 513: 2, 4096: 8, 7680: 15, 7681: 16, 16384: 16}),
        (10, 16, 1, {t: min(16, t) for t in range(1, 41)}),
        (100, 3, 33, {99: 3, 34: 2, 33: 1, 66: 2, 67: 3, 100: 3, 101: 3}),
        (8192, 1, 8192, {1: 1, 8192: 1, 99999: 1}),
    ],
)
def test_uniform_gives_the_published_vectors(span, blocks, delta, vectors):
    schedule = Uniform(blocks=blocks, span=span)
    assert schedule.delta == delta
    assert {t: schedule.active_blocks(t) for t in vectors} == vectors


@pytest.mark.parametrize("t", [0, -1])
@pytest.mark.parametrize("cls", BUILTIN.values())
def test_positions_before_the_first_raise(cls, t):
    with pytest.raises(ValueError, match="1-based"):
        cls(blocks=4, span=16).active_blocks(t)


@given(shape=shapes, start=st.integers(0, 700), n=st.integers(0, 60), name=st.sampled_from(sorted(TIMED)))
def test_a_range_equals_its_points_and_stays_between_one_and_all(shape, start, n, name):
    schedule = TIMED[name](blocks=shape[0], span=shape[1])
    k_N = schedule.active_blocks_range(start, n)
    assert k_N.dtype == np.int64 and k_N.shape == (n,)
    assert k_N.tolist() == [schedule.active_blocks(t) for t in range(start + 1, start + n + 1)]
    assert all(1 <= k <= schedule.blocks for k in k_N)


@given(shape=shapes, cls=st.sampled_from(MONOTONE))
def test_monotone_schedules_open_each_block_at_its_unlock_time_and_never_close(shape, cls):
    schedule = cls(blocks=shape[0], span=shape[1])
    times = schedule.unlock_times()
    assert len(times) == schedule.blocks and times[0] == 1 and list(times) == sorted(times)
    for block, time in enumerate(times, start=1):
        assert schedule.active_blocks(time) >= block
        assert time == 1 or schedule.active_blocks(time - 1) < block


@given(shape=shapes, cls=st.sampled_from([Uniform, Geometric, Bottleneck, Late, Random]))
def test_all_blocks_are_open_from_the_end_of_the_span_on(shape, cls):
    blocks, span = min(shape), max(shape)
    schedule = cls(blocks=blocks, span=span)
    assert schedule.active_blocks(span + 1) == blocks
    if cls is not Geometric or span >= 2 * blocks:
        assert schedule.active_blocks(span) == blocks


@given(shape=shapes, name=st.sampled_from(sorted(TIMED)))
def test_the_budget_is_the_mean_over_the_span(shape, name):
    schedule = TIMED[name](blocks=shape[0], span=shape[1])
    pointwise = np.mean([schedule.active_blocks(t) for t in range(1, shape[1] + 1)]) / shape[0]
    assert schedule.mean_active_fraction() == pytest.approx(pointwise, abs=1e-12)


@given(shape=shapes, seed=st.integers(0, 2**40))
def test_random_has_exactly_the_budget_of_uniform(shape, seed):
    blocks, span = shape
    budgets = [s.mean_active_fraction() for s in (Random(blocks=blocks, span=span, seed=seed), Uniform(blocks=blocks, span=span))]
    assert budgets[0] == budgets[1]


@given(blocks=st.integers(1, 40), step=st.integers(1, 40))
def test_bottleneck_late_and_reverse_can_have_exactly_the_budget_of_uniform(blocks, step):
    span = 2 * blocks * step
    uniform = Uniform(blocks=blocks, span=span).mean_active_fraction()
    assert uniform == pytest.approx((blocks + 1) / (2 * blocks))
    assert Bottleneck(blocks=blocks, span=span).mean_active_fraction() == pytest.approx(uniform)
    assert Reverse(blocks=blocks, span=span).mean_active_fraction() == pytest.approx(uniform)
    if blocks % 2 == 0:
        start = float(np.nextafter(1 - 1 / blocks, 2))  # the product must not round below the intended position
        assert Late(blocks=blocks, span=span, start=start).mean_active_fraction() == pytest.approx(uniform)


def test_budgets_at_the_default_shape():
    budgets = {name: cls(blocks=16, span=8192).mean_active_fraction() for name, cls in BUILTIN.items()}
    assert budgets == {
        "static": 1.0,
        "uniform": 0.53125,
        "stretched": 0.28125,
        "geometric": pytest.approx(0.937447, abs=1e-6),
        "bottleneck": 0.53125,
        "late": 0.75,
        "random": 0.53125,
        "reverse": 0.53125,
        "surprise": 0.53125,
    }


def test_geometric_unlock_times_double():
    offsets = [time - 1 for time in Geometric(blocks=8, span=8192).unlock_times()[1:]]
    assert offsets == [64, 128, 256, 512, 1024, 2048, 4096]
    many = [time - 1 for time in Geometric(blocks=16, span=8192).unlock_times()]
    assert many == [0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]


def test_stretched_goes_on_opening_past_the_span():
    schedule = Stretched(blocks=16, span=8192, factor=2)
    assert schedule.active_blocks(8192) == 8
    assert [schedule.active_blocks(t) for t in (8193, 15360, 15361, 20000)] == [9, 15, 16, 16]
    assert schedule.mean_active_fraction(16384) == Uniform(blocks=16, span=16384).mean_active_fraction()
    assert Stretched(blocks=16, span=8192, factor=1).unlock_times() == Uniform().unlock_times()


def test_bottleneck_late_and_reverse_change_where_they_say():
    bottleneck = Bottleneck(blocks=8, span=100, until=0.3, few=2)
    assert [bottleneck.active_blocks(t) for t in (1, 30, 31, 500)] == [2, 2, 8, 8]
    late = Late(blocks=5, span=100, start=0.6)
    assert [late.active_blocks(t) for t in (1, 60, 61, 500)] == [3, 3, 5, 5]
    reverse = Reverse(blocks=4, span=100)
    assert [reverse.active_blocks(t) for t in (1, 25, 26, 75, 76, 1000)] == [4, 4, 3, 2, 1, 1]
    with pytest.raises(CapacityError, match="no unlock times"):
        reverse.unlock_times()


def test_random_depends_on_its_seed_only():
    assert Random(seed=3).unlock_times() == Random(seed=3).unlock_times()
    assert len({Random(seed=seed).unlock_times() for seed in range(20)}) == 20


@pytest.mark.parametrize(
    ("cls", "bad", "message"),
    [
        (Uniform, {"blocks": 0}, "blocks"),
        (Uniform, {"blocks": 2.0}, "blocks"),
        (Uniform, {"blocks": True}, "blocks"),
        (Uniform, {"blocks": 1 << 20}, "blocks"),
        (Uniform, {"span": 0}, "span"),
        (Stretched, {"factor": 0}, "factor"),
        (Stretched, {"factor": float("nan")}, "factor"),
        (Stretched, {"factor": float("inf")}, "factor"),
        (Bottleneck, {"until": 1.5}, "until"),
        (Bottleneck, {"until": "half"}, "until"),
        (Bottleneck, {"few": 17}, "few"),
        (Late, {"start": -0.1}, "start"),
        (Random, {"seed": -1}, "seed"),
    ],
)
def test_bad_parameters_are_refused_by_name(cls, bad, message):
    with pytest.raises(CapacityError, match=message) as caught:
        cls(**bad)
    assert caught.value.exit_code == 2


def test_a_schedule_of_a_few_lines_gets_the_whole_protocol():
    @dataclass(frozen=True, kw_only=True)
    class Square(Schedule):
        name: ClassVar[str] = "square"
        rate: float = 2.0

        def active_blocks(self, t: int) -> int:
            return min(self.blocks, 1 + int((t - 1) / self.span * self.blocks**self.rate) // self.blocks)

    @dataclass(frozen=True, kw_only=True)
    class Pair(Schedule):
        def unlock_times(self) -> tuple[int, ...]:
            return (1,) * (self.blocks // 2) + (7,) * (self.blocks - self.blocks // 2)

    square, pair = Square(blocks=4, span=40), Pair(blocks=4, span=8)
    assert square.unlock_times() == (1, 11, 21, 31)
    assert square.active_blocks_range(8, 4).tolist() == [1, 1, 2, 2]
    assert square.params() == {"rate": 2.0} and square.with_span(80).unlock_times() == (1, 21, 41, 61)
    assert [pair.active_blocks(t) for t in (1, 6, 7)] == [2, 2, 4] and pair.mean_active_fraction() == (6 * 2 + 2 * 4) / 32


def test_a_schedule_without_a_rule_cannot_be_defined():
    with pytest.raises(TypeError, match="must define active_blocks or unlock_times"):
        type("Empty", (Schedule,), {})
    with pytest.raises(TypeError, match="not monotone"):
        type("Half", (Schedule,), {"monotone": False, "unlock_times": lambda self: (1,)})


def test_a_schedule_that_never_opens_is_said_to():
    class Shut(Schedule):
        def active_blocks(self, t: int) -> int:
            return 1

    with pytest.raises(CapacityError, match="never opens block 2"):
        Shut(blocks=2, span=8).unlock_times()


def test_huge_spans_cost_no_memory():
    assert Uniform(blocks=16, span=1 << 40).mean_active_fraction() == 0.53125
    assert Reverse(blocks=16, span=1 << 40).mean_active_fraction() == 0.53125
    assert Static(blocks=1, span=1 << 40).mean_active_fraction() == 1.0


def fold(schedule, signals):
    """One opening per position, fed one position at a time."""
    opening, trace = schedule.start(), []
    for signal in signals:
        trace.append(opening.k)
        opening = schedule.advance(opening, 1, signal)
    return opening, trace


signals = st.lists(st.floats(0, 2), min_size=1, max_size=120)


@given(signals=signals, every=st.integers(1, 9), blocks=st.integers(1, 8), budget=st.floats(0, 1))
def test_surprise_stays_within_its_budget_and_opens_at_chunk_ends_only(signals, every, blocks, budget):
    budget = max(budget, 1 / blocks)
    schedule = Surprise(blocks=blocks, span=len(signals), every=every, tau=0.5, budget=budget)
    opening, trace = fold(schedule, signals)
    assert sum(trace) <= budget * blocks * len(signals) + 1e-9 and opening.spent == sum(trace)
    jumps = [t for t in range(1, len(trace)) if trace[t] != trace[t - 1]]
    assert all(t % every == 0 and trace[t] == trace[t - 1] + 1 for t in jumps)
    assert [t for t in opening.unlocks if t <= len(trace)] == [t + 1 for t in jumps]


@given(signals=signals, every=st.integers(1, 9), data=st.data())
def test_surprise_may_be_fed_in_any_pieces(signals, every, data):
    schedule = Surprise(blocks=6, span=64, every=every, tau=0.4)
    opening, at = schedule.start(), 0
    while at < len(signals):
        n = data.draw(st.integers(1, min(schedule.room(opening), len(signals) - at)))
        opening = schedule.advance(opening, n, float(np.mean(signals[at : at + n])))
        at += n
    whole, _ = fold(schedule, signals)
    assert (opening.k, opening.unlocks, opening.spent) == (whole.k, whole.unlocks, whole.spent)
    assert opening.error == pytest.approx(whole.error) and opening.pending == pytest.approx(whole.pending, abs=1e-12)


def test_surprise_opens_on_errors_above_tau_and_never_on_small_ones():
    schedule = Surprise(blocks=4, span=1000, every=10, tau=0.5, budget=1.0, memory=0.0)
    assert fold(schedule, [0.4] * 200)[1] == [1] * 200
    assert fold(schedule, [0.4] * 20 + [0.6] * 20 + [0.1] * 60)[0].unlocks == (31, 41)
    smooth = Surprise(blocks=4, span=1000, every=10, tau=0.5, budget=1.0, memory=0.9)
    assert fold(smooth, [0.4] * 20 + [0.6] * 20 + [0.1] * 60)[0].unlocks == ()


def test_past_the_span_the_budget_no_longer_binds():
    schedule = Surprise(blocks=4, span=40, every=10, tau=0.5, budget=0.25)
    opening, trace = fold(schedule, [1.0] * 80)
    assert trace[:40] == [1] * 40 and opening.unlocks == (41, 51, 61)
    assert schedule.mean_active_fraction() == 0.25 and schedule.mean_active_fraction(80) == (10 + 40) / 80


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tau": -1}, "tau must be a number"),
        ({"budget": 1.5}, "budget must be a number"),
        ({"budget": 0.01}, "less than the one block"),
        ({"every": 0}, "every must be an integer"),
        ({"memory": float("nan")}, "memory must be a number"),
    ],
)
def test_surprise_refuses_what_it_cannot_be(values, message):
    with pytest.raises(CapacityError, match=message):
        Surprise(**values)


def test_a_data_dependent_schedule_has_no_times_of_its_own():
    for ask in (lambda s: s.active_blocks(1), lambda s: s.unlock_times(), lambda s: s.active_blocks_range(0, 4)):
        with pytest.raises(CapacityError, match="depends on the data"):
            ask(Surprise())
    with pytest.raises(ValueError, match="do not fit"):
        Surprise(every=8).advance(Surprise(every=8).start(), 9, 0.1)
