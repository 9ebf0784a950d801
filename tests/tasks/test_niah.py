"""Items are pure, paired over lengths and tokenizers, unique inside, and stay what they were."""

import json
import multiprocessing
import re
from itertools import pairwise

import pytest

from proteus_tasks import NIAH_TASKS as TASKS
from proteus_tasks import ByteTokenizer, CallableTokenizer, Item, TaskError, niah_text
from proteus_tasks.vocabulary import value_split, words

BYTES = ByteTokenizer()
WORDS = CallableTokenizer(lambda text: [len(p) for p in re.findall(r" ?\w+|[^\w\s]|\s", text)], "test-words")
EVERY = sorted(TASKS)


def _hash(arguments: tuple[str, int]) -> str:
    task, index = arguments
    return TASKS[task].item(index, length=2048, tokenizer=ByteTokenizer(), data_seed=5).sha256


GOLDEN = {
    "niah.multikey_1": "4276778a26eb3b21616fefad3386f9084c907f8142bb1f69225a9c68ad5e1444",
    "niah.multikey_2": "972f84a0367b7447580c87ce4ad37aab09cb9f287a54eda4f7e5e1a010aa6efc",
    "niah.multikey_3": "1a6c4c91060964fc8b586eb1d8b53d5ac8d1579782c7a0a619e57dc94443e12c",
    "niah.multiquery": "3e2cb9d4834c9352b82f1c8310d5531e1ab6eb8f25b20212e79d939124a51557",
    "niah.multivalue": "419ff8d2bae264e85242009b21f74cbbd8c13c66480e4f67fb43d4c3cfe4318b",
    "niah.single_1": "f6a52092707da24a3ec13966f8eb51d88975465c210b9652e4e7fe035e9c0076",
    "niah.single_2": "7191f0fce39da8fde78ed096108406a48487953d14d91efe96ac02fd92903131",
    "niah.single_3": "866c3573e7fee27ab1f21a4afb5bdcad05faaf0fd0b2a1d2409ebb4cd5ecdb5c",
}


@pytest.mark.parametrize("task", EVERY)
def test_items_never_change(task):
    assert TASKS[task].item(3, length=2048, tokenizer=BYTES, data_seed=5).sha256 == GOLDEN[task]


def test_items_do_not_depend_on_order_count_or_workers():
    wanted = [(task, index) for task in EVERY for index in range(4)]
    forwards = [_hash(w) for w in wanted]
    assert [_hash(w) for w in reversed(wanted)] == forwards[::-1]
    counted = [i.sha256 for task in EVERY for i in TASKS[task].items(4, length=2048, tokenizer=BYTES, data_seed=5)]
    assert counted == forwards
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_hash, wanted, chunksize=5) == forwards
    assert len(set(forwards)) == len(forwards)


@pytest.mark.parametrize("task", EVERY)
def test_length_and_tokenizer_change_only_the_amount_of_haystack(task):
    for index in range(8):
        items = [
            TASKS[task].item(index, length=length, tokenizer=tokenizer)
            for length, tokenizer in ((1024, BYTES), (16384, BYTES), (700, WORDS), (8192, WORDS))
        ]
        assert len({json.dumps([(n.key, n.value, n.depth) for n in item.needles]) for item in items}) == 1
        assert len({tuple((q.text, q.answer_prefix, q.golds) for q in item.questions) for item in items}) == 1
        assert len({item.meta["haystack_start"] for item in items}) == 1
        bare = [_without_needles(item) for item in sorted(items, key=lambda item: len(item.context))]
        for shorter, longer in pairwise(bare):
            assert longer.startswith(shorter)


def _without_needles(item: Item) -> str:
    text = item.context
    for needle in item.needles:
        sentence = niah_text.needle_sentence(needle.key, needle.value)
        assert text.count(sentence) == 1
        text = text.replace(" " + sentence, "", 1) if " " + sentence in text else text.replace(sentence + " ", "", 1)
    return text


def test_seed_split_index_and_task_each_change_the_item():
    def golds(task="niah.single_2", index=0, **more):
        return TASKS[task].item(index, length=1024, tokenizer=BYTES, **more).questions[0].golds

    drawn = [golds(), golds(index=1), golds(data_seed=1), golds(split="tune"), golds(task="niah.single_1")]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("task", EVERY)
@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_keys_and_values_are_unique_and_of_the_split(task, split):
    for item in TASKS[task].items(5, length=6000, tokenizer=BYTES, split=split):
        planted = re.findall(r"The access code of (\S+) is (\S+)\.(?=\s|$)", item.context)
        values = [value for _, value in planted]
        assert len(set(values)) == len(values)
        assert len({key for key, _ in planted}) == (1 if task == "niah.multivalue" else len(planted))
        assert {(n.key, n.value) for n in item.needles} <= set(planted)
        assert (
            len(planted) > 20 if task in ("niah.multikey_2", "niah.multikey_3") else len(planted) == len(item.needles)
        )
        assert {value_split(value) for value in values} == {split}
        single = [part for key, _ in planted if key.count("-") < 4 for part in key.split("-")]
        assert set(single) <= set(words(split))


