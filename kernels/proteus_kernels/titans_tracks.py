"""Buffers of a run of inner chunks, with the views that products need made once and not once a chunk.

A loop over chunks that slices, transposes and allocates spends a third of its time there. Here one `unbind` makes a view
for every chunk, and the loop writes into scratch that stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Views = tuple[Tensor, ...]


class Track:
    """Rows of every position: data [m, G, C, D], and tuples of views indexed by chunk, made when first asked for.

    A block is c of the C positions; the blocks of a chunk stay in order. Scratch holds m = 1 chunk, `repeat` times seen.
    """

    chunk: Views
    """[G, C, D]; `chunk_t` [G, D, C]"""
    chunk_t: Views
    block: Views
    """[G s, c, D]; `block_t` [G s, D, c]"""
    block_t: Views
    pair: Views
    """[G s, c, 2, D / 2]"""
    first: Views
    """[G s, c, D / 2]: the first half of every row, `second` the other."""
    second: Views

    def __init__(self, data: Tensor, blocks: int, repeat: int = 1) -> None:
        m, g, size, width = data.shape
        self.data, self.repeat, self.blocked = data, repeat, data.view(m, g * blocks, size // blocks, width)

    def __getattr__(self, name: str) -> Views:
        if name not in _VIEWS:
            raise AttributeError(name)
        views = self.__dict__[name] = _VIEWS[name](self).unbind(0) * self.repeat
        return views


_VIEWS: dict[str, Callable[[Track], Tensor]] = {
    "chunk": lambda t: t.data,
    "chunk_t": lambda t: t.data.mT,
    "block": lambda t: t.blocked,
    "block_t": lambda t: t.blocked.mT,
    "pair": lambda t: t.blocked.view(*t.blocked.shape[:-1], 2, -1),
    "first": lambda t: t.blocked.narrow(-1, 0, t.data.shape[-1] // 2),
    "second": lambda t: t.blocked.narrow(-1, t.data.shape[-1] // 2, t.data.shape[-1] // 2),
}


class States:
    """One state X = [W | S] for every block of one chunk: whole [G, s, rows, 2 cols], views as above."""

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole
        self.flat = whole.flatten(0, 1)
        self.flat_t = self.flat.mT
        self.weights, self.momenta = whole.chunk(2, -1)
        self.block, self.block_weights, self.block_momenta = (x.unbind(1) for x in (whole, self.weights, self.momenta))
        self.anchor = self.block_weights[0]


def scale(factors: Track, x: Tensor, pairs: Track, i: int) -> Tensor:
    """[f_1 x | f_2 x] into `pairs`, for factors [m, G, C, 2] and x [G s, c, D]. Two products: one that broadcasts both
    operands takes three times as long."""
    torch.mul(x, factors.first[i], out=pairs.first[i])
    torch.mul(x, factors.second[i], out=pairs.second[i])
    return pairs.block[i]


def fold(factors: Track, pairs: Track, i: int, out: Tensor) -> Tensor:
    """f_1 x_1 + f_2 x_2 of pairs [x_1 | x_2]: the adjoint of `scale`."""
    return torch.mul(pairs.first[i], factors.first[i], out=out).addcmul_(pairs.second[i], factors.second[i])
