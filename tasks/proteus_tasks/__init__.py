"""proteus_tasks: what is asked. An item is a pure function of its identity. Imports numpy only."""

from __future__ import annotations

from .babilong import BABILONG_TASKS
from .commonsense import COMMONSENSE_TASKS
from .errors import DataFileError, LengthBudgetError, OutputError, SuiteError, TaskError
from .item import Item, Needle, Question
from .longbench import LONGBENCH_TASKS
from .niah import VARIANTS, NiahTask
from .perplexity import PERPLEXITY_TASKS
from .probes import PROBE_TASKS
from .retrieval import RETRIEVAL_TASKS
from .ruler_qa import QA_TASKS
from .ruler_vt import VT_TASKS
from .ruler_words import WORD_TASKS
from .task import Task
from .tokenizers import ByteTokenizer, CallableTokenizer, FileTokenizer, Tokenizer

NIAH_TASKS: dict[str, Task] = {task.id: task for task in VARIANTS.values()}
FAMILIES: dict[str, tuple[Task, ...]] = {
    "ruler": (*VT_TASKS, *WORD_TASKS, *QA_TASKS),
    "babilong": BABILONG_TASKS,
    "retrieval": RETRIEVAL_TASKS,
    "longbench": LONGBENCH_TASKS,
    "perplexity": PERPLEXITY_TASKS,
}
"""The tasks of the other families, by the name of their plugin and of their sub-command of `generate`."""
TASKS: dict[str, Task] = {
    **NIAH_TASKS,
    **PROBE_TASKS,
    **{task.id: task for tasks in (*FAMILIES.values(), COMMONSENSE_TASKS) for task in tasks},
}
"""Every shipped task by id."""

__all__ = [
    "COMMONSENSE_TASKS",
    "FAMILIES",
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
