"""Guessing does not pay: what dumps, echoes, repeats or extends answers scores at the chance that the item records."""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES, EVERY, NAMES

from proteus_bench.score import score_answer

ANSWERED = [name for name in NAMES if not name.startswith(("ppl.", "retrieval.")) or ".jrt.ladder" in name]
N = 40
_MADE: dict = {}


def items(name):
    if name not in _MADE:
        length = 8000 if name.startswith("retrieval") else 2048  # there a document is a small part of its context
        _MADE[name] = list(EVERY[name].items(N, length=length, tokenizer=BYTES))
    return _MADE[name]


def mean(name, output_of, column="strict"):
    scores = [getattr(score_answer(item, 0, output_of(item)), column) for item in items(name)]
    return sum(scores) / len(scores)


def most_common_gold(name):
    (gold, _), *_ = Counter(item.gold()[1:] for item in items(name)).most_common(1)
    return gold


def slack(chance):
    """Three standard errors of a mean of N scores of that chance."""
    return 3 * (chance * (1 - chance) / N) ** 0.5 + 0.05


@pytest.mark.parametrize("name", ANSWERED)
def test_an_echo_of_the_prompt_or_of_the_context_scores_at_chance(name):
    chance = max(item.meta.get("chance", 0.0) for item in items(name))
    assert mean(name, lambda item: item.prompt()) <= chance + slack(chance)
    assert mean(name, lambda item: " " + item.context.split("\n", 1)[-1]) <= chance + slack(chance)


@pytest.mark.parametrize("name", ANSWERED)
def test_every_candidate_at_once_in_any_order_scores_at_chance(name):
    def dump(item):
        words = sorted(set(re.findall(r"\w[\w-]*", item.context)))
        random.Random(item.id).shuffle(words)
        return " " + ", ".join(words)

    chance = max(item.meta.get("chance", 0.0) for item in items(name))
    assert mean(name, dump) <= chance + slack(chance)


def names_of(item):
    """Every answer that an item of vt, cwe, fwe or babilong could have."""
    if "labels" in item.meta:
        return list(item.meta["labels"])
    if item.needles:
        return [needle.key for needle in item.needles]
    return sorted(set(item.context.split("List:")[1].split()))


@pytest.mark.parametrize("name", [n for n in ANSWERED if n.startswith(("ruler.vt", "ruler.cwe", "ruler.fwe", "babilong"))])
def test_naming_all_possible_answers_scores_the_recorded_chance_or_less(name):
    def dump(item):
        found = names_of(item)
        random.Random(item.id).shuffle(found)
        return " " + ", ".join(found)

    chance = sum(item.meta["chance"] for item in items(name)) / N
    assert mean(name, dump) <= chance + slack(chance)
    if name.startswith("ruler"):
        first = mean(name, lambda item: " " + ", ".join(dict.fromkeys(names_in_order(item))))
        assert first <= chance + slack(chance), "the order of first appearance must say nothing"


def names_in_order(item):
    if item.needles:
        return [needle.key for needle in item.needles]
    return item.context.split("List:")[1].split()


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("output", ["", " ", "\n\n", " the", " yes", " unanswerable", " 1111111", " 0" * 50])
def test_a_constant_scores_no_more_than_the_share_of_the_most_common_gold(name, output):
    share = max(Counter(item.gold() for item in items(name)).values()) / N
    assert mean(name, lambda item: output) <= share
    assert share <= 0.35


@pytest.mark.parametrize("name", ANSWERED)
def test_a_longer_string_that_holds_the_gold_is_no_answer(name):
    longer = [score_answer(i, 0, "".join(f" 9{gold}8" for gold in i.questions[0].golds)).strict for i in items(name)]
    assert max(longer) == 0.0


def test_the_most_common_gold_alone_stays_rare():
    for name in ANSWERED:
        share = mean(name, lambda item, name=name: " " + most_common_gold(name))
        assert share <= 0.35, name
