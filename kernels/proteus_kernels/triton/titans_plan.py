"""How a pass of linear Titans is launched: pieces, phases, and the constants and grid of every kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
import triton
from torch import Tensor

from proteus_kernels.matrix import AXIS_DIM
from proteus_kernels.triton.chunks import chunk_table
from proteus_kernels.triton.tuned import Products, launch, products, tile

MAX_INNER = 64
"""Positions of an inner chunk at most: a piece's C x C matrices live in registers."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Pieces first..last of every batch row, on a tile of `rows` key rows."""

    first: int
    last: int
    rows: int
    begins: bool
    """Some piece begins an inner chunk."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One pass: tables on the device, phases, and what is constant in every launch."""

    tables: tuple[Tensor, Tensor, Tensor]
    """The rows of a `ChunkTable`; which pieces begin an inner chunk; and for every coordinate of the axis the piece from
    which on it is open, or rather the begin of its inner chunk, where the anchor is known (the last one if it stays locked).
    """
    pieces: int
    each: int
    """Pieces of all batch rows, and of one."""
    phases: tuple[Phase, ...]
    split: bool
    """Some piece goes on in an inner chunk that was begun before: anchors are carried along."""
    kind: Products
    axis: str
    shape: tuple[int, ...]
    """B, H, K, V of the state."""
    positions: int
    """B T"""
    chunk: int
    """Rows of a piece's tile, a power of two from 16 up."""

    @property
    def scale(self) -> float:
        return float(self.shape[2] ** -0.5)

    def saved(self) -> Tensor:
        """Room for the state of every piece, [pieces, H, K, V]; only what is open is ever written or read."""
        _, h, k, v = self.shape
        return torch.empty(self.pieces, h, k, v, dtype=self.kind.stored, device=self.tables[0].device)

    def each_piece(self, kernel: Any, *arguments: Any) -> None:
        """A program for every piece and head."""
        self._launch(kernel, lambda _: (self.pieces, self.shape[1]), arguments)

    def each_tile(self, kernel: Any, *arguments: Any) -> None:
        """A program for every piece, head and tile of V."""
        _, h, _, v = self.shape
        self._launch(kernel, lambda columns: (self.pieces, h, triton.cdiv(v, columns)), arguments)

    def along_time(self, kernel: Any, phase: Phase, *arguments: Any) -> None:
        """A program for every tile of V, head and batch row, which walks over the pieces of the phase."""
        b, h, _, v = self.shape
        arguments = (*arguments, phase.first, phase.last, self.each)
        self._launch(kernel, lambda columns: (triton.cdiv(v, columns), h, b), arguments, phase.rows)

    def _launch(
        self, kernel: Any, grid: Callable[[int], tuple[int, ...]], arguments: Sequence[Any], rows: int = 0
    ) -> None:
        """`grid` takes the columns of a tile of V; `rows` are the key rows in a tile where they are not all."""
        _, h, k, v = self.shape
        options = launch(kernel.fn.__name__, self.tables[0].device, rows or k, v)
        values = {
            "N": self.positions, "H": h, "K": k, "V": v, "KB": rows, "BK": options.BK, "BV": options.BV, "C": self.chunk,
            "AXIS": self.axis, "SPLIT": self.split, "PREC": self.kind.precision, "DOT": self.kind.dot,
        }  # fmt: skip
        named = {n: x for n, x in values.items() if n in kernel.arg_names}
        kernel[grid(options.BV)](*arguments, **named, num_warps=options.num_warps, num_stages=options.num_stages)


def plan(
    shape: Sequence[int],
    length: int,
    *,
    axis: str,
    active: Sequence[int] | None,
    inner: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Plan:
    """The plan of a pass over `length` positions of a state [B, H, K, V] for inputs of `dtype`; cached."""
    counts = None if active is None else tuple(active)
    return _plan(tuple(shape), length, axis, counts, inner, offset, dtype, str(device))


@lru_cache(maxsize=64)
def _plan(
    shape: tuple[int, ...],
    length: int,
    axis: str,
    active: tuple[int, ...] | None,
    inner: int,
    offset: int,
    dtype: torch.dtype,
    device: str,
) -> Plan:
    b, k, kind = shape[0], shape[2], products(dtype)
    assert kind is not None, "refused before"
    cut = chunk_table(batch=b, length=length, dim=shape[AXIS_DIM[axis]], size=inner, active=active, offset=offset)
    each = cut.chunks // b
    opened, begins = cut.table[:each, 2].tolist(), cut.begins_cell[:each].tolist()
    phases, first = [], 0
    for rows, run in groupby(tile(n if axis == "key" else k) for n in opened):
        last = first + len(list(run))
        phases.append(Phase(first=first, last=last, rows=rows, begins=any(begins[first:last])))
        first = last
    return Plan(
        tables=(cut.table.to(device), cut.begins_cell.to(device), _opens(opened, begins, shape[AXIS_DIM[axis]]).to(device)),
        pieces=cut.chunks, each=each, phases=tuple(phases), split=not all(begins), kind=kind, axis=axis, shape=shape,
        positions=b * length, chunk=tile(inner),
    )  # fmt: skip


def _opens(opened: Sequence[int], begins: Sequence[int], dim: int) -> Tensor:
    starts = [max((i for i in range(p + 1) if begins[i]), default=0) for p in range(len(opened))]
    first = [next((p for p, n in enumerate(opened) if n > c), len(opened) - 1) for c in range(dim)]
    return torch.tensor([starts[p] for p in first], dtype=torch.int32)
