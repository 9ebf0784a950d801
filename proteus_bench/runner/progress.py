"""Progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere. Never on stdout."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_SECONDS = 5.0


class Progress:
    """Counts questions and cells. Use as a context manager; ``update`` is cheap and may be called often."""

    def __init__(self, total: int, cells: int, done: int = 0) -> None:
        self.total, self.cells = total, cells
        self._already = done
        self._begun = time.monotonic()
        self._spoken = 0.0
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=None),
            progress.TextColumn("{task.completed}/{task.total} questions"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("evaluating", total=self.total, completed=self._already)
        self._bar.start()

    def update(self, done: int, cells: int) -> None:
        """``done`` questions of the total, ``cells`` finished."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"cell {min(cells + 1, self.cells)}/{self.cells}")
            return
        now = time.monotonic()
        if now - self._spoken < PLAIN_SECONDS:
            return
        self._spoken = now
        elapsed, fresh = now - self._begun, done - self._already
        left = f", about {elapsed / fresh * (self.total - done):.0f} s left" if fresh > 0 else ""
        print(f"{done}/{self.total} questions, {cells}/{self.cells} cells, {elapsed:.0f} s{left}", file=sys.stderr)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
