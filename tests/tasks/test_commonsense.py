"""commonsense8 and WikiText: items are lm-eval's requests to the byte, fixtures have the schema, data is read whole and checked."""

import json
from pathlib import Path

import pytest

from proteus_tasks import COMMONSENSE_TASKS, DataFileError, TaskError, fixtures_commonsense, sources, suites
from proteus_tasks.commonsense import SETS, CommonsenseTask
from proteus_tasks.tokenizers import ByteTokenizer, resolve

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
BYTES = ByteTokenizer()
FIXTURES = {task.name: task for task in COMMONSENSE_TASKS if task.fixture}


@pytest.fixture(autouse=True)
def _read_anew(monkeypatch):
    from proteus_tasks import commonsense

    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    for cached in (sources._load, commonsense._rows, commonsense._documents):
        cached.cache_clear()
    yield


def item(name: str, index: int = 0, split: str = "test"):
    return FIXTURES[name].item(index, length=512, tokenizer=BYTES, split=split)


def test_every_fixture_has_the_schema_and_its_own_rows_in_every_split():
    for definition in SETS.values():
        fields = sources.SOURCES[definition.task].fields
        held = [fixtures_commonsense.rows(definition.task, split) for split in ("train", "test")]
        assert all(len(rows) >= 200 and all(set(row) == set(fields) for row in rows) for rows in held)
        texts = [{json.dumps(row, sort_keys=True) for row in rows} for rows in held]
        assert not texts[0] & texts[1] and len(texts[1]) > 150
        for row in held[1]:
            sources._checked(sources.SOURCES[definition.task], row, "row")


def test_right_answers_are_everywhere_and_are_right():
    for name in ("piqa", "hellaswag", "winogrande", "arc_easy", "siqa", "boolq"):
        places = [item(name, index).meta["answer"] for index in range(60)]
        choices = len(item(name).meta["choices"])
        assert set(places) == set(range(choices)) and max(map(places.count, places)) < 60 * (1 / choices + 0.25)
    for index in range(30):
        row, made = fixtures_commonsense.rows("arc_easy", "test")[index], item("arc_easy", index)
        assert made.questions[0].golds == (row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])],)
        row, made = fixtures_commonsense.rows("piqa", "test")[index], item("piqa", index)
        assert made.questions[0].golds == (row["sol1"] if row["label"] == 0 else row["sol2"],)


def test_items_hold_the_requests_of_lm_eval():
    row, made = fixtures_commonsense.rows("boolq", "test")[3], item("boolq", 3)
    assert made.context == f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    assert made.meta["options"] == [["", " no"], ["", " yes"]] and made.meta["answer"] == row["label"]
    row, made = fixtures_commonsense.rows("winogrande", "test")[3], item("winogrande", 3)
    before, after = row["sentence"].split("_")
    assert made.context == "" and made.meta["answer"] == int(row["answer"]) - 1
    assert made.meta["options"] == [[before + row[f"option{k}"], " " + after.strip()] for k in (1, 2)]
    row, made = fixtures_commonsense.rows("lambada_openai", "test")[3], item("lambada", 3)
    assert (made.context, made.questions[0].golds) == (row["text"].rpartition(" ")[0], (row["text"].rpartition(" ")[2],))
    assert made.meta["counted"] == {"words": 1}
    assert made.questions[0].max_new_tokens == len(f" {made.questions[0].golds[0]}".encode())
    row, made = fixtures_commonsense.rows("wikitext", "test")[3], item("wikitext", 3)
    assert made.meta["counted"] == {"words": len(row["page"].split()) + 2, "bytes": len(row["page"].encode())}
    assert made.context == "" and made.meta["windowed"] and " ," not in made.questions[0].golds[0]


def test_items_are_pure_and_differ():
    for name in SETS:
        made = [item(name, index) for index in (5, 2, 5)]
        assert made[0].sha256 == made[2].sha256 != made[1].sha256
        other = FIXTURES[name].item(5, length=512, tokenizer=resolve("micro"))
        assert other.prompt() == made[0].prompt() and other.questions[0].golds == made[0].questions[0].golds
        assert made[0].meta["definition"].startswith(f"lm-eval {SETS[name].task}@")


@pytest.mark.parametrize("name", ["lambada", "hellaswag", "winogrande", "boolq", "wikitext"])
def test_frozen_fixtures_are_unchanged(name):
    suite = suites.load_suite("wikitext-fixture" if name == "wikitext" else "commonsense8-fixture")
    task = f"commonsense.{name}-fixture"
    assert suite.hashes["bytes"][task] == suites.task_hash(suite, task, BYTES)


def test_the_suites_hold_the_eight_and_wikitext():
    eight = [name for name in SETS if name != "wikitext"]
    for end in ("", "-fixture"):
        assert suites.load_suite(f"commonsense8{end}").tasks == tuple(f"commonsense.{name}{end}" for name in eight)
        assert suites.load_suite(f"wikitext{end}").tasks == (f"commonsense.wikitext{end}",)


def test_real_sets_are_read_from_a_folder_and_asked_whole(tmp_path: Path, monkeypatch):
    rows = [dict(row) for row in fixtures_commonsense.rows("hellaswag", "test")[:7]]
    rows[4]["endings"] = [ending * 9 for ending in rows[4]["endings"]]
    (tmp_path / "hellaswag.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = CommonsenseTask(name="hellaswag", data_dir=str(tmp_path))
    assert task.size() == 7 and task.longest() == 4 and len(task.data_sha256) == 64
    made = task.item(2, length=512, tokenizer=BYTES)
    assert made.meta["options"] == item("hellaswag", 2).meta["options"] and made.meta["data"] == "hellaswag.jsonl"
    assert made.id != item("hellaswag", 2).id
    with pytest.raises(TaskError, match="no item 7"):
        task.item(7, length=512, tokenizer=BYTES)
    with pytest.raises(TaskError, match="one split"):
        task.item(0, length=512, tokenizer=BYTES, split="train")
    monkeypatch.setenv(sources.DATA_VARIABLE, str(tmp_path))
    from proteus_bench.runner.items import plan_suite

    suite = tmp_path / "s.toml"
    suite.write_text(
        'id = "s"\nversion = "1"\ndescription = "d"\ndata_seed = 0\nsplit = "test"\nlength = 512\nn = 100000\n'
        'tasks = ["commonsense.hellaswag"]\n'
    )
    plan = plan_suite(str(suite))
    assert plan.counts == {("commonsense.hellaswag", 512): 7} and set(plan.data) == {"commonsense.hellaswag"}


def test_bad_data_is_one_line(tmp_path: Path):
    row = dict(fixtures_commonsense.rows("piqa", "test")[0])
    for number, (bad, text) in enumerate(
        (({**row, "label": "1"}, "'label' must be a int"), ({**row, "label": 7}, "no right answer|cannot make"))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "piqa.jsonl").write_text(json.dumps(bad))
        with pytest.raises(DataFileError, match=text):
            CommonsenseTask(name="piqa", data_dir=str(folder)).item(0, length=512, tokenizer=BYTES)
    with pytest.raises(DataFileError, match="no data for boolq"):
        CommonsenseTask(name="boolq", data_dir=str(tmp_path)).item(0, length=512, tokenizer=BYTES)
