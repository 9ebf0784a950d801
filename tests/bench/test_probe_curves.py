"""Overload points, and plots that are what they claim."""

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.probes.curves import crossing, falling, overload
from proteus_bench.probes.svg import Axis, Point, Series, dot_chart, heat_map, line_chart, swatch, ticks
from proteus_bench.stats import Interval

LOADS = (4, 16, 64, 256)


def intervals(*triples):
    return [Interval(mean, lo, hi, 10, "test") for mean, lo, hi in triples]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_falling_curve_is_the_closest_that_never_rises(values):
    curve = falling(values)
    assert all(a >= b - 1e-12 for a, b in pairwise(curve))
    assert curve.mean() == pytest.approx(np.mean(values))
    # No other falling curve that is tried is closer: the running minimum, the running maximum from behind, the mean.
    error = np.square(curve - values).sum()
    for other in (np.minimum.accumulate(values), np.maximum.accumulate(values[::-1])[::-1], [np.mean(values)] * len(values)):
        assert error <= np.square(np.asarray(other) - values).sum() + 1e-9


def test_a_curve_that_falls_already_is_left_alone():
    assert falling([0.9, 0.5, 0.5, 0.1]).tolist() == [0.9, 0.5, 0.5, 0.1]


def test_the_crossing_is_linear_in_the_logarithm_of_the_load():
    assert crossing(LOADS, [1.0, 0.5, 0.2, 0.0], 0.75) == pytest.approx(8)
    assert crossing(LOADS, [1.0, 1.0, 0.8, 0.0], 0.9) == pytest.approx(32)
    assert crossing(LOADS, [0.8, 0.5, 0.2, 0.0], 0.9) == -math.inf
    assert crossing(LOADS, [1.0, 0.95, 0.92, 0.91], 0.9) == math.inf


def test_overload_inverts_the_intervals_of_recall():
    found = overload(LOADS, intervals((1, 0.9, 1), (0.8, 0.6, 0.95), (0.4, 0.2, 0.6), (0.1, 0, 0.2)), 0.7)
    assert found.lo < found.point < found.hi
    assert found.lo == pytest.approx(crossing(LOADS, [0.9, 0.6, 0.2, 0], 0.7))
    assert found.hi == pytest.approx(crossing(LOADS, [1, 0.95, 0.6, 0.2], 0.7))
    assert found.as_dict()["text"] == f"{found.point:.0f} [{found.lo:.0f}, {found.hi:.0f}]"


def test_overload_outside_the_loads_is_said_and_never_a_number():
    low = overload(LOADS, intervals(*[(0.2, 0.1, 0.95)] * 4), 0.9).as_dict()
    assert (low["point"], low["lo"], low["hi"], low["text"]) == (None, None, None, "< 4 [< 4, > 256]")
    high = overload(LOADS, intervals(*[(1.0, None, None)] * 4), 0.9).as_dict()
    assert high["text"] == "> 256 [< 4, > 256]"
    with pytest.raises(ValueError, match="two rising loads"):
        overload((4,), intervals((1, 1, 1)))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low, width):
    found = ticks(low, low + width)
    assert 2 <= len(found) <= 12
    assert low - 1e-6 * width <= found[0] and found[-1] <= low + width * (1 + 1e-6)


def parsed(svg):
    return ElementTree.fromstring(svg)


def test_a_line_chart_puts_points_where_they_belong():
    series = [Series("a<b>&", [Point(1, 0), Point(3, 100, 90, 110)], 0), Series("b", [Point(2, 50)], 1, dashed=True)]
    root = parsed(line_chart("t<i>tle", series, Axis("x", 1, 3), Axis("y", 0, 100), rule=(90, "90%")))
    circles = [e for e in root if e.tag == "circle"]
    assert [float(c.get("cx")) for c in circles] == [52.0, 398.0]
    assert float(circles[0].get("cy")) > float(circles[1].get("cy"))  # up is more
    assert circles[1][0].text == "a<b>&: 100 [90, 110]"
    assert root.get("aria-label") == "t<i>tle"
    assert not re.search(r"style=|<script|onload", line_chart("x", series, Axis("x"), Axis("y")))


def test_a_heat_map_has_its_staircase_and_scale():
    values = [[0.0, 0.0], [1.0, 0.5]]
    root = parsed(heat_map("m", values, Axis("t", 0, 100), "block", top=1.0, steps=[0, 50]))
    assert len(root.findall("path[@class='stairs']")) == 1
    assert {p.get("fill-opacity") for p in root.findall("path[@class='heat']")} == {"1.000", "0.500"}


def test_every_series_can_be_told_without_colour():
    marks = [re.sub(r"s\d", "", swatch(i).split("</path>")[0].split("/>")[1]) for i in range(6)]
    assert len(set(marks)) == 6


def test_a_dot_charts_long_labels_lose_their_middle_and_stay_inside():
    names = [f"a.family.with.a.very.long.name-fixture.strict {k}K" for k in (1, 2)]
    rows = [(name, [Series("m", [Point(0, 1.0)], 0)]) for name in names] + [("short", [Series("m", [Point(0, 1.0)], 0)])]
    found = [x for x in parsed(dot_chart("d", rows, Axis("points"), width=540)).iter() if x.tag.endswith("text") and x.text]
    labels = [(x.text, float(x.get("x"))) for x in found if x.text.startswith("a.") or x.text == "short"]
    assert [text[-3:] for text, _ in labels] == [" 1K", " 2K", "ort"] and ["…" in text for text, _ in labels] == [True, True, False]
    assert all(place - 6.4 * len(text) >= 0 for text, place in labels)


def test_a_dot_chart_shows_zero_and_missing_intervals():
    rows = [("one", [Series("a", [Point(0, 5, 1, 9)], 0), Series("b", [Point(0, -5)], 1)])]
    root = parsed(dot_chart("d", rows, Axis("points")))
    assert len(root.findall("path[@class='zero']")) == 1
    assert [p.get("class") for p in root if "whisker" in (p.get("class") or "")] == ["whisker s0"]


def test_a_plot_never_holds_a_coordinate_that_is_no_number():
    with pytest.raises(ValueError, match="nan"):
        line_chart("x", [Series("a", [Point(0, math.nan), Point(1, 1)])], Axis("x"), Axis("y"))
