"""The reached length is the true token count, never over, and within one haystack unit."""

import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_tasks import NIAH_TASKS as TASKS
from proteus_tasks import (
    ByteTokenizer,
    CallableTokenizer,
    FileTokenizer,
    LengthBudgetError,
    TaskError,
    fit,
    haystack,
    supply,
)
from proteus_tasks.tokenizers import count, resolve, special_tokens

BYTES = ByteTokenizer()
EVERY = sorted(TASKS)


def true_length(item, tokenizer) -> int:
    asked = [len(tokenizer.encode(item.prompt(i))) + q.max_new_tokens for i, q in enumerate(item.questions)]
    return max(asked) + special_tokens(tokenizer)


def next_unit(item, tokenizer) -> int:
    """Tokens of the haystack unit that no longer fitted (an upper bound where units are needles)."""
    source = {"noise": haystack.noise, "sotu-test": lambda: haystack.sotu("test")}.get(item.meta["haystack"])
    if source is None:
        return 40 + 8 * len(tokenizer.encode(" " + item.needles[0].key + " " + item.needles[0].value))
    units = source().units
    return count(tokenizer, " " + units[(item.meta["haystack_start"] + item.meta["haystack_units"]) % len(units)])


@given(task=st.sampled_from(EVERY), length=st.integers(128, 4096), index=st.integers(0, 10_000))
def test_every_length_is_exact_and_full_or_refused(task, length, index):
    try:
        item = TASKS[task].item(index, length=length, tokenizer=BYTES)
    except LengthBudgetError as error:
        assert error.minimum > length
        return
    assert true_length(item, BYTES) == item.reached <= length
    # The head's own tokens may differ by a few when another piece comes first.
    assert item.reached + next_unit(item, BYTES) > length


@pytest.mark.parametrize("length", [512, 4096, 12_000])
@pytest.mark.parametrize("task", EVERY)
def test_whole_tokenisation_gives_the_reached_length(task, length, tokenizer):
    for index in range(2):
        item = TASKS[task].item(index, length=length, tokenizer=tokenizer)
        assert true_length(item, tokenizer) == item.reached <= length < item.reached + next_unit(item, tokenizer)
        assert item.meta["counting"] == "parts"


@pytest.mark.parametrize("task", EVERY)
def test_pieces_encode_apart_as_they_do_together(task, tokenizer):
    item = TASKS[task].item(1, length=1024, tokenizer=tokenizer)
    for number, question in enumerate(item.questions):
        apart = [item.context, question.text + question.answer_prefix, item.gold(number)]
        ids = [i for text in apart for i in tokenizer.encode(text)]
        assert ids == tokenizer.encode("".join(apart))


@pytest.mark.parametrize("task", ["niah.single_1", "niah.single_2", "niah.multiquery", "niah.multikey_2"])
def test_a_tokenizer_whose_parts_do_not_add_up_is_counted_whole(task, awkward_tokenizer):
    for length in (300, 3000):
        item = TASKS[task].item(4, length=length, tokenizer=awkward_tokenizer)
        assert (
            true_length(item, awkward_tokenizer)
            == item.reached
            <= length
            < item.reached + next_unit(item, awkward_tokenizer)
        )
        assert item.meta["counting"] == "whole"
        for needle in item.needles:
            before = item.context[: needle.char_offset].removesuffix(" ")
            assert len(awkward_tokenizer.encode(before)) == needle.token_offset


def test_without_the_seam_check_that_tokenizer_would_be_miscounted(awkward_tokenizer, monkeypatch):
    monkeypatch.setattr(fit._Fitter, "parts_add_up", lambda self, units: True)
    item = TASKS["niah.multikey_1"].item(4, length=3000, tokenizer=awkward_tokenizer)
    assert true_length(item, awkward_tokenizer) != item.reached


def test_an_opening_that_costs_more_for_a_needle_leaves_no_room_unused():
    """With one unit the needle comes first and costs 30 tokens more; with many it does not, and the room must be used."""
    dear = CallableTokenizer(lambda text: [0] * (len(text) + 30 * text.count("\nThe access")), "test-dear-opening")
    for depth, opens_with_needle in ((0.3, False), (0.0, True)):
        for index in range(40):
            item = TASKS["niah.single_2"].item(index, length=3000, tokenizer=dear, depth=depth)
            assert true_length(item, dear) == item.reached <= 3000 < item.reached + next_unit(item, dear)
            assert ("\nThe access" in item.context) == opens_with_needle


@pytest.mark.parametrize("task", EVERY)
def test_the_smallest_length_is_named_and_true(task, tokenizer):
    with pytest.raises(LengthBudgetError, match="smallest length that can is") as caught:
        TASKS[task].item(0, length=20, tokenizer=tokenizer)
    error = caught.value
    assert isinstance(error, ValueError) and error.exit_code == 2
    assert pickle.loads(pickle.dumps(error)).minimum == error.minimum
    assert TASKS[task].item(0, length=error.minimum, tokenizer=tokenizer).meta["haystack_units"] == 1
    with pytest.raises(LengthBudgetError):
        TASKS[task].item(0, length=error.minimum - 1, tokenizer=tokenizer)


