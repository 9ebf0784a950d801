"""One test for each defect of the anchors that generation and scoring could share (the table is in docs/tasks.md)."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES, EVERY, true_length

from proteus_bench.score import anchors
from proteus_tasks import LengthBudgetError, longbench
from proteus_tasks.longbench import LongBenchTask, Row, middle_cut
from proteus_tasks.retrieval import RetrievalTask, load_rows
from proteus_tasks.retrieval_text import Extract, answer_position, frame, oracle_window, parse, published_prompt
from proteus_tasks.ruler_qa import read_hotpot, read_squad
from proteus_tasks.tokenizers import resolve

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "anchors.json").read_text())["vectors"]
MICRO = resolve("micro")


def chi_square(depths, parts=10):
    """Statistic of the uniform law over equal parts; 27.9 is its 0.1% point at nine degrees of freedom."""
    counts = Counter(min(parts - 1, int(parts * depth)) for depth in depths)
    expected = len(depths) / parts
    return sum((counts[i] - expected) ** 2 / expected for i in range(parts))


@pytest.mark.parametrize("name", ["ruler.qa_squad-fixture", "ruler.qa_hotpot-fixture", "retrieval.swde-fixture.jrt.ladder"])
def test_gold_documents_stand_anywhere(name):
    """RULER and lm-eval put the gold document at one place (a re-seeded shuffle)."""
    task = EVERY[name]
    items = list(task.items(min(300, task.size()), length=4096, tokenizer=BYTES))
    depths = [needle.depth for item in items for needle in item.needles]
    assert chi_square(depths) < 27.9
    if name.startswith("retrieval"):
        at = [item.needles[0].char_offset / len(item.context) for item in items]
        assert min(at) == 0.0 and max(at) > 0.7 and len({round(a, 2) for a in at}) > 30


@pytest.mark.parametrize("name", ["ruler.cwe", "ruler.fwe"])
def test_frequent_words_stand_in_other_slots_in_every_item(name):
    """RULER re-seeds its shuffle, so that the top word has the same slots in every sample."""
    slots = []
    for item in EVERY[name].items(6, length=2048, tokenizer=MICRO):
        words = item.context.split("List:")[1].split()
        top = item.questions[0].golds[0]
        slots.append(tuple(i for i, word in enumerate(words) if word == top))
    assert len(set(slots)) == 6


@pytest.mark.parametrize("name", ["ruler.cwe", "ruler.fwe"])
def test_the_asked_words_are_the_most_frequent_ones_with_room(name):
    for length in (300, 1024, 4096):
        item = EVERY[name].item(2, length=length, tokenizer=MICRO)
        words = item.context.split("List:")[1].split()
        golds, counts = item.questions[0].golds, Counter(words)
        assert set(golds) == {word for word, _ in counts.most_common(len(golds))}
        assert min(counts[g] for g in golds) > max(n for word, n in counts.items() if word not in golds) == item.meta["next_count"]
        different = item.meta["different"]
        assert len(counts) == different == len(set(words[:different]))
        assert item.meta["chance"] == pytest.approx(len(golds) / different)


def test_no_length_hangs():
    """RULER loops for ever at 512 tokens; lm-eval at 128 and 256 does, or leaves samples out."""
    begun = time.process_time()
    for name, task in EVERY.items():
        for length in (1, 2, 17, 64, 127):
            try:
                item = task.item(0, length=length, tokenizer=BYTES)
            except LengthBudgetError as error:
                assert error.minimum > length
            else:
                assert item.reached <= length or name.endswith(".window")
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("length", [256, 512, 1024])
def test_a_short_item_still_has_context(length):
    """lm-eval's essay task at 256 and 512 tokens has no haystack at all."""
    for name in ("ruler.cwe", "babilong.place", "ruler.vt_2hop"):
        item = EVERY[name].item(0, length=length, tokenizer=MICRO)
        assert item.meta.get("haystack_units", item.meta.get("words", 0)) >= 1
        assert item.reached > 0.75 * length


def test_answers_of_qa_are_in_the_gold_paragraphs_only():
    for name in ("ruler.qa_squad-fixture", "ruler.qa_hotpot-fixture"):
        for item in EVERY[name].items(20, length=3000, tokenizer=BYTES):
            for answer in item.meta["accept"][0]:
                rest = item.context.lower()
                for needle in item.needles:
                    end = item.context.find("\n", needle.char_offset)
                    text = item.context[needle.char_offset : end if end > 0 else None]
                    rest = rest.replace(text.lower(), "")
                assert answer.lower() not in rest
                assert answer.lower() in item.context.lower()


