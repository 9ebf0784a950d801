"""Data sets: schema, pins and the lock hold, whatever the place; every mistake is one clear line with exit code 3."""

import hashlib
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES

from proteus_tasks import DataFileError, TaskError, fixtures, fixtures_qa, sources
from proteus_tasks.longbench import LongBenchTask
from proteus_tasks.perplexity import PerplexityTask
from proteus_tasks.retrieval import RetrievalTask
from proteus_tasks.ruler_qa import QaTask

ROW = {"text": "a page about 42\nkey:", "key": "key", "value": "42"}


@pytest.fixture(autouse=True)
def _read_anew(monkeypatch):
    monkeypatch.delenv(sources.DATA_VARIABLE, raising=False)
    monkeypatch.delenv(sources.LOCK_VARIABLE, raising=False)
    sources._load.cache_clear()
    yield
    sources._load.cache_clear()


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder


def test_the_same_rows_in_every_form_are_the_same_table(tmp_path):
    rows = [ROW, {**ROW, "value": "page", "more": 1}]
    for kind in ("jsonl", "json"):
        (tmp_path / kind).mkdir()
    put(tmp_path / "jsonl", "swde.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    put(tmp_path / "json", "swde.json", json.dumps(rows))
    tables = [sources.load(sources.SOURCES["swde"], str(tmp_path / kind)) for kind in ("jsonl", "json")]
    assert tables[0].rows == tables[1].rows == (ROW, {**ROW, "value": "page"})
    assert len({table.sha256 for table in tables}) == 1 and tables[0].origin == "swde.jsonl"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]\n", "not an object"),
        ('{"text": "x", "key": "k"}', "'value' must be a str"),
        ('{"text": 3, "key": "k", "value": "v"}', "'text' must be a str"),
        ("", "no rows"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, words):
    put(tmp_path, "swde.jsonl", text)
    with pytest.raises(DataFileError, match=words) as caught:
        sources.load(sources.SOURCES["swde"], str(tmp_path))
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(DataFileError, match=r"no data for fda; put fda\.jsonl or .* --data-dir or in PROTEUS_BENCH_DATA"):
        sources.load(sources.SOURCES["fda"], str(tmp_path))
    with pytest.raises(DataFileError, match="no data for text"):
        sources.load(sources.SOURCES["text"])


def test_pinned_rows_and_files_must_be_those(tmp_path, monkeypatch):
    put(tmp_path, "swde.jsonl", json.dumps(ROW))
    good = sources.rows_sha256([ROW])
    for digest, fine in ((good, True), ("0" * 64, False)):
        monkeypatch.setitem(sources.SOURCES, "swde", replace(sources.SOURCES["swde"], sha256=digest))
        sources._load.cache_clear()
        if fine:
            assert sources.load(sources.SOURCES["swde"], str(tmp_path)).sha256 == good
            continue
        with pytest.raises(DataFileError, match="not the pinned ones"):
            sources.load(sources.SOURCES["swde"], str(tmp_path))
    put(tmp_path, "squad.json", "{}")
    with pytest.raises(DataFileError, match="not the pinned file of squad"):
        sources.load(sources.SOURCES["squad"], str(tmp_path))
    pins = sources.pins()
    assert pins["squad"]["file_sha256"] == sources.SOURCES["squad"].file_sha256 != ""
    assert all(len(row.get("revision", "0" * 40)) == 40 for row in pins.values())


def test_a_hub_data_set_is_locked_at_its_first_load(tmp_path, monkeypatch):
    """`datasets` reads a local repository as it reads one of a hub; the lock then holds its rows."""
    if importlib.util.find_spec("datasets") is None:
        with pytest.raises(DataFileError, match="needs the package 'datasets'"):
            sources.load(sources.SOURCES["swde"])
        return
    repository, lock = tmp_path / "repo", tmp_path / "lock"
    repository.mkdir()
    put(repository, "validation.jsonl", json.dumps(ROW))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv(sources.LOCK_VARIABLE, str(lock))
    monkeypatch.setitem(
        sources.SOURCES, "swde", replace(sources.SOURCES["swde"], hub=(str(repository), "default"), revision=None)
    )
    first = sources.load(sources.SOURCES["swde"])
    held = json.loads((lock / sources.LOCK_FILE).read_text())["swde"]
    assert held == {"revision": None, "sha256": first.sha256} and first.rows == (ROW,)
    sources._load.cache_clear()
    assert sources.load(sources.SOURCES["swde"]).sha256 == first.sha256
    (lock / sources.LOCK_FILE).write_text(json.dumps({"swde": {"revision": None, "sha256": "0" * 64}}))
    sources._load.cache_clear()
    with pytest.raises(DataFileError, match="other rows than when it was first loaded"):
        sources.load(sources.SOURCES["swde"])
    (lock / sources.LOCK_FILE).write_text("[]")
    sources._load.cache_clear()
    with pytest.raises(DataFileError, match="not a lock file"):
        sources.load(sources.SOURCES["swde"])


