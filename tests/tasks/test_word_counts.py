"""Counts from words are the counts of whole texts, and a tokenizer for which they are not is counted whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pytest

from proteus_tasks import TASKS, ByteTokenizer
from proteus_tasks.niah_text import needle_sentence
from proteus_tasks.tokenizers import count_batch, resolve
from proteus_tasks.word_counts import SAMPLE, counts_alike, seams_add_up

FACTS = [(f"harbor{i}", str(10**6 + 7919 * i)) for i in range(40)]
TEXTS = [" " + needle_sentence(key, value) for key, value in FACTS]
WORDS = [(f" {key}", f" {value}.") for key, value in FACTS]


class Claims(ByteTokenizer):
    """Says that it splits at spaces, and joins one piece of text across a space all the same."""

    def __init__(self, joined: str) -> None:
        self.joined, self.fingerprint = joined, f"claims {joined}"

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        return [len(text.encode()) - text.count(self.joined) for text in texts]

    def encode(self, text: str) -> list[int]:
        return [0] * self.count_batch([text])[0]


@pytest.mark.parametrize("name", ["bytes", "micro"])
def test_counts_from_words_are_those_of_whole_texts(name: str) -> None:
    tokenizer = resolve(name)
    first = counts_alike(TEXTS[:SAMPLE], WORDS[:SAMPLE], tokenizer)
    assert first is not None
    for found in (counts_alike(TEXTS, WORDS, tokenizer), counts_alike(TEXTS, WORDS, tokenizer, first)):
        assert found is not None and found.tolist() == count_batch(tokenizer, TEXTS).tolist()


def test_a_tokenizer_that_joins_words_is_found_out() -> None:
    inside = Claims("r3 ")  # in a few of the first sentences only
    assert counts_alike(TEXTS, WORDS, inside) is None
    assert seams_add_up([("the harbor3", "opens")], " ", inside) is False
    assert seams_add_up([("the harbor4", "opens")], " ", inside) is True


def test_nothing_is_said_of_what_the_promise_does_not_cover() -> None:
    tokenizer = ByteTokenizer()
    assert seams_add_up([("the harb\u00f6r", "opens")], " ", tokenizer) is None
    assert seams_add_up([("the harbor", "opens")], "\n", tokenizer) is None
    assert counts_alike([" \u00f6 a"], [(" a",)], tokenizer) is None


@pytest.mark.parametrize("task", ["capacity.mqar_64", "interference.a16_b16", "niah.multikey_1"])
def test_an_item_is_the_same_whether_its_seams_are_counted_by_words_or_whole(task: str) -> None:
    class Silent(ByteTokenizer):
        splits_at_spaces = False

    items = [asdict(TASKS[task].item(3, length=16384, tokenizer=t)) for t in (ByteTokenizer(), Silent())]
    assert items[0] == items[1]


def test_a_seam_that_joins_sends_the_item_to_whole_counting() -> None:
    task = TASKS["capacity.mqar_64"]
    plain = task.item(0, length=20000, tokenizer=ByteTokenizer())
    end = plain.needles[5].char_offset + len(needle_sentence(plain.needles[5].key, plain.needles[5].value))
    tokenizer = Claims(plain.context[end - 8 : end + 3])  # a value and what follows it, nowhere else
    item = task.item(0, length=20000, tokenizer=tokenizer)
    longest = max(tokenizer.count_batch([item.context + q.text + q.answer_prefix])[0] + q.max_new_tokens for q in item.questions)
    assert plain.meta["counting"] == "parts" and item.meta["counting"] == "whole"
    assert item.context == plain.context and item.reached == longest == plain.reached - 1