def test_other_documents_mention_neither_key_nor_value():
    for name in ("retrieval.swde-fixture.jrt.ladder", "retrieval.squad-fixture.lm-eval.ladder"):
        for item in EVERY[name].items(20, length=6000, tokenizer=BYTES):
            rows = load_rows("swde" if "swde" in name else "squad_completion", True, "test", None)
            extract = rows.extracts[item.meta["row"]]
            rest = item.context.replace(extract.body.strip(), "", 1).lower()
            assert extract.gold.lower() not in rest
            if extract.key:
                assert extract.key.lower() not in rest


def test_aliases_are_alternatives_and_not_parts():
    """lm-eval's qa metric divides by the number of aliases."""
    aliases = ["a1", "a1", "a1 b"]
    assert anchors.ruler_part("a1", aliases) == 1.0 and anchors.lm_eval_ruler(["a1"], aliases) == pytest.approx(2 / 3)


def test_generation_is_inside_the_length_everywhere():
    """lm-eval's fwe (4135 of 4096) and its missing prefix; LongBench leaves generation out as well."""
    for name in ("ruler.fwe", "ruler.cwe", "longbench.qasper-fixture.strict", "retrieval.fda-fixture.based.ladder"):
        item = EVERY[name].item(0, length=4096, tokenizer=MICRO)
        assert true_length(item, MICRO) == item.reached <= 4096


@pytest.mark.parametrize("vector", [v for v in VECTORS if v["area"] == "truncation"], ids=lambda v: v["id"])
def test_truncation_as_the_anchors_do_it(vector, tmp_path):
    given, expected = vector["input"], vector["expected"]
    if vector["id"].startswith("jrt.truncate.short"):
        rows = [{"text": f"a {v} b\nk: ", "key": "k", "value": v} for v in (given["value"], "42")]
        (tmp_path / "swde.jsonl").write_text("\n".join(map(json.dumps, rows)))
        found = load_rows("swde", False, "test", str(tmp_path))
        kept = [extract.gold for extract in found.extracts]
        assert kept == ["42"] and kept.count(given["value"]) == expected["n_instances"] and found.dropped == 1
    elif vector["id"].startswith("jrt"):
        at = {"60_10_5": 5, "61_10_100": 100, "512_50_100": 100}[vector["id"].removeprefix("jrt.truncate.")]
        words = [f"w{i}" for i in range(200)]
        words[at] = "GOLD"
        extract = Extract("squad_completion", "", "GOLD", "", " ".join(words), "", "")
        before = extract.body[: answer_position(extract, extract.body)].split()
        first, end = oracle_window(words, len(before), given["context_length"], given["answer_length"])
        kept = words[first:end]
        assert (len(kept), kept[0], kept[-1]) == (expected["n_tokens"], expected["first"], expected["last"])
        assert kept.index("GOLD") == expected["gold_offset"]
    elif vector["id"].startswith("longbench2"):
        assert anchors.longbench2_cut(list(range(given["n_tokens"])), given["max_len"]) == expected["ids"]
    else:
        kept = middle_cut(list(range(given["n_tokens"])), given["max_length"])
        assert (len(kept), kept[:3], kept[-3:]) == (expected["kept"], expected["head"], expected["tail"])
        dropped = [i for i in range(given["n_tokens"]) if i not in kept]
        assert (dropped[0] if dropped else None) == expected["first_dropped"]


def test_a_window_at_the_documents_end_is_not_filled_up_and_says_what_it_keeps():
    words = [f"w{i}" for i in range(200)]
    assert oracle_window(words, 195, 60, 10) == (170, 200)
    item = EVERY["retrieval.swde-fixture.jrt.window"].item(0, length=128, tokenizer=MICRO)
    first, end = item.meta["window"]
    assert item.truncation == "oracle_window" and end - first <= 78 and item.meta["document_tokens"] > 78
    assert item.reached == true_length(item, MICRO)  # the prompt's tokens are counted, though they pass the length
    assert all(
        i.gold_survives == (i.questions[0].golds[0].lower() in i.context.lower())
        for i in EVERY["retrieval.fda-fixture.jrt.window"].items(30, length=128, tokenizer=MICRO)
    )


