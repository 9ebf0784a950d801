"""Running the cells of a plan: resumable, on processes, with progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proteus_bench.backends import forget
from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.runner.cell import CellJob, run_cell
from proteus_bench.runner.plan import Plan
from proteus_bench.runner.pool import Outcome, run_jobs
from proteus_bench.runner.progress import Progress
from proteus_bench.store import CellKey, RunFolder, read_log

_ABORTING = {3: InvalidFileError, 4: EnvironmentFault}


@dataclass
class Executed:
    """Rows and failures by cell, and what it cost in this invocation (seconds)."""

    rows: dict[CellKey, list[dict[str, Any]]]
    failures: dict[CellKey, Outcome] = field(default_factory=dict)
    wall_seconds: float = 0.0


def execute(plan: Plan, folder: RunFolder, workers: int) -> Executed:
    """Run what is missing. A damaged log or a failing disk ends the run (exit 3, 4); a failing cell does not."""
    rows = {key: read_log(folder.cell_path(key)) for key in plan.cells}
    todo = [key for key in plan.cells if len(rows[key]) < plan.questions(key)]
    done_before = sum(len(found) for found in rows.values())
    if done_before:
        total = sum(map(plan.questions, plan.cells))
        print(f"resuming: {done_before} of {total} questions are already answered", file=sys.stderr)
    result = Executed(rows)
    begun = time.perf_counter()
    if workers != 1 or plan.spec.executor != "local":
        forget()  # the workers open their own
    if todo:
        _run(plan, folder, workers, todo, result)
    result.wall_seconds = time.perf_counter() - begun
    result.rows = {key: read_log(folder.cell_path(key)) for key in plan.cells}
    return result


def _run(plan: Plan, folder: RunFolder, workers: int, todo: list[CellKey], result: Executed) -> None:
    jobs = [_job(plan, folder, key) for key in todo]
    counter = _Counter(folder, todo, {key: len(rows) for key, rows in result.rows.items()})
    total = sum(map(plan.questions, plan.cells))
    with Progress(total, len(plan.cells), counter.total()) as progress:
        finished = len(plan.cells) - len(todo)

        def tick() -> None:
            progress.update(counter.count(), finished)

        for job, outcome in _outcomes(plan, folder, jobs, workers, tick):
            finished += 1
            counter.settle(job.key)
            if outcome.error is not None:
                _note_failure(job.key, outcome, result)
            tick()


def _outcomes(
    plan: Plan, folder: RunFolder, jobs: list[CellJob], workers: int, tick: Callable[[], None]
) -> Iterator[tuple[CellJob, Outcome]]:
    """Every cell with what became of it, from the executor that was asked for."""
    if plan.spec.executor == "local":
        return run_jobs(run_cell, jobs, workers, tick)
    from proteus_bench.runner.ray_pool import Needs, needs_of, run_on_ray

    def needs(job: CellJob) -> Needs:
        return needs_of(plan.infos[job.key.model, job.key.seed].device, job.settings.engine)

    return run_on_ray(run_cell, jobs, folder, needs, workers, tick)


def _job(plan: Plan, folder: RunFolder, key: CellKey) -> CellJob:
    count = plan.cells[key]
    return CellJob(
        folder=str(folder.path),
        suite=plan.suite.source,
        key=key,
        count=count,
        questions=plan.questions(key) // count,
        batch_tokens=plan.spec.batch_tokens,
        settings=plan.spec.settings(),
    )


def _note_failure(key: CellKey, outcome: Outcome, result: Executed) -> None:
    if outcome.exit_code in _ABORTING:
        raise _ABORTING[outcome.exit_code](outcome.error or "")
    result.failures[key] = outcome
    print(f"failed: {key.model} {key.task} {key.length} seed {key.seed}: {outcome.error}", file=sys.stderr)
    if outcome.trace:
        print(outcome.trace, file=sys.stderr)


class _Counter:
    """Counts the lines of the logs that can still grow: right whatever a worker did or did not live to report."""

    def __init__(self, folder: RunFolder, growing: Iterable[CellKey], lines: dict[CellKey, int]) -> None:
        self.paths: dict[CellKey, Path] = {key: folder.cell_path(key) for key in growing}
        self.lines = lines

    def total(self) -> int:
        return sum(self.lines.values())

    def count(self) -> int:
        for key in self.paths:
            self._look(key)
        return self.total()

    def settle(self, key: CellKey) -> None:
        """The cell has ended: its log is counted once more and left alone."""
        self._look(key)
        self.paths.pop(key, None)

    def _look(self, key: CellKey) -> None:
        path = self.paths.get(key)
        if path is not None and path.exists():
            self.lines[key] = path.read_bytes().count(b"\n")
