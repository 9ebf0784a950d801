"""proteus_tasks: what is asked. An item is a pure function of its identity. Imports numpy only."""

from __future__ import annotations

from .errors import DataFileError, LengthBudgetError, OutputError, SuiteError, TaskError
from .item import Item, Needle, Question
from .niah import VARIANTS, NiahTask
from .probes import PROBE_TASKS
from .task import Task
from .tokenizers import ByteTokenizer, CallableTokenizer, FileTokenizer, Tokenizer

NIAH_TASKS: dict[str, Task] = {task.id: task for task in VARIANTS.values()}
TASKS: dict[str, Task] = NIAH_TASKS | PROBE_TASKS
"""Every shipped task by id."""

__all__ = [
    "NIAH_TASKS",
    "PROBE_TASKS",
    "TASKS",
    "ByteTokenizer",
    "CallableTokenizer",
    "DataFileError",
    "FileTokenizer",
    "Item",
    "LengthBudgetError",
    "Needle",
    "NiahTask",
    "OutputError",
    "Question",
    "SuiteError",
    "Task",
    "TaskError",
    "Tokenizer",
]
