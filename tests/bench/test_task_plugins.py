"""A stranger's task package has the powers of ours, and a broken one harms nobody."""

import json
import sys
from pathlib import Path

import pytest

from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.registry import Registry
from proteus_bench.runner import items
from proteus_bench.store import read_log

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "docs" / "example_task.py"
BROKEN = """
class Plugin:
    tasks = {"mine.task": object()}
plugin = Plugin()
shapeless = object()
class Liar:
    @property
    def tasks(self):
        raise RuntimeError("no tasks today")
liar = Liar()
class Loud:
    from example_task import Where
    tasks = {"places.where": Where()}
    suites = {"bad": "id = 3"}
    def cli(self):
        raise RuntimeError("no sub-command today")
loud = Loud()
"""


def install(root: Path, name: str, entries: str) -> None:
    info = root / f"{name}-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(f"[proteus_bench.tasks]\n{entries}\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path in which distributions can be put."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "example_task.py").write_text(EXAMPLE.read_text())
    (folder / "broken_task.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(folder))
    for cached in (items.tasks, items.plan_suite):
        cached.cache_clear()
    yield folder
    for cached in (items.tasks, items.plan_suite):
        cached.cache_clear()
    for name in ("example_task", "broken_task"):
        sys.modules.pop(name, None)


def test_a_package_of_one_file_gives_tasks_a_suite_and_a_sub_command(site, cli, tmp_path):
    install(site, "places", "places = example_task:plugin")
    assert "places.where" in items.tasks()
    suite = items.plan_suite("places")
    assert suite.counts == {("places.where", 512): 50, ("places.where", 2048): 50}
    done = cli("run", "--model", "gdn", "--suite", "places", "--limit", "1", "--seeds", "1", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)["cells"]
    assert {(cell["task"], cell["length"], cell["n"]) for cell in cells} == {
        ("places.where", 512, 1),
        ("places.where", 2048, 1),
    }
    logs = [path for path in (tmp_path / "out/cells").glob("*2048*s0*.jsonl") if "seconds" not in path.name]
    rows = [row for path in logs for row in read_log(path)]
    assert rows and all(row["scorers"] == ["unique-label@1", "contains@1"] for row in rows)
    made = cli("generate", "places", "--task", "where", "--length", "512", "--n", "3", "--out", "made", "--json")
    assert made.returncode == 0 and json.loads(made.stdout)["items"] == 3
    assert "places" in {row["suite"] for row in json.loads(cli("list", "suites", "--json").stdout)["suites"]}


def test_broken_task_plugins_are_reported_and_harm_nobody(site, cli):
    install(site, "places", "places = example_task:plugin")
    install(
        site,
        "broken",
        "unfinished = broken_task:plugin\nshapeless = broken_task:shapeless\nliar = broken_task:liar\n"
        "lost = no_such_module:plugin",
    )
    statuses = {s.name: s.error for s in Registry("tasks").load()[1] if s.dist in ("broken", "places")}
    assert statuses["places"] is None
    assert "'mine.task' has no id" in statuses["unfinished"] and "no 'tasks'" in statuses["shapeless"]
    assert "no tasks today" in statuses["liar"] and "no_such_module" in statuses["lost"]
    shown = cli("plugins", "--json")
    assert shown.returncode == 0
    listed = {row["name"]: row["error"] for row in json.loads(shown.stdout)["plugins"] if row["dist"] == "broken"}
    assert all(listed.values()) and set(listed) == {"unfinished", "shapeless", "liar", "lost"}
    assert {"niah.single_1", "places.where"} <= set(items.tasks())
    help_text = cli("generate", "--help")
    assert help_text.returncode == 0 and "places" in help_text.stdout and "niah" in help_text.stdout
    assert "lost of broken does not load" in help_text.stderr
    with pytest.raises(EnvironmentFault, match=r"lost of broken 2\.0 does not load"):
        Registry("tasks").get("lost")


def test_a_bad_sub_command_or_suite_of_a_plugin_takes_nothing_else_away(site, cli):
    install(site, "loud", "loud = broken_task:loud")
    help_text = cli("generate", "--help")
    assert help_text.returncode == 0 and "no sub-command today" in help_text.stderr and "niah" in help_text.stdout
    listed = cli("list", "suites", "--json")
    assert listed.returncode == 0 and "left out: suite bad.toml" in listed.stderr
    assert "niah4k" in {row["suite"] for row in json.loads(listed.stdout)["suites"]}
    done = cli("run", "--model", "gdn", "--suite", "bad", "--limit", "1")
    assert done.returncode == 3 and done.stderr.count("\n") <= 2


def test_two_plugins_that_offer_one_task_are_named(site):
    install(site, "places", "places = example_task:plugin")
    install(site, "again", "again = broken_task:loud")
    with pytest.raises(UsageError, match=r"two task plugins offer 'places\.where'"):
        items.tasks()
