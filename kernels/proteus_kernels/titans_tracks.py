"""Buffers of a run of inner chunks, with the views that products need made once and not once a chunk.

A loop over chunks that slices, transposes and allocates spends a third of its time there. Here one `unbind` makes a view
for every chunk, and the loop writes into scratch that stays in the cache.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

Views = tuple[Tensor, ...]


class Track:
    """Rows of every position: data [m, G, C, D], and tuples of views indexed by chunk.

    A block is c of the C positions; the blocks of a chunk stay in order. Scratch holds m = 1 chunk, `repeat` times seen.
    """

    def __init__(self, data: Tensor, blocks: int, repeat: int = 1) -> None:
        self.data, self.blocks, self.repeat = data, blocks, repeat

    def _each(self, x: Tensor) -> Views:
        return x.unbind(0) * self.repeat

    @cached_property
    def _block(self) -> Tensor:
        m, g, size, width = self.data.shape
        return self.data.view(m, g * self.blocks, size // self.blocks, width)

    @cached_property
    def chunk(self) -> Views:
        """[G, C, D]"""
        return self._each(self.data)

    @cached_property
    def chunk_t(self) -> Views:
        """[G, D, C]"""
        return self._each(self.data.mT)

    @cached_property
    def block(self) -> Views:
        """[G s, c, D]"""
        return self._each(self._block)

    @cached_property
    def block_t(self) -> Views:
        """[G s, D, c]"""
        return self._each(self._block.mT)

    @cached_property
    def spread(self) -> Views:
        """[G s, c, 1, D]: broadcasts against `pair` and `factors`."""
        return self._each(self._block[..., None, :])

    @cached_property
    def factors(self) -> Views:
        """[G s, c, 2, 1] of data [m, G, C, 2]."""
        return self._each(self._block[..., None])

    @cached_property
    def pair(self) -> Views:
        """[G s, c, 2, D / 2]"""
        return self._each(self._block.unflatten(-1, (2, -1)))

    @cached_property
    def first(self) -> Views:
        """[G s, c, D / 2]: the first half of every row."""
        return self._each(self._block.chunk(2, -1)[0])

    @cached_property
    def second(self) -> Views:
        """[G s, c, D / 2]: the second half of every row."""
        return self._each(self._block.chunk(2, -1)[1])


class States:
    """One state X = [W | S] for every block of one chunk: whole [G, s, rows, 2 cols], views as above."""

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole
        self.flat = whole.flatten(0, 1)
        self.flat_t = self.flat.mT
        self.weights, self.momenta = whole.chunk(2, -1)
        self.block, self.block_weights, self.block_momenta = (x.unbind(1) for x in (whole, self.weights, self.momenta))
        self.anchor = self.block_weights[0]
