"""`generate FAMILY`: complete files or none, one clear line for every mistake, for every family."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

from families import BYTES, EVERY

from proteus_tasks import FAMILIES, Item, fixtures, plugin

SHORT = {
    "ruler": "vt_2hop", "babilong": "relation", "retrieval": "swde-fixture.jrt.ladder",
    "longbench": "musique-fixture.strict", "perplexity": "prose",
}  # fmt: skip


def generate(family, out, *extra, task=None, length="1500", n="3", tokenizer="bytes"):
    asked = ["--task", task or SHORT[family], "--length", length, "--tokenizer", tokenizer, "--out", str(out)]
    asked += ["--n", n] if n else []
    return CliRunner().invoke(getattr(plugin, family).cli(), [*asked, *extra])


@pytest.mark.parametrize("family", FAMILIES)
def test_items_and_manifest_agree_with_the_library(family, tmp_path):
    result = generate(family, tmp_path / "out", "--seed", "3", "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "out/items.jsonl").read_text().splitlines()]
    items = [Item.from_dict({k: v for k, v in row.items() if k != "sha256"}) for row in rows]
    task = next(t for t in FAMILIES[family] if t.id.partition(".")[2] == SHORT[family])
    assert items == list(task.items(3, length=1500, tokenizer=BYTES, data_seed=3))
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert json.loads(result.stdout) == manifest and manifest["task"] == task.id and manifest["items"] == 3


def test_the_plugins_have_the_tasks_and_a_sub_command_each():
    for family, tasks in FAMILIES.items():
        found = getattr(plugin, family)
        assert found.name == family and set(found.tasks) == {task.id for task in tasks}
        assert CliRunner().invoke(found.cli(), ["--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("family", "arguments", "code", "words"),
    [
        ("ruler", {"task": "vt_2hops"}, 2, "did you mean 'vt_2hop'?"),
        ("ruler", {"length": "100"}, 2, "smallest length that can is"),
        ("babilong", {"length": "100"}, 2, "smallest length that can is"),
        ("retrieval", {"length": "20"}, 2, "smallest length that can is"),
        ("longbench", {"length": "50"}, 2, "smallest length that can is"),
        ("perplexity", {"length": "50"}, 2, "smallest length that can is"),
        ("retrieval", {"n": "401"}, 2, "has 400 items in split 'test'; 401 are asked"),
        ("babilong", {"extra": ("--split", "tets")}, 2, "did you mean 'test'?"),
        ("babilong", {"extra": ("--data-dir", "x")}, 2, "reads no data: --data-dir does not apply"),
        ("retrieval", {"task": "swde.jrt.ladder", "extra": ("--data-dir", "no/such")}, 3, "no data for swde"),
        ("perplexity", {"task": "text", "extra": ("--data-dir", "no/such")}, 3, "no data for text"),
        ("ruler", {"tokenizer": "no/such"}, 2, "unknown tokenizer"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(tmp_path, family, arguments, code, words):
    arguments = dict(arguments)
    extra = arguments.pop("extra", ())
    result = generate(family, tmp_path / "out", *extra, **arguments)
    assert result.exit_code == code, result.output
    assert words in result.stderr and result.stderr.count("\n") == 1 and result.stdout == ""
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("family", ["ruler", "retrieval", "longbench"])
def test_the_named_length_holds_all_items(family, tmp_path):
    refusal = generate(family, tmp_path, length="60", n="6").stderr
    assert generate(family, tmp_path, length=refusal.split()[-1], n="6").exit_code == 0


def test_a_data_folder_is_read_and_all_of_it_is_the_default(tmp_path):
    rows = fixtures.rows("fda", "test")[:7]
    (tmp_path / "fda.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = generate(
        "retrieval", tmp_path / "out", "--data-dir", str(tmp_path), "--json", task="fda.based.window", n=None
    )
    assert result.exit_code == 0, result.output
    manifest = json.loads(result.stdout)
    assert manifest["items"] == 7 and len(manifest["data_sha256"]) == 64
    assert set(EVERY) & {"retrieval.fda-fixture.based.window"}
