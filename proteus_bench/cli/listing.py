"""`list` and `plugins`: what there is, without loading more than it takes to say so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import unknown

_KINDS = ("models", "suites", "schedules", "tasks")


def list_command(what: str, *, as_json: bool) -> None:
    """Print models, suites, schedules or tasks. UsageError (exit 2) with the nearest name for anything else."""
    if what not in _KINDS:
        raise unknown("list", what, _KINDS)
    rows_of = {"models": _models, "suites": _suites, "schedules": _schedules, "tasks": _tasks}
    rows: list[dict[str, Any]] = rows_of[what]()
    if as_json:
        print_json({what: rows})
        return
    if what == "suites":  # a suite may have dozens of tasks: the table names their families, --json every one
        rows = [row | {"length": _span(row["length"]), "tasks": _families(row["tasks"])} for row in rows]
    columns = list(rows[0]) if rows else []
    table = [[_show(row[column]) for column in columns] for row in rows]
    right = [i for i, column in enumerate(columns) if rows and isinstance(rows[0][column], int | float)]
    print_table(what, [column.replace("_", " ") for column in columns], table, right)


def _show(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.3f}"
    return "-" if value is None else str(value)


def _families(tasks: list[str]) -> str:
    """`niah.single_1, niah.single_2` -> `niah (2)`, a line for each family."""
    return "\n".join(f"{family} ({n})" for family, n in Counter(task.partition(".")[0] for task in tasks).items())


def _span(length: int | list[int]) -> str:
    return str(length) if isinstance(length, int) else f"{length[0]} to {length[-1]}"


def _models() -> list[dict[str, Any]]:
    from proteus_bench.backends.weights import zoo_root
    from proteus_bench.registry import Registry
    from proteus_models import zoo

    plugins, _ = Registry("models").load()
    entries = zoo.available(zoo_root())
    rows = []
    for name, plugin in sorted(plugins.items()):
        about = {"about": plugin.title, "axes": list(plugin.axes)}
        mine = [entry for entry in entries if entry.name == name]
        for entry in mine:
            text = name if entry.schedule == "static" else f"{name}+{entry.schedule}"
            rows.append({"model": text, "size": entry.size, "seeds": len(entry.seeds), **about})
        if not mine:
            rows.append({"model": name, "size": "untrained", "seeds": 0, **about})
    return rows


def _schedules() -> list[dict[str, Any]]:
    from proteus_bench.grammar import PRESETS
    from proteus_bench.registry import schedule_classes

    rows = []
    for name, cls in sorted(schedule_classes().items()):
        schedule = cls()
        presets = sorted(preset for preset, (target, _) in PRESETS.items() if target == name)
        summary = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".").replace("``", "").replace("**", "")
        rows.append(
            {
                "schedule": name,
                "also": presets,
                "parameters": [f"{key}={value}" for key, value in schedule.params().items()],
                "mean_active_fraction": round(schedule.mean_active_fraction(), 6),
                "about": summary,
            }
        )
    return rows


def _suites() -> list[dict[str, Any]]:
    from proteus_bench.runner.items import suite_rows

    return suite_rows()


def _tasks() -> list[dict[str, Any]]:
    from proteus_bench.runner.items import task_rows

    return task_rows()


def plugins_command(*, as_json: bool) -> None:
    """Every entry point with its distribution and whether it loads."""
    from proteus_bench.registry import plugin_statuses

    statuses = plugin_statuses()
    if as_json:
        print_json({"plugins": [vars(status) for status in statuses]})
        return
    rows = [(s.group, s.name, f"{s.dist} {s.version}", s.error or "loads") for s in statuses]
    print_table("plugins", ("group", "name", "from", "state"), rows)
