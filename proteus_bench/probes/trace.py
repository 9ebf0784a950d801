"""Following what was written: the same text twice, with one thing in it exchanged, and how the memories differ from then on.

The difference D of the two memories right after the exchanged tokens is what they wrote. Later tokens are the same in both
texts, so whatever becomes of D was done by later writes: nothing (append-only), shrinking (forgetting, overwriting), or growth
in deeper layers, which write what they read. This needs no knowledge of keys, and holds for any model that shows its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from proteus_bench.probes.memory import MemoryModel, MemoryTensor, difference, effective_rank, energy, inner

SETTLE = 4
"""Tokens after the exchanged ones until D is taken as written: a short convolution or a momentum still writes them."""


@dataclass(frozen=True)
class Swap:
    """From ``start`` on (0-based), ``ids`` stand in the text instead of its own tokens."""

    start: int
    ids: np.ndarray

    @property
    def stop(self) -> int:
        """One past the last exchanged token."""
        return self.start + len(self.ids)


@dataclass(frozen=True)
class Trace:
    """What a text did to a memory. S swaps, M marks (token counts), L layers, E blocks.

    energy and rank ``[M, L, E]``: squared norm of the memory's change since the start, and its effective rank. retained
    ``[S, M, L]``: <D, D_written> / |D_written|^2, NaN before it was written. size ``[S, M, L]``: |D| / |D_written|.
    written ``[S, L]``: |D_written|. sensitivity ``[S, L, E]``: |D|^2 of each block at the end.
    """

    marks: np.ndarray
    energy: np.ndarray
    rank: np.ndarray
    retained: np.ndarray
    size: np.ndarray
    written: np.ndarray
    sensitivity: np.ndarray


def trace(model: MemoryModel, ids: np.ndarray, swaps: Sequence[Swap], marks: Sequence[int], ranks: bool = True) -> Trace:
    """Feed ``ids`` ``[T]`` once with all swaps beside it. ``marks``: token counts at which to look, ascending, the last is T.

    Raises ValueError for a mark or a swap outside the text.
    """
    return _Tracer(model, np.asarray(ids), swaps, marks, ranks).run()


class _Tracer:
    def __init__(
        self, model: MemoryModel, ids: np.ndarray, swaps: Sequence[Swap], marks: Sequence[int], ranks: bool
    ) -> None:
        total = len(ids)
        if not marks or marks[-1] != total or list(marks) != sorted(set(marks)) or marks[0] < 1:
            raise ValueError(f"marks must rise to the text's {total} tokens")
        if any(swap.start < 0 or swap.stop > total or not len(swap.ids) for swap in swaps):
            raise ValueError("a swap lies outside the text")
        self.model, self.ids, self.swaps, self.ranks = model, ids, swaps, ranks
        self.marks = list(marks)
        self.settled = [min(swap.stop + SETTLE, total) for swap in swaps]
        self.start = model.tensors(model.start(1))
        self.layers = 1 + max(tensor.layer for tensor in self.start)
        m, s, layers, blocks = len(marks), len(swaps), self.layers, model.blocks
        self.energy, self.rank = np.zeros((m, layers, blocks)), np.zeros((m, layers, blocks))
        self.retained, self.size = np.full((s, m, layers), np.nan), np.full((s, m, layers), np.nan)
        self.written, self.sensitivity = np.zeros((s, layers)), np.zeros((s, layers, blocks))
        self.reference: dict[int, list[MemoryTensor]] = {}
        self.rows: list[int] = []  # which swap stands in which row after the first

    def run(self) -> Trace:
        state: Any = self.model.start(1)
        cuts = {0, *self.marks, *self.settled}
        cuts |= {edge for swap in self.swaps for edge in (swap.start, swap.stop)}
        edges = sorted(cuts)
        for begin, end in pairwise(edges):
            fresh = [i for i, swap in enumerate(self.swaps) if swap.start == begin]
            if fresh:
                state = self.model.select(state, [*range(1 + len(self.rows)), *(0 for _ in fresh)])
                self.rows += fresh
            state = self.model.feed(state, self._tokens(begin, end))
            self._look(state, end)
        return Trace(
            np.asarray(self.marks), self.energy, self.rank, self.retained, self.size, self.written, self.sensitivity
        )

    def _tokens(self, begin: int, end: int) -> np.ndarray:
        batch = np.repeat(self.ids[None, begin:end], 1 + len(self.rows), 0)
        for row, index in enumerate(self.rows, start=1):
            swap = self.swaps[index]
            if swap.start <= begin < swap.stop:
                batch[row] = swap.ids[begin - swap.start : end - swap.start]
        return batch

    def _look(self, state: Any, at: int) -> None:
        settling = [i for i in self.rows if self.settled[i] == at and i not in self.reference]
        mark = self.marks.index(at) if at in self.marks else None
        if mark is None and not settling:
            return
        tensors = self.model.tensors(state)
        base = [_rows(tensor, slice(0, 1)) for tensor in tensors]
        changed = difference([_rows(tensor, slice(1, None)) for tensor in tensors], base) if self.rows else []
        for index in settling:
            row = self.rows.index(index)
            self.reference[index] = [_rows(tensor, slice(row, row + 1)) for tensor in changed]
            self.written[index] = np.sqrt(inner(self.reference[index], self.reference[index], self.layers)[0])
        if mark is not None:
            self._mark(mark, base, changed)

    def _mark(self, mark: int, base: list[MemoryTensor], changed: list[MemoryTensor]) -> None:
        own = difference(base, self.start)
        self.energy[mark] = energy(own, self.model.blocks, self.layers)[0]
        if self.ranks:
            self.rank[mark] = effective_rank(own, self.model.blocks, self.layers)[0]
        for row, index in enumerate(self.rows):
            if index not in self.reference:
                continue
            mine = [_rows(tensor, slice(row, row + 1)) for tensor in changed]
            norm = self.written[index]
            along = inner(mine, self.reference[index], self.layers)[0]
            length = np.sqrt(inner(mine, mine, self.layers)[0])
            with np.errstate(divide="ignore", invalid="ignore"):
                self.retained[index, mark] = np.where(norm > 0, along / norm**2, np.nan)
                self.size[index, mark] = np.where(norm > 0, length / norm, np.nan)
            if mark == len(self.marks) - 1:
                self.sensitivity[index] = energy(mine, self.model.blocks, self.layers)[0]


def _rows(tensor: MemoryTensor, rows: slice) -> MemoryTensor:
    return MemoryTensor(tensor.layer, tensor.name, tensor.values[rows], tensor.axis, tensor.heads)
