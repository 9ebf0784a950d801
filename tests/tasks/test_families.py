"""Items of every family are pure, paired, exact in length, frozen, and score one for the gold and nothing for guesses."""

import json
import multiprocessing
import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES, EVERY, EXACT, HAS_LM_EVAL, NAMES, true_length

from proteus_bench.score import score_answer
from proteus_tasks import TASKS, CallableTokenizer, DataFileError, Item, LengthBudgetError, TaskError
from proteus_tasks.longbench import LONGBENCH_TASKS
from proteus_tasks.tokenizers import resolve

GOLDEN = json.loads((Path(__file__).parent / "golden_families.json").read_text())
POOLED = ("ruler.vt", "ruler.cwe", "babilong.place", "retrieval.fda-fixture.jrt-twice.ladder", "ppl.prose")
MICRO = resolve("micro")


def _hash(arguments: tuple[str, int]) -> str:
    name, index = arguments
    return EVERY[name].item(index, length=2048, tokenizer=BYTES, data_seed=5).sha256


@pytest.mark.parametrize("name", NAMES)
def test_items_never_change(name):
    assert _hash((name, 3)) == GOLDEN[name]


def test_every_task_has_a_golden_item():
    assert {task.id for task in LONGBENCH_TASKS if task.fixture} <= set(GOLDEN) and set(NAMES) <= set(GOLDEN)
    assert set(NAMES) <= set(TASKS)


def test_items_do_not_depend_on_order_count_workers_or_global_random_state():
    wanted = [(name, index) for name in POOLED for index in range(3)]
    forwards = [_hash(w) for w in wanted]
    random.seed(1)
    np.random.seed(1)
    assert [_hash(w) for w in reversed(wanted)] == forwards[::-1]
    counted = [i.sha256 for n in POOLED for i in EVERY[n].items(3, length=2048, tokenizer=BYTES, data_seed=5)]
    assert counted == forwards and len(set(forwards)) == len(forwards)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_hash, wanted, chunksize=4) == forwards


@pytest.mark.parametrize("name", NAMES)
def test_length_and_tokenizer_change_only_the_amount_of_context(name):
    for index in range(2):
        items = [
            EVERY[name].item(index, length=length, tokenizer=tokenizer)
            for length, tokenizer in ((2048, BYTES), (4096, BYTES), (1024, MICRO))
        ]
        assert len({tuple((q.text, q.answer_prefix, q.golds) for q in item.questions) for item in items}) == 1
        assert len({json.dumps([(n.key, n.value, n.depth) for n in item.needles]) for item in items}) == 1
        assert len({item.sha256 for item in items}) == 3


@pytest.mark.parametrize("name", NAMES)
def test_seed_split_and_index_each_change_the_item(name):
    task = EVERY[name]
    drawn = [
        task.item(0, length=2048, tokenizer=BYTES, **more) for more in ({}, {"data_seed": 1}, {"split": "tune"})
    ] + [task.item(1, length=2048, tokenizer=BYTES)]
    assert len({item.context for item in drawn}) == 4
    again = Item.from_dict(json.loads(json.dumps(drawn[0].to_dict())))
    assert again == drawn[0] and again.sha256 == drawn[0].sha256


@pytest.mark.parametrize("name", EXACT)
def test_every_length_is_exact_and_full_or_refused(name):
    """Within one unit of haystack (two where the document stands twice); natural documents may be shorter."""
    unit = 60 * 12 * (2 if "twice" in name else 1)
    for length in (*range(1, 128, 9), 128, 200, 311, 480, 777, 1500, 3001):
        for tokenizer in (BYTES, MICRO):
            try:
                item = EVERY[name].item(length % 7, length=length, tokenizer=tokenizer)
            except LengthBudgetError as error:
                assert error.minimum > length
                continue
            assert true_length(item, tokenizer) == item.reached <= length
            if item.truncation != "context_middle" and "longbench" not in name:
                assert item.reached + unit > length


