"""The chunk table: how a kernel sees raggedness, packed documents and a schedule, all as one thing.

Positions of a batch are flat: row b, position t is b T + t, so a batch is a packing of equal documents and every kernel
knows only packed sequences. Time is cut wherever something changes: at the start of a sequence, where the number of open
coordinates changes, and after `size` positions. Inside a chunk nothing changes then, so a kernel reads one row

    table[c] = (first flat position, positions, open coordinates, sequence)

and treats rows >= positions and coordinates >= open as absent. `first[s] : first[s + 1]` are the chunks of sequence s, in
order; the state tensors have one entry a sequence.

A rule whose result depends on where its chunks begin (Titans takes gradients at the start of an inner chunk) asks for a
fixed grid: with `offset` the first position of every sequence stands `offset` positions into a grid cell of `size`, and
chunks end where a cell ends. An unlock still cuts; `begins_cell` tells the chunks that open a cell from those that go on.
Without it (None) the count starts anew at every cut, which makes fewer chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from proteus_kernels.masks import segments


@dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """int32 tensors: table [chunks, 4], first [sequences + 1], begins_cell [chunks]; no chunk is longer than size."""

    table: Tensor
    first: Tensor
    begins_cell: Tensor
    size: int

    @property
    def chunks(self) -> int:
        return self.table.shape[0]

    @property
    def sequences(self) -> int:
        return self.first.shape[0] - 1


def chunk_table(
    *,
    batch: int,
    length: int,
    dim: int,
    size: int,
    active: Sequence[int] | None = None,
    cu_seqlens: Sequence[int] | None = None,
    offset: int | None = None,
    device: torch.device | str = "cpu",
) -> ChunkTable:
    """The table of a [batch, length] pass; cached, so a training loop builds and uploads it once.

    `active` has one count a position, for every row alike; `dim` is the count when there is none. `cu_seqlens` are the
    documents' bounds 0 = c_0 < c_1 < .. = length of ONE row. ValueError when they are not, or with a batch beside them.
    """
    bounds = tuple(int(c) for c in cu_seqlens) if cu_seqlens is not None else (0, length)
    if cu_seqlens is not None and batch != 1:
        raise ValueError(f"packed documents are one row: cu_seqlens with a batch of {batch}")
    if bounds[0] != 0 or bounds[-1] != length or any(a >= b for a, b in pairwise(bounds)):
        raise ValueError(f"cu_seqlens must rise from 0 to {length}, got {list(bounds)}")
    counts = None if active is None else tuple(active)
    if counts is not None and len(counts) != length:
        raise ValueError(f"active has {len(counts)} entries for {length} positions")
    return _built(batch, length, dim, size, counts, bounds, offset, str(device))


@lru_cache(maxsize=64)
def _built(
    batch: int,
    length: int,
    dim: int,
    size: int,
    active: tuple[int, ...] | None,
    bounds: tuple[int, ...],
    offset: int | None,
    device: str,
) -> ChunkTable:
    for n in set(active or ()):
        if not 0 < n <= dim:
            raise ValueError(f"active coordinates must lie in 1..{dim}, got {n}")
    rows, first, begins = [], [0], []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        counts = None if active is None else active[begin:end]
        for start, stop, n in segments(counts, end - begin, dim):
            for at, to in _cells(start, stop, size, offset):
                rows.append((begin + at, to - at, n, number))
                begins.append(offset is None or (at + offset) % size == 0)
        first.append(len(rows))
    # one row's table, then the same for every further row of the batch
    one, steps = torch.tensor(rows, dtype=torch.int32), torch.arange(batch, dtype=torch.int32)[:, None]
    shift = torch.tensor([length, 0, 0, len(bounds) - 1], dtype=torch.int32)
    table = (one[None] + steps[:, :, None] * shift).flatten(0, 1)
    starts = (torch.tensor(first[:-1], dtype=torch.int32) + steps * len(rows)).flatten()
    ends = torch.cat([starts, torch.tensor([batch * len(rows)], dtype=torch.int32)])
    cell = torch.tensor(begins, dtype=torch.int32).repeat(batch)
    return ChunkTable(table=table.to(device), first=ends.to(device), begins_cell=cell.to(device), size=size)


def _cells(start: int, stop: int, size: int, offset: int | None) -> Iterator[tuple[int, int]]:
    """[start, stop) cut after every `size` positions, or at the ends of grid cells."""
    while start < stop:
        room = size if offset is None else size - (start + offset) % size
        yield start, min(start + room, stop)
        start += room
