"""Probes: items that measure the memory itself. Facts stand at chosen places of the whole window and are asked one by one."""

from __future__ import annotations

from ..task import Task
from .capacity import MQAR, REWRITE
from .facts import BLOCKS, ProbeTask
from .interference import INTERFERENCE

PROBE_TASKS: dict[str, Task] = {task.id: task for task in (*MQAR, *REWRITE, *INTERFERENCE)}
"""Every probe task by id."""

__all__ = ["BLOCKS", "PROBE_TASKS", "ProbeTask"]