STRUCTURE = {  # needles, questions, golds per question
    "single_1": (1, 1, 1), "single_2": (1, 1, 1), "single_3": (1, 1, 1), "multikey_1": (4, 1, 1),
    "multikey_2": (1, 1, 1), "multikey_3": (1, 1, 1), "multivalue": (4, 1, 4), "multiquery": (4, 4, 1),
}  # fmt: skip


@pytest.mark.parametrize("variant", STRUCTURE)
def test_structure_and_golds(variant):
    item = TASKS[f"niah.{variant}"].item(2, length=2048, tokenizer=BYTES)
    needles, questions, golds = STRUCTURE[variant]
    assert (len(item.needles), len(item.questions)) == (needles, questions)
    for number, question in enumerate(item.questions):
        key = re.search(r"of (\S+)\?", question.text)[1]
        assert question.golds == tuple(n.value for n in item.needles if n.key == key)
        assert len(question.golds) == golds
        assert item.prompt(number).endswith(f"\nAnswer: The access code of {key} is")
        assert item.gold(number) == niah_text.gold_continuation(question.golds)
    assert item.context.startswith(niah_text.INSTRUCTION + "\n") and item.context[-1] in ".!?\"')"
    assert item.meta["variant"] == "strict" and item.truncation == "none" and item.gold_survives


@pytest.mark.parametrize("task", EVERY)
def test_needles_stand_where_the_item_says(task, tokenizer):
    item = TASKS[task].item(7, length=1500, tokenizer=tokenizer)
    for needle in item.needles:
        before, after = item.context[: needle.char_offset], item.context[needle.char_offset :]
        assert after.startswith(niah_text.needle_sentence(needle.key, needle.value))
        assert len(tokenizer.encode(before.removesuffix(" "))) == needle.token_offset
    assert [n.char_offset for n in item.needles] == sorted(n.char_offset for n in item.needles)


@pytest.mark.parametrize("task", EVERY)
def test_depth_grid_moves_only_the_asked_needle(task):
    length, head = 16384, len(niah_text.context_head())
    plain = TASKS[task].item(1, length=length, tokenizer=BYTES)
    for depth in (0.0, 0.25, 0.5, 1.0):
        item = TASKS[task].item(1, length=length, tokenizer=BYTES, depth=depth)
        asked = next(n for n in item.needles if n.depth == depth)
        assert asked.value in [gold for question in item.questions for gold in question.golds]
        assert asked.key == re.search(r"of (\S+)\?", item.questions[0].text)[1]
        at = (asked.char_offset - head) / (len(item.context) - head)
        assert abs(at - depth) < 0.04
        others = {(n.key, n.value, n.depth) for n in item.needles} - {(asked.key, asked.value, depth)}
        assert others < {(n.key, n.value, n.depth) for n in plain.needles}
    assert item.context.endswith(niah_text.needle_sentence(asked.key, asked.value))


def test_random_depths_fill_the_context_evenly():
    items = list(TASKS["niah.single_2"].items(400, length=16384, tokenizer=BYTES))
    at = sorted(i.needles[0].char_offset / len(i.context) for i in items)
    # Kolmogorov-Smirnov distance to the uniform law: 1.95 / sqrt(400) is the 0.1% point.
    assert max(max(abs(a - i / 400), abs(a - (i + 1) / 400)) for i, a in enumerate(at)) < 0.0975


def test_the_asked_needle_of_several_is_at_every_rank():
    items = TASKS["niah.multikey_1"].items(60, length=4096, tokenizer=BYTES)
    ranks = [[n.value for n in i.needles].index(i.questions[0].golds[0]) for i in items]
    assert min(ranks.count(rank) for rank in range(4)) >= 5


@pytest.mark.parametrize("task", EVERY)
def test_dict_round_trip(task):
    item = TASKS[task].item(0, length=1024, tokenizer=BYTES)
    again = Item.from_dict(json.loads(json.dumps(item.to_dict())))
    assert again == item and again.sha256 == item.sha256
    with pytest.raises(TaskError, match="unknown"):
        Item.from_dict({**item.to_dict(), "extra": 1})


@pytest.mark.parametrize(
    "arguments", [{"index": -1}, {"length": 0}, {"depth": 1.5}, {"depth": float("nan")}, {"split": "tset"}]
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(TaskError):
        TASKS["niah.single_2"].item(**{"index": 0, "length": 1024, "tokenizer": BYTES, **arguments})
