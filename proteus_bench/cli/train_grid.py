"""`train --grid FILE`: one training per process, in the order of the file, until all are in the zoo.

A training writes its state every `--save-every` seconds and its model when it is finished, both whole or not at all, so the
command may be killed at any moment and repeated. A worker ends with the command, however that one ends: its training is
taken up again by the next.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import EnvironmentFault

EVERY_SECONDS = 20.0
HANDOVER_SECONDS = 10.0
"""How long a job waits for a worker of a killed command to be gone."""


def grid_command(
    path: Path, *, out: Path | None, workers: int | None, save_every: float, rate: float | None, own_trunks: bool, dry_run: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Train what is missing. Exit 1 when a training failed, whose error is printed; the others go on.

    Raises RecipeError (exit 3) for a grid that cannot be read, EnvironmentFault (exit 4) for a folder that cannot be
    written or is in use, before any training.
    """
    from proteus_bench.runner.pool import run_jobs
    from proteus_bench.store import FolderLock, prove_writable
    from proteus_models.train_grid import load_grid
    from proteus_models.zoo import zoo_root

    zoo = out if out is not None else Path("runs-out") / "train" / path.stem
    jobs = load_grid(path, zoo, () if own_trunks else (zoo_root(),))
    workers = workers or len(os.sched_getaffinity(0))
    if dry_run:
        return _plan(jobs, workers, rate, as_json)
    prove_writable(zoo / ".work")
    failed: dict[str, str] = {}
    with FolderLock(zoo / ".work"):
        waiting = [job for job in jobs if job.missing]
        ended = len(jobs) - len(waiting)
        _line(f"{len(waiting)} of {len(jobs)} trainings to do, {min(workers, len(waiting))} at a time")
        with closing(cast(Any, run_jobs(partial(train_job, save_every), waiting, workers, lambda: None))) as outcomes:
            for job, outcome in outcomes:
                ended += 1
                if outcome.error is not None:
                    failed[job.label] = outcome.error
                    sys.stderr.write(outcome.trace)
                _line(f"[{ended}/{len(jobs)}] {job.label}: {outcome.error or 'in the zoo: ' + ', '.join(job.branches)}")
    if as_json:
        print_json({"zoo": str(zoo), "trainings": len(jobs), "failed": failed})
    else:
        print(f"{len(jobs) - len(failed)} of {len(jobs)} trainings are in {zoo}")
    return 1 if failed else 0


def train_job(save_every: float, job: Any) -> None:
    """One training, in a worker or in the command itself."""
    from proteus_bench.store import FolderLock
    from proteus_models import grid

    _end_with_the_command()
    job.work.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        _enter(held, FolderLock(job.work))
        grid.train_recipe(
            job.recipe, job.seed, job.zoo / ".work", zoo=job.zoo, only=job.branches, report=Lines(job.label),
            save_every=save_every, trunks=job.trunks,
        )  # fmt: skip


class Lines:
    """A line when a phase begins, one every `EVERY_SECONDS`, and one when it ends."""

    def __init__(self, label: str) -> None:
        self.label, self.said, self.at = label, "", 0.0

    def __call__(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if row["model"] == self.said and row["status"] == "running" and now - self.at < EVERY_SECONDS:
            return
        self.said, self.at = row["model"], now
        _line(
            f"{self.label} | {row['model']} | step {row['step']:,} | length {row['length']:,} | {row['tokens'] / 1e6:.2f}M tokens"
            f" | loss {row['answer_loss']:.3f} | accuracy {row['digit_accuracy']:.3f} | {row['tokens_per_second']:,} tokens/s"
            + ("" if row["status"] == "running" else f" | {row['status']}")
        )


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _enter(held: ExitStack, lock: AbstractContextManager[Any]) -> None:
    """Take the lock, again and again while it is in use: a killed command's worker may still be ending."""
    stop = time.monotonic() + HANDOVER_SECONDS
    while True:
        try:
            held.enter_context(lock)
            return
        except EnvironmentFault:
            if time.monotonic() > stop:
                raise
            time.sleep(0.1)


def _end_with_the_command() -> None:
    parent = multiprocessing.parent_process()
    if parent is None or any(t.name == _WATCH for t in threading.enumerate()):
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name=_WATCH, daemon=True).start()


_WATCH = "ends with the command"


def _plan(jobs: list[Any], workers: int, rate: float | None, as_json: bool) -> int:
    rows = [
        {
            "recipe": job.recipe.name, "recipe_sha256": job.recipe.sha256, "seed": job.seed, "branches": list(job.branches),
            "missing": list(job.missing), "tokens_left": job.tokens_left({other.trunk for other in jobs[:n] if other.missing}),
        } for n, job in enumerate(jobs)
    ]  # fmt: skip
    left = sum(row["tokens_left"] for row in rows)
    plan: dict[str, Any] = {"trainings": rows, "workers": workers, "tokens_left": left}
    if rate is not None:
        plan["hours"] = round(left / (rate * workers) / 3600, 2)
    if as_json:
        print_json(plan)
        return 0
    cells = []
    for row in rows:
        all_of, missing = len(row["branches"]), len(row["missing"])
        cells.append((row["recipe"], row["recipe_sha256"][:8], row["seed"], all_of - missing, all_of, f"{row['tokens_left']:,}"))
    print_table("", ("recipe", "hash", "seed", "in the zoo", "of", "tokens left"), cells, right=(2, 3, 4, 5))
    print(f"{left:,} tokens left at most" + (f", {plan['hours']} hours with {workers} workers" if rate is not None else ""))
    return 0
