"""Plugins: found without import, loaded by name, filtered, and reported when broken."""

import sys
from pathlib import Path

import pytest

from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.grammar import parse_model
from proteus_bench.registry import GROUPS, PluginStatus, Registry, plugin_statuses, schedule_classes
from proteus_bench.schedules import BUILTIN

GOOD = """
from dataclasses import dataclass
from typing import ClassVar
from proteus_bench.schedules import Schedule

@dataclass(frozen=True, kw_only=True)
class Mine(Schedule):
    name: ClassVar[str] = "mine"
    rate: int = 2

    def active_blocks(self, t: int) -> int:
        return min(self.blocks, 1 + self.rate * (t - 1) // self.span)

class Renamed(Mine):
    name = "other"
"""
BAD = "raise SystemExit('I end your program')"


def install(root: Path, dist: str, entries: str, **modules: str) -> None:
    info = root / f"{dist.replace('-', '_')}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[proteus_bench.schedules]\n{entries}\n")
    for name, text in modules.items():
        (root / f"{name}.py").write_text(text)


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "good-plugin", "mine = plugin_good_module:Mine", plugin_good_module=GOOD)
    install(
        tmp_path,
        "bad_plugin",
        "ender = plugin_bad_module:X\nlost = plugin_missing:X\nliar = plugin_good_module:Renamed\n"
        "plain = json:dumps\n../evil = json:dumps",
        plugin_bad_module=BAD,
    )
    yield tmp_path
    for name in ("plugin_good_module", "plugin_bad_module"):
        sys.modules.pop(name, None)


def test_the_built_in_schedules_come_through_the_entry_points():
    found = schedule_classes()
    assert {name: found[name] for name in BUILTIN} == BUILTIN


@pytest.mark.parametrize("kind", GROUPS)
def test_everything_that_ships_loads(kind):
    own = [status for status in Registry(kind).load()[1] if status.dist == "proteus-bench"]
    assert own and [status for status in own if status.error] == []


def test_names_are_known_without_an_import(plugins):
    assert {"mine", "ender", "lost", "uniform"} <= set(Registry("schedules").names())
    assert "plugin_good_module" not in sys.modules and "plugin_bad_module" not in sys.modules


def test_a_strangers_schedule_is_used_by_name(plugins):
    spec = parse_model("gdn+mine(rate=3)", models=["gdn"], schedules=schedule_classes())
    assert spec.schedule_class is Registry("schedules").get("mine") and str(spec) == "gdn+mine(rate=3)"


def test_broken_plugins_are_reported_and_harm_nobody(plugins):
    statuses = {status.name: status for status in plugin_statuses() if status.dist != "proteus-bench"}
    assert statuses["mine"] == PluginStatus("good-plugin", "1.5", "schedules", "mine", None)
    assert "I end your program" in statuses["ender"].error
    assert "plugin_missing" in statuses["lost"].error
    assert "calls itself 'other'" in statuses["liar"].error
    assert "not a subclass" in statuses["plain"].error
    assert "not letters" in statuses["'../evil'"].error
    with pytest.raises(EnvironmentFault, match=r"ender of bad-plugin 1\.5 does not load"):
        Registry("schedules").get("ender")
    assert Registry("schedules").get("uniform") is BUILTIN["uniform"]


def test_an_unknown_name_gets_the_nearest(plugins):
    with pytest.raises(UsageError, match="unknown schedule 'unifrm'; did you mean 'uniform'"):
        Registry("schedules").get("unifrm")
    with pytest.raises(UsageError, match="plugin group"):
        Registry("schedule_s")


@pytest.mark.parametrize("taken", ["mine", "uniform"])
def test_a_name_that_two_distributions_claim_raises(plugins, taken, monkeypatch):
    install(plugins, "copycat", f"{taken} = plugin_good_module:Mine")
    with pytest.raises(UsageError, match=rf"two plugins register schedule '{taken}'.*copycat"):
        Registry("schedules")
    monkeypatch.setenv("PROTEUS_BENCH_PLUGINS", "good_plugin")
    assert "mine" in Registry("schedules").names()


def test_the_filter_admits_none_or_the_named(plugins, monkeypatch):
    monkeypatch.setenv("PROTEUS_BENCH_PLUGINS", "none")
    assert set(Registry("schedules").names()) == set(BUILTIN)
    monkeypatch.setenv("PROTEUS_BENCH_PLUGINS", "Good.Plugin")
    assert set(Registry("schedules").names()) == {*BUILTIN, "mine"}
    monkeypatch.setenv("PROTEUS_BENCH_PLUGINS", "good-plugn")
    with pytest.raises(UsageError, match="did you mean 'good-plugin'"):
        Registry("schedules")
