"""Equal capacity? Two schedules are compared at equal, or at stated, mean active fraction; and gates that are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proteus_bench.compare.load import Candidate
from proteus_bench.errors import BenchError
from proteus_bench.schedules import Capacity
from proteus_bench.schedules.opened import active_share

# Fractions that differ by less are equal budgets: one percent of the state, below what rounding of unlock times gives.
TOLERANCE = 0.01
# A schedule that closes blocks again is looked at position by position; no real context is longer.
MAX_POSITIONS = 1 << 24


@dataclass(frozen=True)
class Budget:
    """Mean active fraction in (0, 1]: over the schedule's span, and by length over the contexts that were read.

    Measured on the items where the data opened the blocks. None where it is not known: a schedule that is not installed,
    or a span that no context filled.
    """

    span: float | None
    here: dict[int, float | None]


def budget_of(candidate: Candidate) -> Budget:
    """The budget of a method over the lengths it was run on: measured where the data opened the blocks."""
    capacity = candidate.evaluated
    here = {length: _fraction(capacity, length, candidate.traces.get(length, ())) for length in candidate.lengths}
    if capacity is None or not capacity.is_data_dependent:
        return Budget(_fraction(capacity, None, ()), here)
    far = [length for length in candidate.lengths if length >= capacity.span]
    traces = candidate.traces.get(far[0], ()) if far else ()
    return Budget(_fraction(capacity, capacity.span, traces), here)


def _fraction(capacity: Capacity | None, length: int | None, traces: Sequence[tuple[int, ...]]) -> float | None:
    if capacity is None:
        return None
    if capacity.is_static:
        return 1.0
    if capacity.is_data_dependent:
        return active_share(capacity, length, traces) if traces and length else None
    if not capacity.schedule.monotone and (length or capacity.span) > MAX_POSITIONS:
        return None
    try:
        return float(capacity.mean_active_fraction(length))
    except (BenchError, NotImplementedError, ValueError):
        return None


def budget_words(a: Candidate, b: Candidate) -> tuple[str, bool | None]:
    """One line on whether a and b had equal capacity, and the answer (None: not known)."""
    left, right = budget_of(a), budget_of(b)
    lengths = sorted(left.here.keys() & right.here.keys())
    places = [(f"over {length:,} tokens", left.here[length], right.here[length]) for length in lengths]
    if not places or any(x is None or y is None for _, x, y in places):
        return f"capacity of {a.name} and {b.name}: not known, so not equal by construction", None
    places.append(("over the span", left.span, right.span))
    known = [(where, x, y) for where, x, y in places if x is not None and y is not None]
    unequal = [(where, x, y) for where, x, y in known if abs(x - y) > TOLERANCE]
    size = _size_words(a, b)
    if not unequal:
        text = ", ".join(f"{100 * x:.1f}% {where}" for where, x, _ in known)
        return f"equal capacity: {a.name} and {b.name}: open on average {text}{size}", not size
    parts = ", ".join(
        f"{100 * x:.1f}% against {100 * y:.1f}% {where}"
        if (where, x, y) in unequal
        else f"both {100 * x:.1f}% {where}"
        for where, x, y in known
    )
    return f"budgets differ: {a.name} against {b.name}: open on average {parts}{size}", False


def _size_words(a: Candidate, b: Candidate) -> str:
    parts = [
        f"{name} {x:,} against {y:,}"
        for name, x, y in (
            ("state bytes", a.first.state_bytes, b.first.state_bytes),
            ("parameters", a.first.n_params, b.first.n_params),
        )
        if x != y
    ]
    return f"; {', '.join(parts)}" if parts else ""


def merge_equivalent(candidates: Sequence[Candidate]) -> tuple[list[Candidate], dict[str, str], list[str]]:
    """Methods that are one function are shown once; the one with more seeds stays.

    Returns (those shown, names that are not shown with the name that stands for them, notes).
    """
    names: dict[str, str] = {}
    kept: list[Candidate] = []
    notes: list[str] = []
    for candidate in candidates:
        twin = next((other for other in kept if other.suite == candidate.suite and _one(other, candidate)), None)
        if twin is None:
            kept.append(candidate)
            continue
        shown, hidden = twin, candidate
        if len(candidate.seeds) > len(twin.seeds):
            shown, hidden = candidate, twin
            kept[kept.index(twin)] = candidate
        names = {name: shown.name if held == hidden.name else held for name, held in names.items()}
        names[hidden.name] = names[hidden.label] = shown.name
        notes.append(f"{hidden.name} is the same function as {shown.name} here; it is shown once")
    return kept, names, notes


def _one(a: Candidate, b: Candidate) -> bool:
    """Equal weights, and capacities that act alike on every position that was read."""
    shared = a.checkpoints.keys() & b.checkpoints.keys()
    if a.backbone != b.backbone or not shared or any(a.checkpoints[s] != b.checkpoints[s] for s in shared):
        return False
    if any(a.first.identity.get(k) != b.first.identity.get(k) for k in ("dtype", "device", "backend", "batch_tokens")):
        return False
    left, right = a.evaluated, b.evaluated
    if left is None or right is None:
        return a.capacity == b.capacity
    plain = {"schedule", "params", "blocks", "span", "gate"}
    choices = [{k: v for k, v in c.as_dict().items() if k not in plain} for c in (left, right)]
    if left.is_static and right.is_static:
        return all(choices[0][key] == choices[1][key] for key in ("key_norm", "read", "origin", "m0"))
    if choices[0] != choices[1] or left.blocks != right.blocks:
        return False
    gates = {left.gate, right.gate}
    memory: Any = a.memory
    pairs = [set(pair) for c in (left, right) for pair in c.equivalent_gates(memory)]
    return (len(gates) == 1 or gates in pairs) and _same_steps(left, right, max((*a.lengths, *b.lengths), default=0))


def _same_steps(a: Capacity, b: Capacity, length: int) -> bool:
    """Whether the same blocks are open at every position up to ``length``."""
    if a.schedule == b.schedule:
        return True
    try:
        if a.schedule.monotone and b.schedule.monotone:
            seen = [[min(t, length + 1) for t in c.schedule.unlock_times()] for c in (a, b)]
            return seen[0] == seen[1]
        if length > MAX_POSITIONS:
            return False
        left, right = (c.schedule.active_blocks_range(0, length) for c in (a, b))
        return bool(np.array_equal(left, right))
    except (BenchError, NotImplementedError, ValueError):
        return False

