"""The scorers pay for answers, not for dumping, echoing, repeating or being lucky with substrings."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.score import SCORER_ID, SCORER_VERSION, SCORERS, WINDOW_WORDS, contains, score, strict

UUID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OTHER = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.mark.parametrize(
    ("golds", "output", "expected"),
    [
        (["1234567"], " 1234567", 1),
        (["1234567"], "The special number is: 1234567.", 1),
        (["1234567"], "In 2019 it was 1234567", 1),
        (["1234567"], "7654321, no: 1234567", 0),
        (["1234567"], "12345678", 0),
        (["1234567"], "01234567", 0),
        (["1234567"], "x1234567", 0),
        (["1234567"], "1234567.5", 0),
        (["1234567"], "1234567-1", 0),
        (["1234567"], "٣1234567", 0),
        (["345"], "12,345,678", 0),
        (["345"], "345, and more", 1),
        (["1234567"], "", 0),
        ([UUID], f"it is {UUID.upper()}!", 1),
        ([UUID], f"{OTHER} {UUID}", 0),
        ([UUID], UUID[:-1], 0),
        ([UUID], UUID + "0", 0),
        (["deadbeef01"], "deadbeef02 deadbeef01", 0),
        (["deadbeef01"], "0xff deadbeef01", 1),
        (["blue-fox"], "The answer is blue-fox.", 1),
        (["blue-fox"], "red-fox blue-fox", 0),
        (["blue-fox"], "blue-foxes", 0),
        (["blue-fox"], "dark-blue-fox", 0),
        (["Paris"], " paris.", 1),
        (["Paris"], "London, not Paris", 0),
        (["New York"], "New York, of course", 1),
        (["New York"], "New Yorkshire", 0),
        (["New York"], "York New York", 0),
        (["12.5%"], "12.5%", 1),
    ],
)
def test_one_gold_must_be_the_first_candidate_and_whole(golds, output, expected):
    assert strict(golds, output) == expected


@pytest.mark.parametrize(
    ("golds", "output", "expected"),
    [
        (["11", "22", "33", "44"], "11, 22, 33, 44", 1),
        (["11", "22", "33", "44"], "44 33 22 11", 1),
        (["11", "22", "33", "44"], "11, 11, 11, 11", 0.25),
        (["11", "22", "33", "44"], "11, 22", 0.5),
        (["11", "22", "33", "44"], "55, 66, 77, 88, 11, 22, 33, 44", 0),
        (["11", "22", "33", "44"], "11, 66, 22, 88, 33, 44", 0.5),
        (["11", "11"], "11", 1),
        (["apple", "pear"], "1. apple 2. pear", 1),
        (["apple", "pear"], "apple and pear", 1),
        (["New York", "Rome"], "Rome and New York.", 1),
        (["New York", "Rome"], "Oslo, Paris, Rome, New York", 0),
    ],
)
def test_several_golds_share_as_many_candidates_in_any_order(golds, output, expected):
    assert strict(golds, output) == expected


def _needles(rng: random.Random, n: int) -> list[str]:
    return [str(value) for value in rng.sample(range(1_000_000, 10_000_000), n)]


def test_dumping_every_candidate_scores_at_chance():
    rng = random.Random(0)
    total = {"strict": 0.0, "compat": 0.0}
    for _ in range(2000):
        values = _needles(rng, 8)
        gold = rng.choice(values)
        for name in total:
            total[name] += score([gold], ", ".join(values), name) / 2000
    assert abs(total["strict"] - 1 / 8) < 0.03
    assert total["compat"] == pytest.approx(1)  # the older rule pays in full: that is why it is not the score


def test_dumping_scores_at_chance_with_several_golds():
    rng = random.Random(1)
    mean = 0.0
    for _ in range(2000):
        values = _needles(rng, 16)
        mean += strict(rng.sample(values, 4), "\n".join(values)) / 2000
    assert abs(mean - 4 / 16) < 0.03


def test_echoing_the_prompt_scores_at_chance():
    rng = random.Random(2)
    words = 2000
    hits = 0.0
    for _ in range(1000):
        (gold,) = _needles(rng, 1)
        text = ["word"] * words
        text[rng.randrange(words)] = f"The number is {gold}."
        hits += strict([gold], " ".join(text) + " What is the number?") / 1000
    assert hits < 3 * WINDOW_WORDS / words


@pytest.mark.parametrize("output", ["", " ", "1111111", "yes", "\n" * 50, "1234568" * 1000])
def test_a_constant_output_scores_nothing(output):
    rng = random.Random(3)
    assert sum(strict(_needles(rng, 1), output) for _ in range(500)) == 0


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize(
    ("golds", "output", "error"),
    [
        ("1234567", "1234567", TypeError),
        (b"1234567", "1234567", TypeError),
        (1234567, "1234567", TypeError),
        ({"1234567"}, "1234567", TypeError),
        ([1234567], "1234567", TypeError),
        (["1234567"], b"1234567", TypeError),
        (["1234567"], None, TypeError),
        ([], "1234567", ValueError),
        ([""], "1234567", ValueError),
        ([" 1"], "1", ValueError),
    ],
)
def test_wrong_types_raise(scorer, golds, output, error):
    with pytest.raises(error):
        score(golds, output, scorer)


def test_the_substring_rule_is_the_anchors():
    assert contains(["1234567"], "0012345678") == 1
    assert contains(["Blue", "red"], "BLUE") == 0.5
    assert (SCORER_ID, SCORER_VERSION) == ("strict", "1") and set(SCORERS) == {"strict", "compat"}


@given(golds=st.lists(st.text(min_size=1, max_size=12).map(str.strip).filter(bool), min_size=1), output=st.text())
def test_every_score_is_a_fraction(golds, output):
    for scorer in SCORERS:
        value = score(golds, output, scorer)
        assert isinstance(value, float) and 0 <= value <= 1


values = st.one_of(
    st.integers(1_000_000, 9_999_999).map(str),
    st.uuids().map(str),
    st.tuples(st.sampled_from(["dull", "keen"]), st.sampled_from(["fox", "pike"])).map("-".join),
)


@given(golds=st.lists(values, min_size=1, max_size=5), data=st.data())
def test_the_gold_continuation_scores_one_in_any_order(golds, data):
    order = data.draw(st.permutations(golds))
    assert strict(golds, " " + ", ".join(order)) == 1.0
