"""What the entry point group `proteus_bench.tasks` finds under the name `probes`."""

from __future__ import annotations

from typing import Any

from ..plugin import TaskPlugin
from ..resources import suites_dir
from . import PROBE_TASKS


def _command() -> Any:
    from .generate_cli import app

    return app()


plugin = TaskPlugin("probes", PROBE_TASKS, _command, suites_dir())
