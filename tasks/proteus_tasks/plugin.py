"""What the entry point group `proteus_bench.tasks` finds: one object a family. A stranger's plugin has the same shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import COMMONSENSE_TASKS, FAMILIES, NIAH_TASKS, Task
from .resources import suites_dir


@dataclass(frozen=True)
class TaskPlugin:
    """`tasks` by id, the folder with its suites, and the sub-command that `generate` mounts under `name`."""

    name: str
    tasks: dict[str, Task]
    command: Callable[[], Any]
    suites_path: Path

    def cli(self) -> Any:
        """The Typer application; typer is imported when this is called."""
        return self.command()


def _niah_command() -> Any:
    from .generate_cli import app

    return app()


def _family(name: str, tasks: Sequence[Task]) -> TaskPlugin:
    def command() -> Any:
        from .family_cli import app

        return app(name, tasks)

    return TaskPlugin(name, {task.id: task for task in tasks}, command, suites_dir())


plugin = TaskPlugin("niah", NIAH_TASKS, _niah_command, suites_dir())
ruler = _family("ruler", FAMILIES["ruler"])
babilong = _family("babilong", FAMILIES["babilong"])
retrieval = _family("retrieval", FAMILIES["retrieval"])
longbench = _family("longbench", FAMILIES["longbench"])
perplexity = _family("perplexity", FAMILIES["perplexity"])
commonsense = _family("commonsense", COMMONSENSE_TASKS)
