"""`generate`: every task plugin contributes its own sub-command; a broken one is reported and left out."""

from __future__ import annotations

import sys

import typer

from proteus_bench.registry import Registry


def add_task_commands(group: typer.Typer) -> None:
    """Add the sub-command of every task plugin that loads and has one."""
    registry = Registry("tasks")
    plugins, statuses = registry.load()
    for status in statuses:
        if status.error is not None:
            print(f"plugin {status.name} of {status.dist} does not load: {status.error}", file=sys.stderr)
    group.callback()(lambda: None)
    for name, plugin in plugins.items():
        try:
            command = plugin.cli() if hasattr(plugin, "cli") else None
            if command is not None:
                group.add_typer(command, name=name)
        except Exception as error:  # a stranger's sub-command must not take ours away
            print(f"plugin {name} has no usable sub-command: {type(error).__name__}: {error}", file=sys.stderr)
