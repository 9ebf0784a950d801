"""Cells on worker processes, one at a time each. A dead worker's cell is tried once more; its finished rows stand.

Workers that die before one of them could take a job end the run at once: every other would die as well.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from proteus_bench.errors import BenchError, EnvironmentFault

TICK_SECONDS = 0.5
_READY = "ready"
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of a job. ``error`` None: done. ``exit_code``: of the error. ``trace``: of a defect, for the log."""

    error: str | None = None
    exit_code: int = 0
    trace: str = ""


Work = Callable[[Any], None]


def attempt(work: Work, job: Any) -> Outcome:
    """Run one job here; every error becomes an outcome, an interrupt does not."""
    try:
        work(job)
    except Exception as error:
        code = getattr(error, "exit_code", 1)
        expected = isinstance(error, BenchError) or hasattr(error, "exit_code")
        text = str(error) if expected else f"{type(error).__name__}: {error}"
        return Outcome(text, code, "" if expected else traceback.format_exc())
    return Outcome()


def run_jobs(work: Work, jobs: Sequence[Any], workers: int, tick: Callable[[], None]) -> Iterator[tuple[Any, Outcome]]:
    """Yield (job, outcome) as they end. ``work`` is a picklable function; ``tick`` is called at least twice a second.

    With one worker the jobs run in this process. Closing the iterator ends the workers.
    """
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            with _ticking(tick):
                outcome = attempt(work, job)
            yield job, outcome
        return
    for name in _ONE_THREAD:  # before the workers start: their numerical libraries read it once
        os.environ[name] = "1"
    yield from _Pool(work, jobs, min(workers, len(jobs))).outcomes(tick)


@contextlib.contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call ``tick`` from a thread while this one works."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(TICK_SECONDS):
            tick()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Worker:
    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far, work, os.getpid()), daemon=True)
        self.process.start()
        far.close()
        self.job: Any = None


class _Pool:
    def __init__(self, work: Work, jobs: Sequence[Any], workers: int) -> None:
        self.work, self.size = work, workers
        self.waiting: deque[tuple[Any, bool]] = deque((job, False) for job in jobs)
        self.retried: dict[int, bool] = {}
        self.workers: list[_Worker] = []
        self.started = False

    def outcomes(self, tick: Callable[[], None]) -> Iterator[tuple[Any, Outcome]]:
        try:
            while self.waiting or any(worker.job is not None for worker in self.workers):
                self._feed()
                busy = {worker.pipe: worker for worker in self.workers if worker.job is not None}
                for pipe in wait(list(busy), timeout=TICK_SECONDS):
                    worker = busy[pipe]  # type: ignore[index]
                    finished = self._collect(worker)
                    if finished is not None:
                        yield finished
                tick()
        finally:
            self._stop()

    def _feed(self) -> None:
        for worker in self.workers:
            if worker.job is None and self.waiting:
                self._give(worker)
        while self.waiting and len(self.workers) < self.size:
            self.workers.append(_Worker(self.work))
            self._give(self.workers[-1])

    def _give(self, worker: _Worker) -> None:
        job, again = self.waiting.popleft()
        worker.job = job
        self.retried[id(worker)] = again
        with contextlib.suppress(OSError):  # a worker that died meanwhile is found by _collect
            worker.pipe.send(job)

    def _collect(self, worker: _Worker) -> tuple[Any, Outcome] | None:
        job = worker.job
        try:
            outcome = worker.pipe.recv()
        except (EOFError, OSError):
            self.workers.remove(worker)
            worker.process.join(5)
            if not self.started:
                raise EnvironmentFault(
                    f"worker processes die as they start (exit {worker.process.exitcode}); a script that starts a run needs "
                    "if __name__ == '__main__': around it"
                ) from None
            if not self.retried[id(worker)]:
                self.waiting.append((job, True))
                return None
            code = worker.process.exitcode
            return job, Outcome(f"its worker process died twice (exit {code}); out of memory?", 1)
        if outcome == _READY:
            self.started = True
            return None
        worker.job = None
        return job, outcome

    def _stop(self) -> None:
        for worker in self.workers:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(5)
            worker.pipe.close()


def _serve(pipe: Connection, work: Work, parent: int) -> None:
    """Worker: jobs in, outcomes out, until the parent is gone. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.dup2(2, 1)  # stdout carries the parent's one JSON document
    with contextlib.suppress(OSError):
        pipe.send(_READY)
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        if os.getppid() != parent:
            return
        pipe.send(attempt(work, job))