def test_a_value_outside_of_the_window_is_flagged():
    task = RetrievalTask(dataset="fda", variant="jrt", policy="window", fixture=True)
    far = [i for i in task.items(200, length=90, tokenizer=MICRO) if not i.gold_survives]
    assert far and all(i.questions[0].golds[0].lower() not in i.context.lower() for i in far)


def test_white_space_is_a_named_variant():
    row = {"text": " page\n\nSummary of information above...\nfounded: ", "key": "founded", "value": " 1488"}
    extract = parse("swde", row)
    assert published_prompt(extract, "based") == row["text"]
    assert published_prompt(extract, "lm-eval") == row["text"].strip()
    assert published_prompt(extract, "jrt") == "page. Founded:"
    assert published_prompt(extract, "jrt-twice") == "Information about Founded. page.\npage. Founded:"
    by = {v: EVERY[f"retrieval.swde-fixture.{v}.ladder"].item(0, length=2048, tokenizer=BYTES) for v in ("based", "lm-eval")}
    assert by["based"].meta["accept"][0][0].startswith(" ") and not by["lm-eval"].meta["accept"][0][0].startswith(" ")
    assert len({i.prompt() for i in by.values()}) == 2 and {i.meta["variant"] for i in by.values()} == set(by)
    assert frame(extract, "based").question.endswith("founded: ") and frame(extract, "lm-eval").question.endswith("founded:")


def test_a_leading_line_end_is_recorded_as_no_answer():
    assert anchors.cut_at_stops("\n2001", ["\n"]) == ""
    assert EVERY["retrieval.swde-fixture.jrt.ladder"].item(0, length=2048, tokenizer=BYTES).meta["stop"] == "line"


def test_left_out_rows_are_counted():
    """JRT drops one-character answers in silence."""
    document = {"data": [{"paragraphs": [{"context": "A b c d.", "qas": [
        {"question": "q", "answers": [{"text": "b", "answer_start": 2}], "is_impossible": False},
        {"question": "r", "answers": [], "is_impossible": True}]}]}]}  # fmt: skip
    asked, paragraphs, left_out = read_squad(document)
    assert (len(asked), paragraphs, left_out) == (1, ["A b c d."], 1)
    rows = [{"question": "q", "answer": "yes", "supporting_facts": [["A", 0]], "context": [["A", ["x"]]]}]
    assert read_hotpot(rows)[2] == 1
    assert load_rows("fda", True, "test", None).dropped == 0
    assert EVERY["retrieval.fda-fixture.jrt.ladder"].item(0, length=2048, tokenizer=BYTES).meta["rows_left_out"] == 0


def test_the_question_is_never_cut_and_survival_is_recorded():
    """LongBench cuts the middle of the whole prompt in silence, lm-eval its left."""
    task = EVERY["longbench.narrativeqa-fixture.strict"]
    survived = 0
    for item in task.items(12, length=700, tokenizer=MICRO):
        assert item.truncation == "context_middle" and item.prompt().endswith("?\nAnswer:")
        assert item.context.startswith("Read the text") and item.context.count(" ... ") >= 1
        kept = any(answer.lower() in item.context.lower() for answer in item.meta["accept"][0])
        assert item.gold_survives == kept and item.meta["gold_in_context"]
        survived += kept
    assert 0 < survived < 12
    whole = task.item(0, length=16384, tokenizer=MICRO)
    assert whole.truncation == "none" and whole.gold_survives


def test_compat_cuts_the_middle_of_the_whole_prompt_at_the_original_limits(monkeypatch):
    monkeypatch.setattr(longbench, "template", lambda name: "Say.\n{{context}}\n\nQuestion: {{question}}\n\nAnswer:")
    task = LongBenchTask(name="narrativeqa", form="compat", fixture=True)
    text = " ".join(f"word{i}" for i in range(4000))
    row = Row("Who?", text, ("word5",), 0)
    draft = task.draft(0, 4096, 0, "test", None)
    item = task._compat(draft, row, 4096, BYTES, {"scorers": {}})
    assert item.meta["limit"] == 3500 and len(item.prompt()) == 3500 and item.truncation == "prompt_middle"
    assert item.questions[0].max_new_tokens == 128 and item.prompt().endswith("Question: Who?\n\nAnswer:")
    assert item.gold_survives and item.reached == 3628
