"""A linear Titans memory over a group of inner chunks, forward and backward by hand: the arithmetic of `titans_pieces`.

m blocks of c positions, G = batch x heads, `each` blocks an inner chunk: an anchor A holds for a chunk, the closed form of
`titans_common` for a block. Weights and momentum stand one above the other, X = [W; S] of [2 K, V], so that the read, the
write and their gradients are one product each, whose factors on the key side are made for all blocks at once:

    E = V - K A                                    per block, in turn
    X' = [b_c W + f_c S; m_c S] + [G_c K | N_c K]^T E
    Y = [b Q | f Q] X + (Q K^T . G) E              per block, the second term for all at once

Only E and X go from block to block. Queries and keys are the open ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proteus_kernels.titans_runs import Factors

ALIGN = 16
"""Numbers that a buffer's start is a multiple of: 64 bytes of float32, a cache line."""


class Scratch:
    """One buffer that every group of a pass uses again: memory fresh from the system costs more than the pass over it."""

    def __init__(self, like: Tensor, numbers: int) -> None:
        self.flat, self.at = like.new_empty(numbers), 0
        self.views: dict[tuple[int, ...], Tensor] = {}

    @staticmethod
    def numbers(blocks: int, g: int, block: int, key: int, value: int) -> int:
        """What the backward of a group asks for (the forward asks for less): rows of inputs and gradients, and states."""
        rows = blocks * block * (12 * key + 2 * value + 3 * block)
        return g * (rows + (blocks + 2) * 2 * key * value) + 32 * ALIGN

    def new(self, *shape: int) -> Tensor:
        start, n = self.at, math.prod(shape)
        self.at += -(-n // ALIGN) * ALIGN
        view = self.views.get((start, *shape))
        if view is None:
            view = self.views[start, *shape] = self.flat.narrow(0, start, n).view(shape)
        return view

    def clear(self) -> Scratch:
        self.at = 0
        return self


@dataclass(frozen=True)
class Kept:
    """What the backward needs: scores = Q K^T / sqrt(K) [m G, c, c], E [m, G, c, V] and X before every block [m, G, 2 K, V]."""

    scores: Tensor
    errors: Tensor
    states: Tensor

    @staticmethod
    def room(q: Tensor, value: int, scratch: Scratch | None) -> Kept:
        """For a group with queries q: of its own, or scratch."""
        new = q.new_empty if scratch is None else scratch.new
        (m, g, c, width) = q.shape
        return Kept(new(m * g, c, c), new(m, g, c, value), new(m, g, 2 * width, value))


class Group:
    """q, k [m, G, c, K]; `scale` is the read's; anchor [G, K, V] is that of a chunk begun before (one chunk), or None."""

    def __init__(
        self, q: Tensor, k: Tensor, factors: Factors, each: int, scale: float, anchor: Tensor | None, scratch: Scratch
    ) -> None:
        self.q, self.k, self.each, self.scale, self.anchor, self.new = q, k, each, scale, anchor, scratch.new
        self.m, self.width, self.mix = q.shape[0], q.shape[-1], factors.mix.flatten(0, 1)
        self.carried, self.rows = factors.carried * scale, factors.end_rows
        self.q_pairs, self.k_pairs = self.pairs(q, self.carried), self.pairs(k, self.rows)
        self.keep = factors.ends[..., ::2, None, None].unbind(0)
        self.carry = factors.ends[..., 1, None, None].unbind(0)

    def forward(self, kept: Kept, start: Tensor) -> tuple[Tensor, Tensor]:
        """y [m, G, c, V] and X after the group, from X before [G, 2 K, V] and v in the place of the errors; fills `kept`."""
        scores, errors, states = kept.scores, kept.errors, kept.states
        states[0].copy_(start)
        end, y = self.new(*start.shape), self.new(*errors.shape)
        x, (halves, w, s) = (*states.unbind(0), end), _halves(states, end)
        columns = errors, y, self.k, self.k_pairs.mT, self.q_pairs
        turns = zip(*(x.unbind(0) for x in columns), self.keep, self.carry, strict=True)
        for i, (error, out, k, k_pairs, q_pairs, keep, carry) in enumerate(turns):
            error.baddbmm_(k, w[i - i % self.each] if self.anchor is None else self.anchor, alpha=-1)
            torch.mul(halves[i], keep, out=halves[i + 1])
            w[i + 1].addcmul_(s[i], carry)
            x[i + 1].baddbmm_(k_pairs, error)
            torch.bmm(q_pairs, x[i], out=out)
        q, k, flat_y, flat = _flat(self.q, self.k, y, errors)
        scores.baddbmm_(q, k.mT, beta=0, alpha=self.scale)
        flat_y.baddbmm_(torch.mul(scores, self.mix, out=self.new(*scores.shape)), flat)
        return y, end

    def backward(
        self, kept: Kept, d_y: Tensor, d_end: Tensor, d_begun: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Factors, Tensor, Tensor | None]:
        """Gradients of q, k and v, of the factors, of X before the group, and of the anchor that was given.

        d_begun [G, K, V] is for the weights at the last chunk's start.
        """
        q, k, dy, errors = _flat(self.q, self.k, d_y, kept.errors)
        like = kept.scores.shape
        d_scores = torch.bmm(dy, errors.mT, out=self.new(*like))
        mixed = torch.mul(kept.scores, self.mix, out=self.new(*like))
        d_mix = torch.mul(kept.scores, d_scores, out=self.new(*like))
        d_errors = torch.bmm(mixed.mT, dy, out=self.new(*dy.shape))
        d_scores.mul_(self.mix)
        pairs = [self.new(*self.q_pairs.shape) for _ in range(2)]
        d_ends, d_start, d_anchor = self._chain(kept, d_errors.view_as(d_y), d_y, d_end, d_begun, pairs)
        q_pairs, k_pairs = _flat(*pairs)
        d_q, d_k = self.fold(q_pairs, self.carried.flatten(0, 1)), self.fold(k_pairs, self.rows.flatten(0, 1))
        d_q.baddbmm_(d_scores, k, alpha=self.scale)
        d_k.baddbmm_(d_scores.mT, q, alpha=self.scale)
        d_k.baddbmm_(d_errors, self._anchors(kept.states).mT, alpha=-1)
        carried, end_rows = _dots(q_pairs, q).mul_(self.scale), _dots(k_pairs, k)
        d_factors = Factors(carried=carried, mix=d_mix, end_rows=end_rows, ends=d_ends)
        return (d_q, d_k, d_errors), d_factors, d_start, d_anchor

    def _chain(
        self, kept: Kept, d_errors: Tensor, d_y: Tensor, d_end: Tensor, d_begun: Tensor | None, pairs: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """From the last block to the first, adding to d_errors, with every use of a state while it is in the cache.

        Fills the gradients of q_pairs and k_pairs; returns those of the ends, of X before the group and of a given anchor.
        """
        d_x = self.new(2, *d_end.shape)  # behind and before a block, in turn
        d_w, d_s = (d_x.narrow(2, at, self.width).unbind(0) for at in (0, self.width))
        grams, d_map = d_x.new_empty(self.m, d_x.shape[1], 2, 2), self.new(*d_w[0].shape)
        halves, flat = d_x.view(2, *grams.shape[1:3], *d_map.shape[1:]).unbind(0), d_x.view(2, *grams.shape[1:3], -1).unbind(0)
        states = kept.states.view(*grams.shape[:3], -1).mT, kept.states.mT
        columns = d_errors, d_y, kept.errors, *states, self.k.mT, self.k_pairs, self.q_pairs.mT, *pairs, grams
        turns = list(zip(*(x.unbind(0) for x in columns), self.keep, self.carry, strict=True))
        d_x[(self.m - 1) % 2].copy_(d_end)
        for i in reversed(range(self.m)):
            d_error, dy, error, x_flat, x_t, k_t, k_pairs, q_pairs_t, d_q_pairs, d_k_pairs, gram, keep, carry = turns[i]
            now, before = i % 2, (i - 1) % 2
            d_error.baddbmm_(k_pairs, d_x[now])
            torch.bmm(error, d_x[now].mT, out=d_k_pairs)
            torch.bmm(flat[now], x_flat, out=gram)
            torch.bmm(dy, x_t, out=d_q_pairs)
            torch.mul(halves[now], keep, out=halves[before])
            d_s[before].addcmul_(d_w[now], carry)
            d_x[before].baddbmm_(q_pairs_t, dy)
            if (i + 1) % self.each:
                d_map.baddbmm_(k_t, d_error)
            else:
                torch.bmm(k_t, d_error, out=d_map)
            if i % self.each == 0 and self.anchor is None:
                d_w[before].sub_(d_map)
            if d_begun is not None and i == self.m - self.each:
                d_w[before].add_(d_begun)
        d_ends = grams.flatten(2)[..., [0, 1, 3]]  # <dW, W>, <dW, S>, <dS, S>
        return d_ends, d_x[1], None if self.anchor is None else d_map.neg_()

    def _anchors(self, states: Tensor) -> Tensor:
        """Those of all blocks, [m G, K, V]."""
        if self.anchor is not None:
            return self.anchor.expand(self.m, -1, -1, -1).flatten(0, 1)
        first = states.unflatten(0, (-1, self.each))[:, :1, :, : self.width]
        return first.expand(-1, self.each, -1, -1, -1).flatten(0, 2)

    def pairs(self, x: Tensor, factors: Tensor) -> Tensor:
        """[f_1 x | f_2 x]. Two products: one that broadcasts both operands takes three times as long."""
        out = self.new(*x.shape[:-1], 2 * x.shape[-1])
        for half, f in zip(_sides(out), _sides(factors), strict=True):
            torch.mul(x, f, out=half)
        return out

    def fold(self, x: Tensor, factors: Tensor) -> Tensor:
        """f_1 x_1 + f_2 x_2 of x = [x_1 | x_2]: the adjoint of `pairs`."""
        (first, second), f = _sides(x), _sides(factors)
        return torch.mul(first, f[0], out=self.new(*first.shape)).addcmul_(second, f[1])


def _sides(x: Tensor) -> tuple[Tensor, Tensor]:
    """The halves of the last axis; `chunk` and `split` cost several times the calls."""
    n = x.shape[-1] // 2
    return x.narrow(-1, 0, n), x.narrow(-1, n, n)


def _flat(*tensors: Tensor) -> Sequence[Tensor]:
    return [x.flatten(0, 1) for x in tensors]


def _halves(states: Tensor, last: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    """Of every state and the last: [G, 2, K, V], and weights and momentum [G, K, V]."""
    (g, _, v), width = last.shape, last.shape[1] // 2
    all_, end = states.view(-1, g, 2, width, v), last.view(g, 2, width, v)
    w, s = ((*all_.select(2, i).unbind(0), end.select(1, i)) for i in (0, 1))
    return (*all_.unbind(0), end), w, s


def _dots(x: Tensor, y: Tensor) -> Tensor:
    """(<x_1, y>, <x_2, y>) per position, of x = [x_1 | x_2], which is overwritten."""
    for half in _sides(x):
        half.mul_(y)
    return x.view(*x.shape[:-1], 2, -1).sum(-1)
