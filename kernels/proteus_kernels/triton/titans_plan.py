"""How a pass of linear Titans is launched: pieces, phases, and the constants and grid of every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from proteus_kernels.triton.chunks import chunk_table

MAX_INNER = 64
"""Positions of an inner chunk at most: a piece's C x C matrices live in registers."""
PRODUCTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
"""Operands of products by type of the inputs; sums are float32."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Columns of V and rows of K in a tile (BK: of the kernels that walk over K), and the launch options."""

    BV: int
    BK: int = 0
    num_warps: int = 4
    num_stages: int = 2


TILES = {
    "gates_forward": Tile(BV=0),
    "states_forward": Tile(BV=32),
    "outputs_forward": Tile(BV=64, BK=32),
    "local_backward": Tile(BV=64, BK=32),
    "states_backward": Tile(BV=32),
    "inputs_backward": Tile(BV=32, BK=32, num_warps=8),
    "gates_backward": Tile(BV=0, num_warps=8),
}
"""By kernel; chosen so that nothing is spilled for sm_80, sm_90 and sm_100 at K = V = 128 (kernels/bench/aot.md)."""


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

    table: Tensor
    begins: Tensor
    each: int
    """Pieces of one batch row."""
    phases: tuple[Phase, ...]
    split: bool
    """Some piece goes on in an inner chunk that was begun before: anchors are carried along."""
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

    @property
    def saved_shape(self) -> tuple[int, int, int, int]:
        """A state for every piece: [pieces, H, K, V]."""
        _, h, k, v = self.shape
        return self.table.shape[0], h, k, v

    def square(self, like: Tensor) -> Tensor:
        """A C x C matrix for every piece and head."""
        return like.new_empty(*self.saved_shape[:2], self.chunk, self.chunk)

    def each_piece(self, kernel: Any, like: Tensor, *arguments: Tensor | float) -> None:
        """A program for every piece and head."""
        self._launch(kernel, like, (self.table.shape[0], self.shape[1]), arguments)

    def each_tile(self, kernel: Any, like: Tensor, *arguments: Tensor | float) -> None:
        """A program for every piece, head and tile of V."""
        tiles = triton.cdiv(self.shape[3], self._columns(kernel))
        self._launch(kernel, like, (self.table.shape[0], self.shape[1], tiles), arguments)

    def along_time(self, kernel: Any, like: Tensor, phase: Phase, *arguments: Tensor | float) -> None:
        """A program for every tile of V, head and batch row, which walks over the pieces of the phase."""
        b, h, _, v = self.shape
        grid = (triton.cdiv(v, self._columns(kernel)), h, b)
        self._launch(kernel, like, grid, (*arguments, phase.first, phase.last, self.each), KB=phase.rows)

    def _columns(self, kernel: Any) -> int:
        return min(TILES[_name(kernel)].BV, _tile(self.shape[3]))

    def _launch(self, kernel: Any, like: Tensor, grid: tuple[int, ...], arguments: Sequence[Any], **more: int) -> None:
        _, h, k, v = self.shape
        tile = TILES[_name(kernel)]
        values = {
            "N": self.positions, "H": h, "K": k, "V": v, "BK": min(tile.BK, _tile(k)), "BV": self._columns(kernel),
            "C": self.chunk, "AXIS": self.axis, "SPLIT": self.split, "PREC": precision(like.dtype),
            "DOT": tl.float32 if triton.knobs.runtime.interpret else PRODUCTS[like.dtype], **more,
        }  # fmt: skip
        named = {n: x for n, x in values.items() if n in kernel.arg_names}
        kernel[grid](*arguments, **named, num_warps=tile.num_warps, num_stages=tile.num_stages)


def precision(dtype: torch.dtype) -> str:
    """Of products of float32 operands: three passes keep float32 inputs exact, one is finer than half-precision inputs."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


def _name(kernel: Any) -> str:
    return str(kernel.fn.__name__)


def _tile(n: int) -> int:
    """The power of two that holds n coordinates, at least what a product takes."""
    return max(16, triton.next_power_of_2(n))


def plan(
    shape: Sequence[int], length: int, *, axis: str, active: Sequence[int] | None, inner: int, offset: int, device: torch.device
) -> Plan:
    """The plan of a pass over `length` positions of a state [B, H, K, V]; cached."""
    counts = None if active is None else tuple(active)
    return _plan(tuple(shape), length, axis, counts, inner, offset, str(device))


@lru_cache(maxsize=64)
def _plan(
    shape: tuple[int, ...], length: int, axis: str, active: tuple[int, ...] | None, inner: int, offset: int, device: str
) -> Plan:
    b, h, k, v = shape
    dim = {"head": h, "key": k, "value": v}[axis]
    cut = chunk_table(batch=b, length=length, dim=dim, size=inner, active=active, offset=offset)
    each = cut.chunks // b
    opened, begins = cut.table[:each, 2].tolist(), cut.begins_cell[:each].tolist()
    phases, first = [], 0
    for rows, run in groupby(_tile(n if axis == "key" else k) for n in opened):
        last = first + len(list(run))
        phases.append(Phase(first=first, last=last, rows=rows, begins=any(begins[first:last])))
        first = last
    return Plan(
        table=cut.table.to(device), begins=cut.begins_cell.to(device), each=each, phases=tuple(phases),
        split=not all(begins), axis=axis, shape=shape, positions=b * length, chunk=_tile(inner),
    )  # fmt: skip