@pytest.mark.parametrize("name", [n for n in EXACT if "longbench" not in n])
def test_the_named_minimum_is_enough(name):
    task = EVERY[name]
    least = task.minimum_length(4, tokenizer=MICRO)
    if least <= 1:
        return
    assert all(item.reached <= least for item in task.items(4, length=least, tokenizer=MICRO))
    with pytest.raises(LengthBudgetError, match="smallest length that can is"):
        list(task.items(4, length=least // 3, tokenizer=MICRO))


AWKWARD = CallableTokenizer(
    lambda text: [len(p) for p in __import__("re").findall(r"\.\n?[A-Z]\w*| ?\w+\n|\w+ ?|[^\w\s]|\s", text)], "test-awkward"
)
"""Joins words with what follows them: hardly a seam adds up."""


@pytest.mark.parametrize("name", ["ruler.vt_2hop", "ruler.cwe", "ruler.fwe", "ruler.qa_hotpot-fixture", "babilong.given",
                                  "retrieval.swde-fixture.jrt.ladder", "retrieval.fda-fixture.jrt-twice.ladder",
                                  "ppl.prose"])  # fmt: skip
def test_a_tokenizer_whose_parts_do_not_add_up_is_counted_whole(name):
    item = EVERY[name].item(1, length=900, tokenizer=AWKWARD)
    assert item.meta["counting"] == "whole" and true_length(item, AWKWARD) == item.reached <= 900
    assert item.reached > 700


@pytest.mark.parametrize("name", NAMES)
def test_the_gold_scores_one_and_nothing_scores_nothing(name):
    for item in EVERY[name].items(3, length=2048, tokenizer=BYTES):
        for slot, question in enumerate(item.questions):
            if question.max_new_tokens == 0:
                assert score_answer(item, slot, "", logprob=0.0, gold_tokens=9) == (1.0, 1.0)
                assert score_answer(item, slot, "", logprob=-90.0, gold_tokens=9).strict == pytest.approx(np.exp(-10))
                continue
            assert score_answer(item, slot, item.gold(slot) + "\n") == (1.0, 1.0)
            assert score_answer(item, slot, "").strict == 0.0
            assert len(BYTES.encode(item.gold(slot))) <= question.max_new_tokens or "retrieval" in name


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"index": -1}, TaskError), ({"length": 0}, TaskError), ({"split": "tset"}, TaskError), ({"depth": 0.5}, TaskError)],
)
@pytest.mark.parametrize("name", POOLED)
def test_bad_arguments_are_refused(name, arguments, error):
    with pytest.raises(error):
        EVERY[name].item(**{"index": 0, "length": 2048, "tokenizer": BYTES, **arguments})


def test_an_item_past_the_end_of_a_data_set_is_refused():
    task = EVERY["retrieval.swde-fixture.jrt.ladder"]
    assert task.size() >= 200 and len({i.context for i in task.items(8, length=2048, tokenizer=BYTES)}) == 8
    with pytest.raises(TaskError, match="400 items, item 400"):
        task.item(400, length=2048, tokenizer=BYTES)


def test_prompts_of_lm_eval_are_read_where_it_is_installed_and_asked_for_where_not(monkeypatch):
    task = next(task for task in LONGBENCH_TASKS if task.fixture and task.form == "compat")
    if HAS_LM_EVAL:
        assert "{{" not in task.item(0, length=4096, tokenizer=MICRO).prompt()
    from proteus_tasks import longbench

    longbench.template.cache_clear()
    monkeypatch.setattr(longbench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataFileError, match="reads its prompt from the package 'lm-eval'"):
        task.item(0, length=4096, tokenizer=MICRO)
    longbench.template.cache_clear()


def test_tasks_that_share_their_draws_say_so():
    def draws(name):
        return TASKS[name].draws

    assert draws("niah.single_1") == "niah.single_1@1" != draws("niah.single_2")
    variants = {draws(name) for name in TASKS if name.startswith("retrieval.fda")}
    windows = {draws(name) for name in TASKS if name.startswith("babilong.place")}
    assert len(variants) == 1 and len(windows) == 1
    assert draws("interference.a4_b0") == draws("interference.a4_b4") != draws("capacity.mqar_4")
