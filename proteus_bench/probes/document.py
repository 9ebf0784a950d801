"""probe.json: everything that a probe measured, from which its report is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from proteus_bench.probes import measures as m
from proteus_bench.probes.gates import GateComparison
from proteus_bench.probes.jobs import States
from proteus_bench.probes.state_measures import courses, state_measures
from proteus_bench.probes.text import Record
from proteus_bench.runner.plan import Plan

SCHEMA = "proteus-bench/probe@1"


def probe_document(
    probe: str,
    plan: Plan,
    run_id: str,
    found: Sequence[Record],
    states: States,
    gates: GateComparison | None = None,
) -> dict[str, Any]:
    """Plain values, no clock in it: the same measurement gives the same bytes."""
    rows = [row for row in m.common(found) if row is not None]
    rows += [row for row in m.capacity(found) if row is not None] if m.loads_of(found) else []
    effects = m.interference(found)
    rows += effects + m.interference_contrasts(found)
    traced = states.by_model
    shown = {name: jobs for name, jobs in traced.items() if all(job["exposes_memory"] for job in jobs)}
    contexts = {name: [job["contexts"] for job in jobs] for name, jobs in shown.items()}
    unlocks = {name: jobs[0]["unlocks"] for name, jobs in shown.items()}
    notes = [*plan.notes]
    notes += [f"{name} does not expose its memory: the text side only" for name in traced if name not in shown]
    notes += [f"the memory of {name} was not traced: {why}" for name, why in states.failures.items()]
    return {
        "schema": SCHEMA,
        "probe": probe,
        "run_id": run_id,
        "suite": plan.suite.block(),
        "lengths": sorted({length for _, length in plan.suite.counts}),
        "methods": [_method(plan, text) for text in m.models_of(found)],
        "measures": rows + state_measures(contexts, unlocks),
        "overload": m.overload_points(found) if len(m.loads_of(found)) > 2 else [],
        "gates": None if gates is None else _gates(gates),
        "courses": courses(contexts, unlocks),
        "sentences": m.sentences(effects),
        "notes": notes,
    }


def _method(plan: Plan, text: str) -> dict[str, Any]:
    method = next(method for method in plan.methods if method.text == text)
    info = plan.infos[text, method.seeds[0]]
    return {
        "model": text,
        "seeds": list(method.seeds),
        "trained_schedule": info.trained_schedule,
        "train_length": info.train_length,
        "n_params": info.n_params,
        "state_bytes": info.state_bytes,
        "capacity": info.capacity,
        "describe": method.weights.capacity.describe(),
    }


def _gates(found: GateComparison) -> dict[str, Any]:
    def finite(row: dict[str, Any]) -> dict[str, Any]:
        return {k: None if isinstance(v, float) and v == float("inf") else v for k, v in row.items()}

    return {
        "gates": list(found.gates),
        "refused": found.refused,
        "differences": [finite(asdict(d)) for d in found.differences],
        "classes": [list(group) for group in found.classes()],
        "classes_carried": [list(group) for group in found.classes(carried=True)],
    }
