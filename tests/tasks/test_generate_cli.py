"""`generate niah`: complete files or none, one clear line for every mistake."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from proteus_tasks import NIAH_TASKS as TASKS
from proteus_tasks import ByteTokenizer, Item
from proteus_tasks.plugin import plugin
from proteus_tasks.resources import micro_tokenizer_path


def generate(out, *extra, variant="single_2", length="2048", n="4", tokenizer="bytes"):
    arguments = ["--variant", variant, "--length", length, "--n", n, "--tokenizer", tokenizer, "--out", str(out)]
    return CliRunner().invoke(plugin.cli(), [*arguments, *extra])


def rows(out) -> list[Item]:
    parsed = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
    items = [Item.from_dict({k: v for k, v in row.items() if k != "sha256"}) for row in parsed]
    assert [item.sha256 for item in items] == [row["sha256"] for row in parsed]
    return items


def test_items_and_manifest_agree_with_the_library(tmp_path):
    result = generate(tmp_path / "new" / "out", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    out = tmp_path / "new" / "out"
    assert rows(out) == list(TASKS["niah.single_2"].items(4, length=2048, tokenizer=ByteTokenizer(), data_seed=3))
    manifest = json.loads((out / "manifest.json").read_text())
    assert json.loads(result.stdout) == manifest
    assert manifest["files"]["items.jsonl"]["sha256"] == hashlib.sha256((out / "items.jsonl").read_bytes()).hexdigest()
    assert sorted(path.name for path in out.iterdir()) == ["items.jsonl", "manifest.json"]
    assert (manifest["items"], manifest["task"], manifest["tokenizer"]) == (4, "niah.single_2", "bytes")


def test_a_repeated_command_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        assert generate(tmp_path / name, variant="multikey_2").exit_code == 0
    assert (tmp_path / "a/items.jsonl").read_bytes() == (tmp_path / "b/items.jsonl").read_bytes()
    assert (tmp_path / "a/manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()


def test_a_depth_grid_repeats_the_items_at_each_depth(tmp_path):
    assert generate(tmp_path, "--depths", "11", n="2").exit_code == 0
    items = rows(tmp_path)
    assert [item.meta["asked_depth"] for item in items] == [i / 10 for i in range(11) for _ in range(2)]
    assert len({item.id for item in items}) == 22
    assert len({item.questions[0].golds for item in items}) == 2


def test_tokenizer_files_haystack_files_and_splits(tmp_path):
    (tmp_path / "prose.txt").write_text("It rained all day. We stayed at home. " * 30)
    haystack = ("--haystack", str(tmp_path / "prose.txt"), "--split", "train")
    assert generate(tmp_path / "a", *haystack, tokenizer="micro").exit_code == 0
    assert generate(tmp_path / "b", *haystack, tokenizer=str(micro_tokenizer_path())).exit_code == 0
    assert generate(tmp_path / "c", *haystack, tokenizer=str(micro_tokenizer_path().parent)).exit_code == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b") == rows(tmp_path / "c")
    assert rows(tmp_path / "a")[0].split == "train" and "It rained all day." in rows(tmp_path / "a")[0].context


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"variant": "singel_2"}, 2, "did you mean 'single_2'?"),
        ({"length": "200"}, 2, "smallest length that can is"),
        ({"tokenizer": "no/such"}, 2, "unknown tokenizer"),
        ({"extra": ("--split", "tets")}, 2, "did you mean 'test'?"),
        ({"variant": "single_1", "extra": ("--haystack", "x")}, 2, "--haystack does not apply"),
        ({"extra": ("--haystack", "/no/such")}, 3, "haystack /no/such"),
        ({"tokenizer": __file__}, 3, "not a tokenizer.json"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, arguments, code, words):
    extra = arguments.pop("extra", ())
    result = generate(tmp_path / "out", *extra, **arguments)
    assert result.exit_code == code
    assert words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_the_named_length_holds_all_items(tmp_path):
    refusal = generate(tmp_path, length="200", n="30").stderr
    assert generate(tmp_path, length=refusal.split()[-1], n="30").exit_code == 0
    assert generate(tmp_path, length=str(int(refusal.split()[-1]) - 1), n="30").exit_code == 2


def test_an_unwritable_folder_is_found_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    result = generate(tmp_path / "file" / "out")
    assert result.exit_code == 4 and "cannot write" in result.stderr


def test_a_failed_write_keeps_the_old_files(tmp_path, monkeypatch):
    assert generate(tmp_path).exit_code == 0
    before = (tmp_path / "items.jsonl").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proteus_tasks.output.os.fsync", full)
    result = generate(tmp_path, "--seed", "9")
    assert result.exit_code == 4 and "No space left" in result.stderr
    assert (tmp_path / "items.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["items.jsonl", "manifest.json"]


def test_the_plugin_has_the_shape_of_a_plugin():
    assert plugin.name == "niah" and set(plugin.tasks) == set(TASKS)
    assert (plugin.suites_path / "niah4k.toml").is_file()
