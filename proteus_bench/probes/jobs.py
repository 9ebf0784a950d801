"""State-side jobs: one model and seed each, on worker processes, kept in the run folder and not computed twice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.backends import Settings, opened
from proteus_bench.backends.base import DEFAULT
from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.probes import state
from proteus_bench.probes.memory import memory_of
from proteus_bench.runner.items import make_item, plan_suite
from proteus_bench.runner.models import parse
from proteus_bench.runner.plan import Plan
from proteus_bench.runner.pool import run_jobs
from proteus_bench.store import CellKey, digest, loads_strict, write_json

SCHEMA = "proteus-bench/probe-state@1"
_ABORTING = {3: InvalidFileError, 4: EnvironmentFault}


@dataclass(frozen=True)
class StateJob:
    """Everything a worker needs. ``identity``: hash of what decides the result."""

    path: str
    identity: str
    probe: str
    model: str
    seed: int
    suite: str
    length: int
    contexts: int
    settings: Settings = DEFAULT


def state_jobs(probe: str, plan: Plan, folder: Path, contexts: int) -> list[StateJob]:
    """One job for each method and seed."""
    length = max(length for _, length in plan.suite.counts)
    jobs, settings = [], plan.spec.settings()
    for text, seed in plan.infos:
        record = plan.identity(text, seed)
        kept = {key: record[key] for key in ("checkpoint_sha256", "config_sha256", "tokenizer_sha256", "capacity")}
        what = {
            "probe": probe, "version": state.VERSION, "contexts": contexts, "length": length, "model": kept,
            "split": plan.suite.split, "data_seed": plan.suite.data_seed,
        }  # fmt: skip
        name = CellKey(text, f"state-{probe}", length, seed).file_name
        path = folder / "state" / f"{name}.json"
        jobs.append(StateJob(str(path), digest(what), probe, text, seed, plan.suite.source, length, contexts, settings))
    return jobs


def run_state(job: StateJob) -> None:
    """Compute one job and write its file, unless it stands."""
    if read_state(job) is not None:
        return
    backend = opened(parse(job.model), job.seed, job.settings)
    model = memory_of(backend)
    suite = plan_suite(job.suite)
    found: dict[str, Any] = {"schema": SCHEMA, "identity": job.identity, "model": job.model, "seed": job.seed}
    if model is None:
        write_json(Path(job.path), {**found, "exposes_memory": False, "contexts": []})
        return

    def make(task: str, index: int) -> Any:
        return make_item(suite, task, job.length, backend.tokenizer, index)

    contexts = state.collect(job.probe, model, backend.tokenizer, make, job.contexts)
    about = {"exposes_memory": True, "blocks": model.blocks, "unlocks": [int(t) for t in model.unlocks]}
    write_json(Path(job.path), {**found, **about, "contexts": contexts})


def read_state(job: StateJob) -> dict[str, Any] | None:
    """The finished file of a job; None when there is none, or one of another request."""
    path = Path(job.path)
    if not path.exists():
        return None
    found = loads_strict(path.read_bytes(), str(path))
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or found.get("identity") != job.identity:
        return None
    return found


@dataclass(frozen=True)
class States:
    """Finished files by model, seeds in order. ``failures``: models that could not be traced, and why."""

    by_model: dict[str, list[dict[str, Any]]]
    failures: dict[str, str]
    defects: bool = False


def run_all(jobs: Sequence[StateJob], workers: int) -> States:
    """Run what is missing. A model with a failed job is left out, and said; a full disk or a damaged file ends the run."""
    todo = [job for job in jobs if read_state(job) is None]
    failures: dict[str, str] = {}
    defects = False
    for job, result in run_jobs(run_state, todo, workers, lambda: None):
        if result.error is None:
            print(f"memory of {job.model} seed {job.seed}: {job.contexts} contexts traced", file=sys.stderr)
            continue
        if result.exit_code in _ABORTING:
            raise _ABORTING[result.exit_code](result.error)
        failures[job.model] = result.error
        defects |= bool(result.trace)
        if result.trace:
            print(result.trace, file=sys.stderr)
    found: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        done = read_state(job)
        if done is not None and job.model not in failures:
            found.setdefault(job.model, []).append(done)
    return States(found, failures, defects)
