"""stdout carries the result, stderr everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(document: Any) -> None:
    """Exactly one JSON document on stdout. Raises ValueError for NaN."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def console(stderr: bool = False) -> Console:
    """A rich console: colours on a terminal unless NO_COLOR is set, 120 columns elsewhere, no markup."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, markup=False, highlight=False, width=None if stream.isatty() else 120)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> None:
    """A plain table on stdout; ``right``: indices of columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row))
    console().print(table)
