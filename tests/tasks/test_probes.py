"""Probe items: facts at the places that were meant, the same facts in all conditions, and nothing for an adversary to gain."""

import json

import pytest

from proteus_bench.score import score
from proteus_tasks import PROBE_TASKS, ByteTokenizer, Item, LengthBudgetError, TaskError, freeze, suites, vocabulary
from proteus_tasks.errors import OutputError
from proteus_tasks.probes.generate_cli import generate
from proteus_tasks.tokenizers import resolve

BYTES = ByteTokenizer()
HALF_UNIT = 250
"""Bytes: a fact stands at the nearest end of a haystack sentence."""
SMALL = ("capacity.mqar_1", "capacity.mqar_2", "capacity.mqar_4", "interference.a4_b0", "interference.a0_b4")
GOLDEN = {
    "capacity.mqar_16": "cedb00f75df2760780026846b6e99e8195867309540031df7071792d717e73ca",
    "capacity.rewrite_16": "92a368e672ed035a984272cf87aae538f4e2aa15966079f8ffe5ef1ffe679a67",
    "interference.a4_b16": "0f1cd54bbcff6e9df67fe9287fa4993b689eee198c4b1136817db54ca7ee298f",
    "interference.a16_b16_gap50": "fb5c5a9925f7175de15bfd6a9ae510b751f168f7ccfae6f9de037cfe135ccdc5",
}


def make(task, index=0, length=4096, tokenizer=BYTES, **more):
    return PROBE_TASKS[task].item(index, length=length, tokenizer=tokenizer, **more)


def places(item, role=None):
    """Where the facts really stand, as fractions of the context's tokens, by key and value."""
    tokens = len(BYTES.encode(item.context))
    return {
        (needle.key, needle.value): needle.token_offset / tokens
        for needle, its in zip(item.needles, item.meta["roles"], strict=True)
        if role in (None, its)
    }


def asked(item):
    return [(item.needles[at].key, item.needles[at].value) for at in item.meta["asked"]]


@pytest.mark.parametrize("task", GOLDEN)
def test_golden(task):
    assert make(task, 3, data_seed=5).sha256 == GOLDEN[task]


@pytest.mark.parametrize("task", ["capacity.mqar_32", "capacity.rewrite_16", "interference.a16_b4"])
def test_items_do_not_depend_on_order_or_count(task):
    forwards = [item.sha256 for item in PROBE_TASKS[task].items(3, length=4096, tokenizer=BYTES)]
    assert forwards == [make(task, index).sha256 for index in (2, 1, 0)][::-1]
    assert len(set(forwards)) == 3
    assert Item.from_dict(json.loads(json.dumps(make(task).to_dict()))).sha256 == forwards[0]


@pytest.mark.parametrize("task", ["capacity.mqar_16", "interference.a16_b4_gap50"])
def test_length_and_tokenizer_change_only_the_haystack(task):
    items = [make(task), make(task, length=9000), make(task, length=2048, tokenizer=resolve("micro"))]
    for other in items[1:]:
        assert [(n.key, n.value) for n in other.needles] == [(n.key, n.value) for n in items[0].needles]
        assert other.meta["places"] == items[0].meta["places"] and asked(other) == asked(items[0])
        assert [(q.text, q.golds) for q in other.questions] == [(q.text, q.golds) for q in items[0].questions]


@pytest.mark.parametrize("task", SMALL)
@pytest.mark.parametrize("length", [128, 129, 160, 255, 1000])
def test_every_length_from_128_is_reached_within_a_sentence(task, length):
    tokenizer = resolve("micro")
    item = make(task, 1, length=length, tokenizer=tokenizer)
    longest = max(len(tokenizer.encode(q.text + q.answer_prefix)) + q.max_new_tokens for q in item.questions)
    assert item.reached == len(tokenizer.encode(item.context)) + longest <= length
    assert length - item.reached < 80  # the longest haystack sentence


@pytest.mark.parametrize("task", ["capacity.mqar_64", "capacity.rewrite_16", "interference.a16_b64"])
def test_a_length_that_is_too_short_names_the_smallest_that_is_not(task):
    with pytest.raises(LengthBudgetError) as caught:
        make(task, length=128)
    least = caught.value.minimum
    assert make(task, length=least).reached <= least
    with pytest.raises(LengthBudgetError):
        make(task, length=least - 1)


def test_facts_stand_where_they_were_meant_to_stand():
    """Fractions of the context, not of the haystack: with many facts the two differ by far more than this."""
    for task in ("capacity.mqar_64", "interference.a4_b64", "interference.a64_b4"):
        item = make(task, 2, length=16384)
        true = list(places(item).values())
        assert max(abs(a - b) for a, b in zip(true, item.meta["places"], strict=True)) < HALF_UNIT / 16384


@pytest.mark.parametrize("n", [16, 32, 64])
def test_pairs_are_spread_and_every_block_is_asked(n):
    item = make(f"capacity.mqar_{n}", 5, length=8192)
    asked_blocks = sorted(int(16 * item.meta["places"][at]) for at in item.meta["asked"])
    assert asked_blocks == list(range(16)) and len(item.questions) == 16
    per_quarter = [sum(q <= 4 * place < q + 1 for place in item.meta["places"]) for q in range(4)]
    assert sum(per_quarter) == n and all(abs(count - n / 4) <= 1 for count in per_quarter)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_few_pairs_reach_every_block_over_sixteen_items(n):
    blocks = [int(16 * place) for index in range(16) for place in make(f"capacity.mqar_{n}", index).meta["places"]]
    assert sorted(blocks) == sorted(list(range(16)) * n)


