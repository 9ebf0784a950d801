"""A linear Titans memory over a group of inner chunks, forward and backward by hand: the arithmetic of `titans_pieces`.

n chunks of C = s c positions, G = batch x heads. An anchor A holds for a chunk, the closed form of `titans_common` for a
block of c positions. Weights and momentum lie side by side, X = [W | S] of [V, 2 K], one a block, so that the read, the
write and their gradients are one product each, with every factor on the narrow side, where it is made for all chunks:

    E = K A^T - V                                  per chunk, in turn
    X' = [b_C W + f_C S | m_C S] - E^T [G_C K | N_C K]
    Y = [b Q | f Q] X^T - (Q K^T . G) E            all blocks at once

Only E and X go from chunk to chunk: two products each way, everything else is one call over the group. Coefficients come
with the minus sign of a gradient, so that every product is added. Keys and queries are the open ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """What n chunks in blocks of c positions take from their gates: carried = (b, f) [n, G, C, 2], minus_mix = -G
    [n, G, C, c], minus_ends = -(G_C, N_C) [n, G, C, 2] and ends = (b_C, f_C, m_C) [n, G, s, 3]."""

    carried: Tensor
    minus_mix: Tensor
    minus_ends: Tensor
    ends: Tensor


@dataclass(frozen=True)
class Kept:
    """What the backward needs: scores = Q K^T / sqrt(K) [n G s, c, c], E [n, G, C, V] and X [n, G, s, V, 2 K]."""

    scores: Tensor
    errors: Tensor
    states: Tensor


class Group:
    """q, k [n, G, C, K]; `scale` is the read's; anchor [G, V, K] is that of a chunk begun before (n = 1), or None."""

    def __init__(self, q: Tensor, k: Tensor, factors: Factors, scale: float, anchor: Tensor | None) -> None:
        self.q, self.k, self.f, self.scale, self.anchor = q, k, factors, scale, anchor
        self.n, self.g, self.size, self.width = q.shape
        self.s = factors.ends.shape[2]
        self.carried = factors.carried * scale
        ends = factors.ends[..., None]
        keep = ends[..., ::2, :].expand(-1, -1, -1, -1, self.width).flatten(3)[..., None, :]
        self.keep, self.carry = by_block(keep), by_block(ends[..., 1:2, :])
        self.k_pairs, self.k_chunk = pairs(k, factors.minus_ends), k.unbind(0)

    def blocks(self, x: Tensor) -> Tensor:
        """[n, G, C, D] -> [n G s, c, D]"""
        return x.view(-1, self.size // self.s, x.shape[-1])

    def per_chunk(self, x: Tensor) -> tuple[Tensor, ...]:
        """[n, G, C, D] or [n, G, s, rows, cols] -> n of [G s, c or rows, .]"""
        rows = self.size // self.s if x.dim() == 4 else x.shape[-2]
        return x.view(self.n, -1, rows, x.shape[-1]).unbind(0)

    def forward(self, errors: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Kept]:
        """y [n, G, C, V], X after the group and what is kept, from `errors` = v, overwritten, and X before [G, V, 2 K]."""
        shape = (self.n, self.g, self.s, *start.shape[1:])
        states, end, fresh = errors.new_empty(shape), torch.empty_like(start), errors.new_empty(shape[1:])
        states[0, :, 0].copy_(start)
        x, w, s = (by_block(t) for t in (states, *states.chunk(2, -1)))
        new, new_w = fresh.unbind(1), fresh.narrow(-1, 0, self.width).unbind(1)
        flat, turns = fresh.flatten(0, 1), zip(errors, self.k_chunk, self.per_chunk(errors), self.per_chunk(self.k_pairs), strict=True)
        for i, (error, k, by_rows, k_pairs) in enumerate(turns):
            anchor = w[i * self.s] if self.anchor is None else self.anchor
            error.baddbmm_(k, anchor.mT, beta=-1)
            torch.bmm(by_rows.mT, k_pairs, out=flat)
            for j in range(self.s):
                at = i * self.s + j
                new_w[j].addcmul_(s[at], self.carry[at])
                torch.addcmul(new[j], x[at], self.keep[at], out=x[at + 1] if at + 1 < len(x) else end)
        q, k, mixed = self.blocks(self.q), self.blocks(self.k), self.blocks(self.f.minus_mix)
        scores = torch.empty_like(mixed).baddbmm_(q, k.mT, beta=0, alpha=self.scale)
        y = torch.bmm(self.blocks(pairs(self.q, self.carried)), states.flatten(0, 2).mT)
        y.baddbmm_(scores * mixed, self.blocks(errors))
        return y.view_as(errors), end, Kept(scores=scores, errors=errors, states=states)

    def backward(
        self, kept: Kept, d_y: Tensor, d_end: Tensor, d_begun: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Factors, Tensor, Tensor]:
        """Gradients of q, k and v, of the factors, of X before the group, and of the last used anchor.

        d_begun [G, V, K] is for the weights at the last chunk's start.
        """
        states, errors = kept.states, self.blocks(kept.errors)
        q, k, dy, mixed = self.blocks(self.q), self.blocks(self.k), self.blocks(d_y), self.blocks(self.f.minus_mix)
        d_scores = torch.bmm(dy, errors.mT)
        d_mix = kept.scores * d_scores
        d_errors = torch.bmm((kept.scores * mixed).mT, dy)
        d_scores.mul_(mixed)
        d_states = torch.bmm(dy.mT, self.blocks(pairs(self.q, self.carried)))
        after, d_start, d_anchor = self._chain(d_states.view_as(states), d_errors.view_as(d_y), d_end, d_begun)
        flat, ends = states.flatten(0, 2), after.flatten(0, 2)
        q_pairs, k_pairs = torch.bmm(dy, flat), torch.bmm(errors, ends)
        d_q, d_k = fold(q_pairs, self.blocks(self.carried)), fold(k_pairs, self.blocks(self.f.minus_ends))
        d_q.baddbmm_(d_scores, k, alpha=self.scale)
        d_k.baddbmm_(d_scores.mT, q, alpha=self.scale)
        d_errors = d_errors.view_as(d_y).flatten(0, 1)
        anchors = states[:, :, 0, :, : self.width].flatten(0, 1) if self.anchor is None else self.anchor
        d_k.view(d_errors.shape[0], self.size, -1).baddbmm_(d_errors, anchors)
        d_factors = Factors(
            carried=dots(q_pairs, q).mul_(self.scale), minus_mix=d_mix, minus_ends=dots(k_pairs, k), ends=_d_ends(states, after)
        )
        return (d_q, d_k, d_errors.neg_()), d_factors, d_start, d_anchor

    def _chain(
        self, d_states: Tensor, d_errors: Tensor, d_end: Tensor, d_begun: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From the last chunk to the first, adding to d_states and d_errors: the gradients of X after every block
        [n, G, s, V, 2 K], of X before the group, and of the first chunk's anchor."""
        after, d_start = torch.empty_like(d_states), torch.empty_like(d_end)
        o, o_w = by_block(after), by_block(after.narrow(-1, 0, self.width))
        d_x, d_s = by_block(d_states), by_block(d_states.narrow(-1, self.width, self.width))
        o[-1].copy_(d_end)
        d_anchor = d_begun

        def step(at: int) -> None:
            d_s[at].addcmul_(o_w[at], self.carry[at])
            torch.addcmul(d_x[at], o[at], self.keep[at], out=o[at - 1] if at else d_start)

        d_map = d_end.new_empty(*d_end.shape[:-1], self.width)
        turns = list(zip(d_errors, self.k_chunk, *map(self.per_chunk, (d_errors, self.k_pairs, after)), strict=True))
        for i in reversed(range(self.n)):
            d_error, k, by_rows, k_pairs, writes = turns[i]
            for j in reversed(range(1, self.s)):
                step(i * self.s + j)
            by_rows.baddbmm_(k_pairs, writes.mT)
            step(i * self.s)
            torch.bmm(d_error.mT, k, out=d_map)
            before = o_w[i * self.s - 1] if i else d_start[..., : self.width]
            if self.anchor is None:
                before.add_(d_map)
            if d_anchor is not None and i == self.n - 1:
                before.add_(d_anchor)
        return after, d_start, d_map


def by_block(x: Tensor) -> list[Tensor]:
    """[n, G, s, ...] -> n s of [G, ...], in time."""
    return [block for chunk in x.unbind(0) for block in chunk.unbind(1)]


def pairs(x: Tensor, factors: Tensor) -> Tensor:
    """[f_1 x | f_2 x]. Two products: one that broadcasts both operands takes three times as long."""
    out = x.new_empty(*x.shape[:-1], 2 * x.shape[-1])
    for half, f in zip(out.chunk(2, -1), factors.split(1, -1), strict=True):
        torch.mul(x, f, out=half)
    return out


def fold(x: Tensor, factors: Tensor) -> Tensor:
    """f_1 x_1 + f_2 x_2 of x = [x_1 | x_2]: the adjoint of `pairs`."""
    (first, second), f = x.chunk(2, -1), factors.split(1, -1)
    return torch.mul(first, f[0]).addcmul_(second, f[1])


def dots(x: Tensor, y: Tensor) -> Tensor:
    """(<x_1, y>, <x_2, y>) per position, of x = [x_1 | x_2], which is overwritten."""
    for half in x.chunk(2, -1):
        half.mul_(y)
    return x.unflatten(-1, (2, -1)).sum(-1)


def _d_ends(states: Tensor, after: Tensor) -> Tensor:
    """Gradients of b_C, f_C and m_C: <dW, W>, <dW, S> and <dS, S> of every block."""
    half = states.shape[-1] // 2
    same = (states * after).sum(-2).unflatten(-1, (2, half)).sum(-1)
    cross = (states[..., half:] * after[..., :half]).sum(-2).sum(-1)
    return torch.stack([same[..., 0], cross, same[..., 1]], -1)
