"""Tasks, models and schedules by name, from entry points; ours are listed in pyproject.toml like everybody else's.

Nothing is imported until it is asked for by name, and a broken plugin is reported, never fatal.
`PROTEUS_BENCH_PLUGINS=none` keeps foreign distributions out; `PROTEUS_BENCH_PLUGINS=a,b` admits only those.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proteus_bench import __version__
from proteus_bench.errors import EnvironmentFault, UsageError, unknown

if TYPE_CHECKING:
    from proteus_bench.schedules import Capacity

OWN = "proteus-bench"
GROUPS = {kind: f"proteus_bench.{kind}" for kind in ("tasks", "models", "schedules")}
VARIABLE = "PROTEUS_BENCH_PLUGINS"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]{0,63}")


@dataclass(frozen=True)
class PluginStatus:
    """What became of one entry point. ``error`` is None when it loaded; ``group`` is tasks, models or schedules."""

    dist: str
    version: str
    group: str
    name: str
    error: str | None


@dataclass(frozen=True)
class _Entry:
    point: metadata.EntryPoint
    dist: str
    version: str


class Registry:
    """The plugins of one kind (``tasks``, ``models`` or ``schedules``). Construction imports none of them.

    Raises UsageError when two distributions offer the same name, or when the filter names one that is not installed.
    """

    def __init__(self, kind: str) -> None:
        if kind not in GROUPS:
            raise unknown("plugin group", kind, GROUPS)
        self.kind = kind
        self._entries: dict[str, _Entry] = {}
        self._refused: list[PluginStatus] = []
        for entry in _admitted(_discover())[GROUPS[kind]]:
            self._add(entry)

    def _add(self, entry: _Entry) -> None:
        name = entry.point.name
        if _NAME.fullmatch(name) is None:
            error = f"the name {name[:64]!r} is not letters, digits and . _ + -"
            self._refused.append(PluginStatus(entry.dist, entry.version, self.kind, ascii(name[:64]), error))
            return
        if name in self._entries:
            other = self._entries[name].dist
            raise UsageError(
                f"two plugins register {self.kind[:-1]} {name!r}: {other} and {entry.dist}; "
                f"uninstall one or set {VARIABLE}"
            )
        self._entries[name] = entry

    def names(self) -> tuple[str, ...]:
        """All registered names, sorted. Imports nothing."""
        return tuple(sorted(self._entries))

    def get(self, name: str) -> Any:
        """Import and return one plugin. UsageError for an unknown name, EnvironmentFault for a broken plugin."""
        if name not in self._entries:
            raise unknown(self.kind[:-1], name, self._entries)
        value, error = self._load(name)
        if error is not None:
            entry = self._entries[name]
            raise EnvironmentFault(f"plugin {name} of {entry.dist} {entry.version} does not load: {error}")
        return value

    def load(self) -> tuple[dict[str, Any], list[PluginStatus]]:
        """Import everything: the working plugins by name, and one status per entry point (broken ones included)."""
        working: dict[str, Any] = {}
        statuses = list(self._refused)
        for name in self.names():
            value, error = self._load(name)
            entry = self._entries[name]
            statuses.append(PluginStatus(entry.dist, entry.version, self.kind, name, error))
            if error is None:
                working[name] = value
        return working, statuses

    def _load(self, name: str) -> tuple[Any, str | None]:
        try:
            value = self._entries[name].point.load()
        except (Exception, SystemExit) as error:  # a stranger's import may raise anything, and must not end the program
            return None, f"{type(error).__name__}: {error}".splitlines()[0][:300]
        try:
            problem = _CHECKS[self.kind](name, value) if self.kind in _CHECKS else None
        except Exception as error:  # a look at its attributes may raise as well
            problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return value, problem


def _check_schedule(name: str, value: Any) -> str | None:
    from proteus_bench.schedules import Schedule

    if not (isinstance(value, type) and issubclass(value, Schedule)):
        return "it is not a subclass of proteus_bench.schedules.Schedule"
    if value.name != name:
        return f"it calls itself {value.name!r} and is registered as {name!r}"
    return None


def _check_tasks(name: str, value: Any) -> str | None:
    tasks = getattr(value, "tasks", None)
    if not isinstance(tasks, Mapping) or not tasks:
        return "it has no 'tasks': a mapping of task ids to tasks"
    for task_id, task in tasks.items():
        lacking = [part for part in ("id", "version", "item", "items") if not hasattr(task, part)]
        if lacking:
            return f"its task {str(task_id)[:64]!r} has no {', '.join(lacking)}"
        if task.id != task_id:
            return f"its task {str(task_id)[:64]!r} calls itself {str(task.id)[:64]!r}"
    return None


_CHECKS: dict[str, Callable[[str, Any], str | None]] = {"schedules": _check_schedule, "tasks": _check_tasks}


def _discover() -> dict[str, list[_Entry]]:
    found: dict[str, list[_Entry]] = {group: [] for group in GROUPS.values()}
    own_is_installed = False
    for group, entries in found.items():
        for point in metadata.entry_points(group=group):
            dist = point.dist
            name = _canonical(dist.name) if dist is not None else "unknown"
            own_is_installed |= name == OWN
            entries.append(_Entry(point, name, dist.version if dist is not None else "0"))
    if not own_is_installed:
        for group, table in _checkout_entry_points().items():
            points = (metadata.EntryPoint(name=name, value=value, group=group) for name, value in table.items())
            found[group].extend(_Entry(point, OWN, __version__) for point in points)
    return found


def _checkout_entry_points() -> dict[str, dict[str, str]]:
    """Our own table when the package runs from a checkout that is not installed: same table, read at its source."""
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != OWN:
        return {}
    return {group: table for group, table in project.get("entry-points", {}).items() if group in GROUPS.values()}


def _admitted(found: dict[str, list[_Entry]]) -> dict[str, list[_Entry]]:
    setting = os.environ.get(VARIABLE, "").strip()
    if not setting:
        return found
    wanted = set() if setting.lower() == "none" else {_canonical(part) for part in setting.split(",") if part.strip()}
    installed = {entry.dist for entries in found.values() for entry in entries}
    for name in sorted(wanted - installed):
        raise unknown(f"distribution in {VARIABLE}", name, installed - {OWN})
    keep = wanted | {OWN}
    return {group: [entry for entry in entries if entry.dist in keep] for group, entries in found.items()}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def plugin_statuses() -> list[PluginStatus]:
    """One status per entry point of every group, for ``plugins`` and ``doctor``. Imports all of them."""
    return [status for kind in GROUPS for status in Registry(kind).load()[1]]


def stored_capacity(data: Mapping[str, Any]) -> Capacity:
    """A capacity from a file. Plugins are imported only when its schedule is none of ours. Errors: `Capacity.from_dict`."""
    from proteus_bench.schedules import BUILTIN, Capacity

    name = data.get("schedule") if isinstance(data, Mapping) else None
    return Capacity.from_dict(data, BUILTIN if not isinstance(name, str) or name in BUILTIN else schedule_classes())


def schedule_classes() -> dict[str, Any]:
    """Every schedule class that loads, by name: what the model grammar needs."""
    return Registry("schedules").load()[0]
