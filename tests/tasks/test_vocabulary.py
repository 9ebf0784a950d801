"""Draws never change, are prefixes of longer draws, and keep to their split."""

import numpy as np
import pytest

from proteus_tasks import TaskError, niah_text, rng, vocabulary
from proteus_tasks.haystack import SPLITS

DRAWS = [vocabulary.draw_words, vocabulary.draw_pairs, vocabulary.draw_numbers, vocabulary.draw_uuids]


def test_raw_stream_is_the_one_that_items_were_frozen_with():
    assert rng.raw(rng.seed_of("a", 1), 2).tolist() == [5341300978986129663, 15016180269018434168]
    assert rng.below(7, 10, 12).tolist() == [3, 5, 6, 4, 1, 2, 8, 5, 2, 3, 6, 5]
    assert rng.seed_of("ab", "c") != rng.seed_of("a", "bc")


def test_bounded_draws_are_uniform_even_for_awkward_bounds():
    bound = 3 * 2**60  # the modulus alone would favour the low quarter: 2^64 is 5 1/3 bounds
    drawn = rng.below(1, bound, 40_000)
    assert drawn.min() >= 0 and drawn.max() < bound
    assert abs((drawn < bound // 3).mean() - 1 / 3) < 0.01
    with pytest.raises(ValueError, match="bound"):
        rng.below(1, 0, 1)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("split", SPLITS)
def test_a_shorter_draw_is_a_prefix_and_all_are_distinct(draw, split):
    longest = draw(11, split, 100)
    assert len(set(longest)) == 100
    assert [draw(11, split, n) for n in (1, 7, 99)] == [longest[:1], longest[:7], longest[:99]]
    assert draw(12, split, 5) != longest[:5]


def test_key_words_are_plain_common_and_of_one_split():
    pools = [vocabulary.words(split) for split in SPLITS]
    everything = [word for pool in pools for word in pool]
    assert len(everything) == len(set(everything)) == 1200
    assert [len(pool) for pool in pools] == [720, 120, 360]
    assert all(word.isascii() and word.isalpha() and word.islower() and 4 <= len(word) <= 10 for word in everything)
    assert not set(everything) & niah_text.template_words()
    assert {"access", "code", "codes", "question", "answer", "remember"} <= niah_text.template_words()


def test_values_have_their_form_and_split():
    for split in SPLITS:
        numbers = vocabulary.draw_numbers(3, split, 3000)
        assert all(len(n) == 7 and n[0] != "0" for n in numbers)
        assert {vocabulary.value_split(n) for n in numbers} == {split}
        for place in range(7):  # every digit at every place, so that no split lacks a digit
            assert len({n[place] for n in numbers}) == (9 if place == 0 else 10)
        uuids = vocabulary.draw_uuids(3, split, 200)
        assert all([len(part) for part in u.split("-")] == [8, 4, 4, 4, 12] for u in uuids)
        assert {vocabulary.value_split(u) for u in uuids} == {split}


def test_pairs_are_two_different_words_and_cover_the_pool():
    size = vocabulary.pair_pool("tune")
    pairs = vocabulary.draw_pairs(1, "tune", size)
    assert len(set(pairs)) == size == 120 * 119
    assert all(a != b for a, b in (pair.split("-") for pair in pairs))
    with pytest.raises(TaskError, match="14280 keys, 14281 are needed"):
        vocabulary.draw_pairs(1, "tune", size + 1)


def test_fractions_are_in_range():
    drawn = rng.fractions(2, 10_000)
    assert drawn.min() >= 0 and drawn.max() < 1 and abs(np.mean(drawn) - 0.5) < 0.01
