"""Suites of the families: they load, their frozen items are unchanged, real-data ones say what they read."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES, EVERY, NEEDS_DATA

from proteus_tasks import FAMILIES, SuiteError, freeze, suites
from proteus_tasks.tokenizers import resolve

OURS = {task.id for tasks in FAMILIES.values() for task in tasks}
SHIPPED = [name for name in suites.list_suites() if set(suites.load_suite(name).tasks) <= OURS]
FROZEN = [name for name in SHIPPED if not set(suites.load_suite(name).tasks) & NEEDS_DATA]
MULTI = (
    'id = "mine"\nversion = "1"\ndescription = "d"\ndata_seed = 0\nsplit = "test"\nlengths = [300, 600]\nn = 2\n'
    'tasks = ["babilong.given", "ruler.fwe"]\n'
)


def test_every_family_has_a_frozen_suite_and_every_task_is_in_a_suite_of_some_kind():
    families = {task.split(".")[0] for name in FROZEN for task in suites.load_suite(name).tasks}
    assert families == {"ruler", "babilong", "retrieval", "longbench", "ppl"}
    listed = {task for name in SHIPPED for task in suites.load_suite(name).tasks}
    assert {task.rsplit(".", 1)[0] if task.startswith("retrieval") else task for task in OURS} <= {
        task.rsplit(".", 1)[0] if task.startswith("retrieval") else task for task in listed
    }


@pytest.mark.parametrize("name", FROZEN)
def test_frozen_for_the_micro_tokenizer_and_each_cell_has_its_hash(name):
    suite = suites.load_suite(name)
    assert resolve("micro").fingerprint in suite.hashes and len(suite.hash_keys()) == len(suite.cells())
    assert freeze.render(suite, {k: dict(v) for k, v in suite.hashes.items()}) == suites.suite_files(None)[name].read_text()


@pytest.mark.parametrize("name", ["retrieval-window-fixture", "babilong"])
def test_frozen_items_are_unchanged(name):
    suite = suites.load_suite(name)
    task, length = suite.tasks[0], suite.lengths[0]
    assert suite.hashes["bytes"][suite.hash_key(task, length)] == suites.task_hash(suite, task, BYTES, length)


def test_a_suite_over_several_lengths_and_its_hashes(tmp_path):
    suite = suites.parse_suite(MULTI.encode(), "mine.toml")
    assert suite.length == 600 and suite.lengths == (300, 600)
    assert suite.cells()[0] == ("babilong.given", 300, 2) and len(suite.cells()) == 4
    hashes = freeze.hashes_of(suite, resolve("micro"))
    assert set(hashes) == {"babilong.given@300", "babilong.given@600", "ruler.fwe@300", "ruler.fwe@600"}
    text = freeze.render(suite, {resolve("micro").fingerprint: hashes})
    again = suites.parse_suite(text.encode(), "mine.toml")
    assert freeze.changed_tasks(again, resolve("micro")) == []
    changed = suites.parse_suite(text.replace("data_seed = 0", "data_seed = 1").encode(), "mine.toml")
    assert freeze.changed_tasks(changed, resolve("micro"), ["ruler.fwe"]) == ["ruler.fwe@300", "ruler.fwe@600"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[300, 600]", "[300]"), "2..64 of them"),
        (("[300, 600]", "[600, 300]"), "must rise"),
        (("[300, 600]", "[300, 300]"), "must rise"),
        (("[300, 600]", "[300, true]"), "whole numbers"),
        (("[300, 600]", '[300, "600"]'), "whole numbers"),
        (("[300, 600]", "[0, 600]"), "whole numbers"),
        (("[300, 600]", "300"), "type list"),
        (("n = 2", "n = 2\nlength = 300"), "give 'length', or 'lengths'"),
        (("lengths = [300, 600]\n", ""), "missing length"),
    ],
)
def test_bad_lengths_are_refused(change, message):
    with pytest.raises(SuiteError, match=message) as caught:
        suites.parse_suite(MULTI.replace(*change).encode(), "mine.toml")
    assert caught.value.exit_code == 3


def test_suites_of_other_folders_and_of_texts_are_found_and_replace_none_of_ours(tmp_path):
    (tmp_path / "mine.toml").write_text(MULTI)
    (tmp_path / "ruler.toml").write_text(MULTI.replace('"mine"', '"ruler"'))
    folders = [suites.suites_dir(), tmp_path]
    assert suites.load_suite("mine", folders).id == "mine"
    assert suites.load_suite("ruler", folders).tasks != suites.load_suite("mine", folders).tasks
    text = {"carried": MULTI.replace('"mine"', '"carried"'), "wrong": MULTI}
    assert suites.load_suite("carried", folders, EVERY, text).id == "carried"
    with pytest.raises(SuiteError, match="calls itself 'mine'"):
        suites.load_suite("wrong", folders, EVERY, text)
    with pytest.raises(SuiteError, match="did you mean 'carried'") as caught:
        suites.load_suite("caried", folders, EVERY, text)
    assert caught.value.exit_code == 2


def test_the_freezer_leaves_suites_without_their_data_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PROTEUS_BENCH_DATA", str(tmp_path))
    path = suites.suite_files(None)["retrieval-window"]
    before = path.read_bytes()
    assert freeze.main(["retrieval-window"]) == 0 and freeze.main(["--check", "retrieval-window"]) == 0
    assert "left as it is" in capsys.readouterr().out and path.read_bytes() == before