def test_the_micro_tokenizer_holds_single_tasks_in_128_tokens():
    from proteus_tasks.tokenizers import resolve

    for task in ("niah.single_1", "niah.single_2"):
        assert all(
            i.meta["haystack_units"] >= 1 for i in TASKS[task].items(100, length=128, tokenizer=resolve("micro"))
        )


def test_special_tokens_are_part_of_the_length():
    class Marked(ByteTokenizer):
        fingerprint = "bytes+2"
        special_tokens = 2

    plain = TASKS["niah.single_1"].item(0, length=1000, tokenizer=BYTES)
    marked = TASKS["niah.single_1"].item(0, length=plain.reached + 2, tokenizer=Marked())
    assert marked.context == plain.context and marked.reached == plain.reached + 2


def test_the_haystack_goes_round_and_a_million_tokens_are_quick():
    started = time.perf_counter()
    for task in ("niah.single_1", "niah.single_2", "niah.multikey_2"):
        item = TASKS[task].item(0, length=1_000_000, tokenizer=BYTES)
        assert len(item.context.encode()) > 998_000
        assert true_length(item, BYTES) == item.reached <= 1_000_000
    assert time.perf_counter() - started < 10
    round_length = sum(len(unit) + 1 for unit in haystack.sentences("test"))
    item = TASKS["niah.single_2"].item(0, length=2 * round_length, tokenizer=BYTES)
    assert item.meta["haystack_units"] > len(haystack.sentences("test"))
    assert true_length(item, BYTES) == item.reached


def test_a_needle_haystack_that_runs_out_of_keys_says_so(monkeypatch):
    monkeypatch.setattr("proteus_tasks.vocabulary.pair_pool", lambda split: 50)
    with pytest.raises(TaskError, match="too few"):
        TASKS["niah.multikey_2"].item(0, length=100_000, tokenizer=BYTES)


def _crossing(tokens: list[str]) -> FileTokenizer:
    """A byte-level tokenizer of single characters that also knows `tokens`, each merged from its first character on."""
    from tokenizers import Tokenizer, models

    letters = [chr(c) for c in range(33, 127)] + ["\u0120"]
    merges = [(token[:i], token[i]) for token in tokens for i in range(1, len(token))]
    vocabulary = dict.fromkeys(letters + [a + b for a, b in merges])
    return FileTokenizer(Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocabulary)}, merges=merges)))


def test_a_vocabulary_shows_whether_tokens_cross_spaces():
    assert resolve("micro").splits_at_spaces and ByteTokenizer.splits_at_spaces
    assert _crossing(["\u0120the", "\u0120\u0120"]).splits_at_spaces
    assert not _crossing([".\u0120T"]).splits_at_spaces


@pytest.mark.parametrize("variant", ["multikey_2", "multikey_3"])
@pytest.mark.parametrize("tokenizer", ["bytes", "micro"])
def test_sentences_counted_by_their_words_make_the_same_item_as_counted_whole(variant, tokenizer):
    held = resolve(tokenizer)
    plain = CallableTokenizer(held.encode, held.fingerprint)  # says nothing about spaces
    for index in range(3):
        fast, slow = (TASKS[f"niah.{variant}"].item(index, length=2048, tokenizer=t) for t in (held, plain))
        assert fast == slow


def test_slots_are_the_nearest_unit_boundaries():
    import numpy as np

    run = supply.Supply(["a"] * 4, supply.Counts(np.array([10, 1, 5, 4]), True), 1)  # 1 5 4 10 | 1 5 4 10 ...
    assert [run.total(n) for n in (0, 1, 2, 4, 5, 9)] == [0, 1, 6, 20, 21, 41]
    assert [run.fit(b) for b in (-1, 0, 1, 5, 6, 19, 20, 41)] == [0, 0, 1, 1, 2, 3, 4, 9]
    assert run.slots([0.0, 0.02, 0.04, 0.2, 0.3, 0.74, 0.76, 1.0], 4) == [0, 0, 1, 2, 2, 3, 4, 4]


def test_counts_on_disk_are_used_and_damage_is_repaired(tmp_path, monkeypatch):
    monkeypatch.setenv(supply.CACHE_VARIABLE, str(tmp_path))
    calls = []

    class Counting(ByteTokenizer):
        fingerprint = "bytes-counting"

        def count_batch(self, texts):
            calls.append(len(texts))
            return super().count_batch(texts)

    def fresh() -> list[int]:
        supply._MEMORY.clear()
        calls.clear()
        return supply.corpus_counts(haystack.noise(), Counting()).per_unit.tolist()

    first = fresh()
    assert calls and fresh() == first and not calls
    (stored,) = tmp_path.glob("*.npy")
    stored.write_bytes(stored.read_bytes()[:-9])
    assert fresh() == first and calls
