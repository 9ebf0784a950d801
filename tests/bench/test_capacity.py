"""A capacity turns blocks into coordinates, keeps every open choice by name, and knows which gates are one function."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.schedules import BUILTIN, CHOICES, Capacity, CapacityError, DataDependent, Uniform, equivalent_gates

ALL_PAIRS = [
    ("both", "read"),
    ("both", "write"),
    ("both", "none"),
    ("read", "write"),
    ("read", "none"),
    ("write", "none"),
]


@st.composite
def capacities(draw):
    names = [name for name, cls in BUILTIN.items() if not issubclass(cls, DataDependent)]
    cls = BUILTIN[draw(st.sampled_from(sorted(names)))]
    schedule = cls(blocks=draw(st.integers(1, 20)), span=draw(st.integers(1, 400)))
    choices = {name: draw(st.sampled_from(values)) for name, values in CHOICES.items()}
    return Capacity(schedule=schedule, **choices)


@given(capacity=capacities(), start=st.integers(0, 500), n=st.integers(0, 80), extra=st.integers(0, 30))
def test_coordinates_follow_the_blocks_and_the_last_takes_the_remainder(capacity, start, n, extra):
    dim = capacity.blocks + extra
    size = dim // capacity.blocks
    expected = []
    for t in range(start + 1, start + n + 1):
        k = capacity.schedule.active_blocks(t)
        expected.append(dim if k == capacity.blocks else k * size)
        assert capacity.active_coords(k, dim) == expected[-1]
    assert capacity.active_coords_range(start, n, dim).tolist() == expected


@given(capacity=capacities(), start=st.integers(0, 500), n=st.integers(0, 80))
def test_segments_are_maximal_runs_that_rebuild_the_schedule(capacity, start, n):
    segments = capacity.segments(start, n)
    rebuilt = [k for _, length, k in segments for _ in range(length)]
    assert rebuilt == capacity.schedule.active_blocks_range(start, n).tolist()
    assert [offset for offset, _, _ in segments] == list(np.cumsum([0, *(length for _, length, _ in segments)])[:-1])
    assert all(a[2] != b[2] for a, b in pairwise(segments))


@given(capacity=capacities())
def test_the_dictionary_round_trips(capacity):
    assert Capacity.from_dict(capacity.as_dict()) == capacity


@given(capacity=capacities())
def test_the_description_prints_every_choice_in_one_line(capacity):
    text = capacity.describe()
    assert "\n" not in text and f"blocks={capacity.blocks}" in text and f"span={capacity.span}" in text
    assert all(f"{name}={getattr(capacity, name)}" in text for name in CHOICES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gat": "both"}, "'gat'; did you mean 'gate'"),
        ({"gate": "bth"}, "'bth'; did you mean 'both'"),
        ({"schedule": "unifrom"}, "'unifrom'; did you mean 'uniform'"),
        ({"schedule": None}, "unknown schedule"),
        ({"params": {"factr": 2}}, "'factr'"),
        ({"blocks": "16"}, "blocks"),
        ({"span": 0}, "span"),
    ],
)
def test_a_wrong_dictionary_is_refused_with_the_nearest_name(change, message):
    data = {**Capacity(schedule=Uniform()).as_dict(), **change}
    with pytest.raises(CapacityError, match=message):
        Capacity.from_dict(data)
    with pytest.raises(CapacityError, match="needs a schedule"):
        Capacity.from_dict({})


def test_the_fast_paths_refuse_an_axis_that_the_blocks_do_not_divide():
    capacity = Capacity(schedule=Uniform(blocks=16), axis="value")
    capacity.check_axis(32)
    for dim in (40, 8, 0):
        with pytest.raises(CapacityError, match="do not divide|fewer"):
            capacity.check_axis(dim)
    with pytest.raises(CapacityError, match="fewer than 16 blocks"):
        capacity.active_coords_range(0, 4, 8)
    for k in (0, 17):
        with pytest.raises(CapacityError, match="between 1 and 16"):
            capacity.active_coords(k, 32)


def test_within_the_span_the_mean_active_fraction_is_known():
    capacity = Capacity(schedule=Uniform(blocks=16, span=8192))
    assert capacity.mean_active_fraction() == 17 / 32
    assert capacity.mean_active_fraction(512) == 1 / 16
    assert capacity.mean_active_fraction(16384) == pytest.approx((17 / 32 + 1) / 2)
    assert capacity.with_span(1024).mean_active_fraction() == 17 / 32
    with pytest.raises(CapacityError, match="at least 1"):
        capacity.mean_active_fraction(0)


def test_static_is_recognised_in_each_of_its_spellings():
    assert Capacity.static(axis="value").is_static and Capacity.static().mean_active_fraction() == 1
    assert Capacity(schedule=Uniform(blocks=1)).is_static
    assert Capacity(schedule=Uniform(blocks=4), gate="none").is_static
    assert not Capacity(schedule=Uniform(blocks=4)).is_static
    with pytest.raises(CapacityError, match="must be a Schedule"):
        Capacity(schedule="uniform")


def test_with_one_block_all_gates_are_the_same_function():
    assert sorted(map(sorted, Capacity.static().equivalent_gates("mlp", True))) == sorted(map(sorted, ALL_PAIRS))
    assert len(Capacity(schedule=Uniform(blocks=1), m0="learned").equivalent_gates("matrix")) == 6
    # No gate is one function with 'none' as soon as there are blocks to lock, whatever this capacity's own gate is.
    assert Capacity(schedule=Uniform(blocks=2), gate="none", m0="learned").equivalent_gates("matrix") == []


@given(
    axis=st.sampled_from(CHOICES["axis"]),
    m0=st.sampled_from(CHOICES["m0"]),
    key_norm=st.sampled_from(CHOICES["key_norm"]),
    memory=st.sampled_from(["matrix", "mlp"]),
    carried=st.booleans(),
    monotone=st.booleans(),
)
def test_write_and_both_are_equal_only_where_locked_coordinates_stay_zero(
    axis, m0, key_norm, memory, carried, monotone
):
    pairs = equivalent_gates(axis, m0, key_norm, memory, carried, monotone=monotone)
    zero = m0 == "zero" and memory == "matrix" and not carried and monotone
    assert pairs == ([("both", "write")] if zero and (axis != "key" or key_norm == "before_mask") else [])


def _delta_rule(gate: str, key_norm: str, axis: str, start: np.ndarray) -> np.ndarray:
    """The gated step written out: outputs of a delta rule with a key-axis or value-axis mask. float64 [T,V]."""
    rng = np.random.default_rng(0)
    steps, rows = 24, 8
    schedule = Uniform(blocks=4, span=16)
    S, out = start.copy(), []
    for t in range(1, steps + 1):
        k, q, v = rng.normal(size=(3, rows))
        active = np.arange(rows) < schedule.active_blocks(t) * 2
        masked = lambda M, on, a=active: M * (a[:, None] if axis == "key" else a) if on else M  # noqa: E731
        key = k / np.linalg.norm(k)
        if key_norm == "after_mask" and gate in ("both", "write") and axis == "key":
            inner = k * active if gate == "both" else k
            key = k / np.linalg.norm(inner)
        predicted = masked(S, gate == "both").T @ key
        S = S + masked(0.9 * np.outer(key, v - predicted), gate in ("both", "write"))
        out.append(masked(S, gate in ("both", "read")).T @ q)
    return np.array(out)


@pytest.mark.parametrize("axis", ["key", "value"])
def test_the_equivalence_is_true_of_the_written_out_recurrence(axis):
    zero, carried = np.zeros((8, 8)), np.random.default_rng(1).normal(size=(8, 8))
    run = lambda gate, start, norm="before_mask": _delta_rule(gate, norm, axis, start)  # noqa: E731
    np.testing.assert_allclose(run("both", zero), run("write", zero), rtol=0, atol=1e-12)
    assert np.abs(run("both", carried) - run("write", carried)).max() > 1e-2
    for other in ("read", "none"):
        assert np.abs(run("both", zero) - run(other, zero)).max() > 1e-2
    assert (np.abs(run("both", zero, "after_mask") - run("write", zero, "after_mask")).max() > 1e-2) == (axis == "key")
