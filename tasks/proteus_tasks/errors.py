"""Errors of the task package: each says in one line what to change, and carries the command line's exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TaskError(ValueError):
    """A request that cannot be served as asked (usage). `exit_code` is what a command should exit with."""

    exit_code = 2


class DataFileError(TaskError):
    """A data, suite or tokenizer file that is missing, too large or malformed."""

    exit_code = 3


class OutputError(TaskError):
    """The output folder cannot be written."""

    exit_code = 4


class LengthBudgetError(TaskError):
    """A length (in tokens) that cannot hold the item; `minimum` is the smallest length that can."""

    def __init__(self, task: str, length: int, minimum: int) -> None:
        self.task = task
        self.length = length
        self.minimum = minimum
        super().__init__(f"{task}: {length} tokens cannot hold this task; the smallest length that can is {minimum}")

    def __reduce__(self) -> tuple[type[LengthBudgetError], tuple[str, int, int]]:
        # Workers send errors back by pickle, which would otherwise call the constructor with the message alone.
        return type(self), (self.task, self.length, self.minimum)


class SuiteError(TaskError):
    """A suite that is unknown (exit code 2) or whose file is invalid (exit code 3)."""

    def __init__(self, message: str, exit_code: int = 3) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def nearest(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'x'?)"` for the known name closest to `name`, or `""` when nothing is close."""
    found = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.5)
    return f" (did you mean '{found[0]}'?)" if found else ""