def test_the_asked_pairs_are_the_same_at_every_load():
    small, large = make("capacity.mqar_16", 7, length=8192), make("capacity.mqar_128", 7, length=8192)
    assert asked(small) == asked(large)
    here, there = places(small), places(large)
    assert all(abs(here[pair] - there[pair]) < 2 * HALF_UNIT / 8192 for pair in asked(small))


def test_a_rewritten_key_asks_for_its_last_value():
    item = make("capacity.rewrite_16", 4)
    by_key = {}
    for needle in item.needles:
        by_key.setdefault(needle.key, []).append(needle.value)
    assert sorted(map(len, by_key.values())) == [1] * 8 + [2] * 8
    for question, (key, value), stale in zip(item.questions, asked(item), item.meta["stale"], strict=True):
        assert question.golds == (value,) == (by_key[key][-1],)
        assert stale == (by_key[key][0] if len(by_key[key]) == 2 else None)
    ages = {role: sorted(int(16 * p) for p, r in zip(item.meta["places"], item.meta["roles"], strict=True) if r == role)
            for role in ("old", "rewritten", "once")}  # fmt: skip
    assert ages["old"] == list(range(8)) and ages["rewritten"] == ages["once"] == list(range(8, 16))


@pytest.mark.parametrize("gap", ["", "_gap50"])
def test_a_set_is_the_same_alone_and_beside_the_other(gap):
    joint = make(f"interference.a16_b16{gap}", 3, length=8192)
    for role, alone in (("A", f"interference.a16_b0{gap}"), ("B", f"interference.a0_b16{gap}")):
        single = make(alone, 3, length=8192)
        here, there = places(joint, role), places(single)
        assert set(here) == set(there)
        assert all(abs(here[pair] - there[pair]) < 2 * HALF_UNIT / 8192 for pair in here)
        assert asked(single) == [pair for pair in asked(joint) if pair in there]
    edge = 0.25 if gap else 0.5
    assert max(places(joint, "A").values()) < edge and min(places(joint, "B").values()) > 1 - edge - HALF_UNIT / 8192


def test_the_asked_facts_of_a_set_do_not_depend_on_the_sizes():
    facts = {task: set(asked(make(task, 1, length=8192))) for task in ("interference.a4_b64", "interference.a16_b16")}
    assert facts["interference.a4_b64"] <= facts["interference.a16_b16"]
    item = make("interference.a64_b64", 1, length=9000)
    assert len({n.key for n in item.needles}) == len({n.value for n in item.needles}) == 128


@pytest.mark.parametrize("task", ["capacity.mqar_16", "capacity.rewrite_16", "interference.a16_b16"])
def test_adversaries_score_at_chance(task):
    """Echo, all values in two orders, a constant, nothing, and a longer number that holds the value."""
    chance = 1 / 16
    totals = dict.fromkeys(("echo", "dump", "sorted", "constant", "empty", "longer"), 0.0)
    count = 0
    for index in range(6):
        item = make(task, index, split="tune")
        values = [needle.value for needle in item.needles]
        for slot, question in enumerate(item.questions):
            outputs = {
                "echo": item.prompt(slot), "dump": " " + ", ".join(values), "sorted": " ".join(sorted(values)),
                "constant": " 1234567", "empty": "", "longer": f" 4{question.golds[0]}2",
            }  # fmt: skip
            count += 1
            for name, output in outputs.items():
                totals[name] += score(question.golds, output)
    assert {name: total / count <= 1.5 * chance for name, total in totals.items()} == dict.fromkeys(totals, True)
    assert totals["constant"] == totals["empty"] == totals["longer"] == 0


def test_splits_share_no_key_and_no_value():
    seen = {split: make("capacity.mqar_16", 0, split=split) for split in ("train", "tune", "test")}
    for split, item in seen.items():
        assert {vocabulary.value_split(needle.value) for needle in item.needles} == {split}
        assert all(needle.key in vocabulary.words(split) for needle in item.needles)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": -1}, "must be at least 0"),
        ({"length": 0}, "must be at least 0 and 1"),
        ({"split": "tst"}, "did you mean 'test'"),
        ({"depth": 0.5}, "takes no depth"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(change, message):
    arguments = {"index": 0, "length": 4096, "tokenizer": BYTES, **change}
    with pytest.raises(TaskError, match=message) as caught:
        PROBE_TASKS["capacity.mqar_4"].item(arguments.pop("index"), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["capacity", "interference", "gating"])
def test_shipped_suites_are_frozen(name):
    suite = suites.load_suite(name)
    assert set(suite.tasks) <= set(PROBE_TASKS) and suite.length == 8192 and suite.split == "test"
    assert resolve("micro").fingerprint in suite.hashes
    assert freeze.changed_tasks(suite, resolve("micro"), suite.tasks[:1]) == []


def test_items_are_written_by_the_sub_command(tmp_path):
    manifest = generate("interference.a4_b4", 400, tmp_path / "out", 3, "micro", "test", 0)
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert manifest["items"] == 3 == len(rows) and rows[0]["task"] == "interference.a4_b4"
    with pytest.raises(TaskError, match=r"did you mean 'capacity.mqar_16'"):
        generate("capacity.mqar16", 400, tmp_path / "out", 3, "micro", "test", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        generate("interference.a4_b4", 400, tmp_path / "file", 3, "micro", "test", 0)