def test_an_unreachable_hub_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(
        sources.SOURCES, "fda", replace(sources.SOURCES["fda"], hub=(str(tmp_path / "nowhere"), "default"), revision="a")
    )
    with pytest.raises(DataFileError, match=r"fda: .* cannot be loaded|needs the package 'datasets'") as caught:
        sources.load(sources.SOURCES["fda"])
    assert "\n" not in str(caught.value)


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    if importlib.util.find_spec("datasets") is None:
        return
    import datasets
    from huggingface_hub import HfApi, constants

    asked, loads = [], []

    def ask(self, repository, **_):
        asked.append(repository)
        raise OSError("no route to host")

    def load(*_, **__):
        loads.append((datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        raise ConnectionError("nothing was loaded before")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "dataset_info", ask)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataFileError, match="nothing was loaded before"):
        sources.load(sources.SOURCES["longbench_qasper"])
    assert len(asked) == 1 and loads == [(True, True)]
    assert (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE) == (False, False)


def test_files_of_the_schema_give_the_items_of_the_fixture(tmp_path):
    """The real loaders on files with the fixtures' rows: the same contexts, under another id and with the data's hash."""
    put(tmp_path, "swde.jsonl", "\n".join(map(json.dumps, fixtures.rows("swde", "test"))))
    for policy in ("ladder", "window"):
        of_file = RetrievalTask(dataset="swde", variant="jrt", policy=policy, data_dir=str(tmp_path))
        shipped = RetrievalTask(dataset="swde", variant="jrt", policy=policy, fixture=True)
        left, right = (task.item(3, length=1024, tokenizer=BYTES) for task in (of_file, shipped))
        assert left.context == right.context and left.questions == right.questions and left.id != right.id
        assert left.meta["data_sha256"] == of_file.data_sha256 == right.meta["data_sha256"] and shipped.data_sha256 is None
        with pytest.raises(TaskError, match="one split"):
            of_file.item(0, length=1024, tokenizer=BYTES, split="train")
    rows = [fixtures_qa.longbench("qasper", "test", i) for i in range(5)]
    rows[0] = {"question": rows[0].pop("input"), **rows[0]}  # the hub's copy names it so
    put(tmp_path, "longbench_qasper.jsonl", "\n".join(map(json.dumps, rows)))
    task = LongBenchTask(name="qasper", form="strict", data_dir=str(tmp_path))
    found = {item.questions[0].text.split("\n")[1] for item in task.items(5, length=20000, tokenizer=BYTES)}
    assert len(found) == 5 and task.size() == 5
    with pytest.raises(TaskError, match="5 items, item 5"):
        task.item(5, length=20000, tokenizer=BYTES)


def test_squad_and_hotpot_files_are_read_and_their_schema_is_checked(tmp_path, monkeypatch):
    for name, dataset, document in (
        ("squad", "squad", fixtures_qa.squad("test")), ("hotpotqa_dev", "hotpot", fixtures_qa.hotpot("test")),
    ):  # fmt: skip
        text = json.dumps(document)
        put(tmp_path, f"{name}.json", text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        monkeypatch.setitem(sources.SOURCES, name, replace(sources.SOURCES[name], file_sha256=digest))
        task = QaTask(dataset=dataset, data_dir=str(tmp_path))
        assert task.size() == QaTask(dataset=dataset, fixture=True).size() and task.data_sha256 == digest
        assert task.item(0, length=2000, tokenizer=BYTES).meta["data"] == f"{name}.json"
        (tmp_path / "bad").mkdir(exist_ok=True)
        put(tmp_path / "bad", f"{name}.json", '{"data": [{"x": 1}]}')
        monkeypatch.setitem(sources.SOURCES, name, replace(sources.SOURCES[name], file_sha256=None))
        with pytest.raises(DataFileError, match="not of the schema"):
            QaTask(dataset=dataset, data_dir=str(tmp_path / "bad")).size()


def test_any_text_serves_for_perplexity(tmp_path):
    put(tmp_path, "text.txt", "It rained all day long and we stayed at home.\n\n " * 200)
    task = PerplexityTask(text="text", data_dir=str(tmp_path))
    item = task.item(2, length=2000, tokenizer=BYTES)
    assert item.reached <= 2000 and item.meta["text_sha256"] == task.data_sha256
    with pytest.raises(TaskError, match="fewer than 60000 tokens"):
        task.item(0, length=60000, tokenizer=BYTES)
    put(tmp_path, "text.txt", "too short")
    sources._load.cache_clear()
    with pytest.raises(DataFileError, match="at least 288 words"):
        PerplexityTask(text="text", data_dir=f"{tmp_path}/").item(0, length=2000, tokenizer=BYTES)


FROZEN = {"swde": "", "fda": "", "squad_completion": ""}


@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_fixtures_are_what_they_were_and_large_enough(split):
    pinned = json.loads((Path(__file__).parent / "golden_fixtures.json").read_text())
    for name in FROZEN:
        rows = fixtures.rows(name, split)
        assert sources.rows_sha256(rows) == pinned[f"{name}.{split}"]
        assert len(rows) >= (200 if split != "tune" else 150)
    for name in ("squad", "hotpot"):
        document = getattr(fixtures_qa, name)(split)
        assert sources.rows_sha256([{"document": document}]) == pinned[f"{name}.{split}"]
    for name in sources.LONGBENCH_SETS:
        rows = [fixtures_qa.longbench(name, split, i) for i in range(5)]
        assert sources.rows_sha256(rows) == pinned[f"longbench_{name}.{split}"]
        assert all(row["answers"] and row["context"] and row["input"] for row in rows)


def test_fixture_splits_share_no_text():
    train, test = (fixtures.rows("swde", split) for split in ("train", "test"))
    titles = [{row["text"].split("\n")[0] for row in rows} for rows in (train, test)]
    assert not titles[0] & titles[1]
