"""Capacity: a schedule on one axis of a memory, with every choice that the paper leaves open as a named field.

Source: Proteus, arXiv 2608.16844, eq. 8-11, extended to gates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from proteus_bench.errors import nearest
from proteus_bench.schedules.adaptive import DataDependent
from proteus_bench.schedules.base import CapacityError, Schedule
from proteus_bench.schedules.builtin import BUILTIN, Static

Axis = Literal["key", "value", "head", "hidden", "row"]
Gate = Literal["both", "read", "write", "none"]
KeyNorm = Literal["before_mask", "after_mask", "compensated"]
Read = Literal["post", "pre"]
Origin = Literal["window", "document"]
M0 = Literal["zero", "learned"]
DecayLocked = Literal["masked", "unmasked"]

CHOICES: dict[str, tuple[str, ...]] = {
    "axis": get_args(Axis),
    "gate": get_args(Gate),
    "key_norm": get_args(KeyNorm),
    "read": get_args(Read),
    "origin": get_args(Origin),
    "m0": get_args(M0),
    "decay_locked": get_args(DecayLocked),
}


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Schedule + axis + gate + the open choices. Kernels never see it: models turn it into active coordinates.

    axis: the memory axis that is cut into blocks. gate: what the mask acts on (reads, writes, both, none).
    key_norm: key normalisation before the mask (default), after it, or scaled by sqrt(E/k). read: output after (post)
    or before the write of the same position. origin: where t starts (window or packed document). m0: start state.
    decay_locked: whether forgetting is masked on locked coordinates (masked keeps the lock invariant).
    """

    schedule: Schedule
    axis: Axis = "key"
    gate: Gate = "both"
    key_norm: KeyNorm = "before_mask"
    read: Read = "post"
    origin: Origin = "window"
    m0: M0 = "zero"
    decay_locked: DecayLocked = "masked"

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise CapacityError(f"schedule must be a Schedule, not {type(self.schedule).__name__}")
        for field, allowed in CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                raise CapacityError(f"unknown {field} {value!r}{nearest(str(value), allowed)}")

    @classmethod
    def static(cls, axis: Axis = "key", span: int = 8192, **choices: Any) -> Capacity:
        """The base model: one block, open from the start."""
        return cls(schedule=Static(blocks=1, span=span), axis=axis, **choices)

    @property
    def blocks(self) -> int:
        """E, the number of blocks."""
        return self.schedule.blocks

    @property
    def span(self) -> int:
        """N, positions over which the schedule opens."""
        return self.schedule.span

    @property
    def is_static(self) -> bool:
        """Whether this is the base model whatever the input: one block, a static schedule, or no gate."""
        return self.blocks == 1 or self.gate == "none" or isinstance(self.schedule, Static)

    @property
    def is_data_dependent(self) -> bool:
        """Whether k(t) is known only while a model runs."""
        return isinstance(self.schedule, DataDependent) and not self.is_static

    def block_size(self, dim: int) -> int:
        """d = floor(dim / E) coordinates a block. Raises CapacityError when ``dim`` is smaller than E."""
        if dim < self.blocks:
            raise CapacityError(f"axis {self.axis} has {dim} coordinates, fewer than {self.blocks} blocks")
        return dim // self.blocks

    def active_coords(self, k: int, dim: int) -> int:
        """Active coordinates with ``k`` open blocks: k*d, or ``dim`` once k = E (the last block takes the rest)."""
        if not 1 <= k <= self.blocks:
            raise CapacityError(f"k must be between 1 and {self.blocks}, got {k}")
        return dim if k == self.blocks else k * self.block_size(dim)

    def active_coords_range(self, start: int, n: int, dim: int) -> np.ndarray:
        """Active coordinates at positions start+1 .. start+n of an axis of ``dim``. int64 ``[n]``."""
        k_N = self.schedule.active_blocks_range(start, n)
        return np.where(k_N == self.blocks, dim, k_N * self.block_size(dim))

    def check_axis(self, dim: int) -> None:
        """Raise CapacityError unless ``dim`` is a multiple of E.

        The definitions allow a remainder; the fast paths and the budget arithmetic do not, so models call this.
        """
        if dim % self.blocks or self.block_size(dim) == 0:
            raise CapacityError(f"{self.blocks} blocks do not divide the {self.axis} axis of {dim} coordinates")

    def mean_active_fraction(self, length: int | None = None) -> float:
        """Mean of k/E over the first ``length`` positions (the span by default), in (0, 1]."""
        return self.schedule.mean_active_fraction(length)

    def segments(self, start: int, n: int) -> list[tuple[int, int, int]]:
        """Maximal runs of constant k over positions start+1 .. start+n: ``(offset, length, k)``, offset from 0."""
        k_N = self.schedule.active_blocks_range(start, n)
        if n == 0:
            return []
        starts = np.concatenate(([0], np.flatnonzero(np.diff(k_N)) + 1))
        ends = np.concatenate((starts[1:], [n]))
        return [(int(a), int(b - a), int(k_N[a])) for a, b in zip(starts, ends, strict=True)]

    def with_span(self, n: int) -> Capacity:
        """The same capacity over another span."""
        return dataclasses.replace(self, schedule=self.schedule.with_span(n))

    def as_dict(self) -> dict[str, Any]:
        """Plain values only, all choices written out; `from_dict` is its inverse."""
        head = {"schedule": self.schedule.label, "params": self.schedule.params()}
        choices = {field: getattr(self, field) for field in CHOICES}
        return {**head, "blocks": self.blocks, "span": self.span, **choices}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], schedules: Mapping[str, type[Schedule]] | None = None) -> Capacity:
        """Rebuild from `as_dict`. Unknown keys, names and values raise CapacityError with the nearest name.

        schedules: name -> class; the built-in ones when None (pass the registry's to accept plugins).
        """
        table = BUILTIN if schedules is None else schedules
        known = ("schedule", "params", "blocks", "span", *CHOICES)
        for key in data:
            if key not in known:
                raise CapacityError(f"unknown capacity field {key!r}{nearest(str(key), known)}")
        if "schedule" not in data:
            raise CapacityError("a capacity needs a schedule")
        name = data["schedule"]
        if not isinstance(name, str) or name not in table:
            raise CapacityError(f"unknown schedule {name!r}{nearest(str(name), table)}")
        shape = {key: data[key] for key in ("blocks", "span") if key in data}
        schedule = build_schedule(table[name], {**shape, **dict(data.get("params") or {})})
        return cls(schedule=schedule, **{key: data[key] for key in CHOICES if key in data})

    def describe(self) -> str:
        """One line with every choice, for tables, cards and logs."""
        params = ",".join(f"{key}={value}" for key, value in self.schedule.params().items())
        name = f"{self.schedule.label}({params})" if params else self.schedule.label
        choices = " ".join(f"{field}={getattr(self, field)}" for field in CHOICES)
        budget = self.mean_active_fraction()
        return f"{name} blocks={self.blocks} span={self.span} {choices} mean_active_fraction={budget:.5g}"

    def equivalent_gates(
        self, memory: Literal["matrix", "mlp"], carried_state: bool = False
    ) -> list[tuple[Gate, Gate]]:
        """`equivalent_gates` for this capacity."""
        return equivalent_gates(
            self.axis,
            self.m0,
            self.key_norm,
            memory,
            carried_state,
            monotone=self.schedule.monotone,
            static=self.blocks == 1 or isinstance(self.schedule, Static),
        )


