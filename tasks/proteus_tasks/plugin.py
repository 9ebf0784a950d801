"""What the entry point group `proteus_bench.tasks` finds under the name `niah`. A stranger's plugin has the same shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import TASKS, Task
from .resources import suites_dir


@dataclass(frozen=True)
class NiahPlugin:
    """`tasks` by id, the folder with its suites, and the sub-command that `generate` mounts under `name`."""

    name: str = "niah"
    tasks: dict[str, Task] = field(default_factory=lambda: dict(TASKS))

    @property
    def suites_path(self) -> Path:
        return suites_dir()

    def cli(self) -> Any:
        """The Typer application; typer is imported when this is called."""
        from .generate_cli import app

        return app()


plugin = NiahPlugin()
