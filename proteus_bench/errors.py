"""Errors that a user can act on. Each class owns one exit code of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BenchError(Exception):
    """Base of every expected failure: one clear line, one exit code.

    Anything that is not a BenchError is a defect of this program and keeps its traceback.
    """

    exit_code: int = 1

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        if exit_code is not None:
            self.exit_code = exit_code


class UsageError(BenchError):
    """The command or an argument makes no sense (exit 2)."""

    exit_code = 2


class InvalidFileError(BenchError):
    """A file is malformed, hostile or does not match its hash (exit 3)."""

    exit_code = 3


class EnvironmentFault(BenchError):
    """A library, a device, disk space or a permission is missing (exit 4)."""

    exit_code = 4


class PartialRunError(BenchError):
    """The run stopped early and can be resumed by the same command (exit 5)."""

    exit_code = 5


class GateError(BenchError):
    """A comparison gate that the user asked for was not met (exit 6)."""

    exit_code = 6


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ``"; did you mean 'x'?"``, or the list of choices when none is close. Starts with the separator."""
    options = sorted(set(choices))
    by_lower = {option.lower(): option for option in options}
    hits = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=cutoff)
    if hits:
        return f"; did you mean {by_lower[hits[0]]!r}?"
    if not options:
        return "; none is available"
    return "; choose from " + ", ".join(options)


def unknown(kind: str, name: str, choices: Iterable[str]) -> UsageError:
    """The error for an unknown ``kind`` (``"schedule"``, ``"model"`` ...), naming the nearest choice."""
    shown = name if len(name) <= 80 else name[:77] + "..."
    return UsageError(f"unknown {kind} {shown!r}{nearest(name, choices)}")