def equivalent_gates(
    axis: Axis,
    m0: M0,
    key_norm: KeyNorm,
    memory: Literal["matrix", "mlp"],
    carried_state: bool,
    *,
    monotone: bool = True,
    static: bool = False,
) -> list[tuple[Gate, Gate]]:
    """Pairs of gates that are the same function, so that a run does not print one result twice.

    With one block (or a static schedule) all gates are equal. Otherwise ``write`` equals ``both`` when locked
    coordinates are zero for certain: zero start, no carried state, a matrix memory, and blocks that never close. On the
    key axis the key must also be normalised before the mask: after it, the two gates predict with different keys. The
    other axes leave keys whole, so key_norm cannot matter there.
    """
    if static:
        return list(combinations(get_args(Gate), 2))
    zero_where_locked = m0 == "zero" and not carried_state and memory == "matrix" and monotone
    same_keys = key_norm == "before_mask" or axis != "key"
    return [("both", "write")] if zero_where_locked and same_keys else []


def build_schedule(cls: type[Schedule], values: Mapping[str, Any]) -> Schedule:
    """Construct ``cls`` from plain values, refusing unknown parameters with the nearest name (CapacityError)."""
    fields = [field.name for field in dataclasses.fields(cls)]
    for key in values:
        if key not in fields:
            raise CapacityError(f"unknown parameter {key!r} of schedule {cls.name}{nearest(str(key), fields)}")
    return cls(**values)
