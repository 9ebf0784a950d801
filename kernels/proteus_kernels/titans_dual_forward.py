"""The forward of `titans_dual`, one inner chunk after another; shapes and equations stand there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from proteus_kernels.titans_tracks import States, Track, Views, scale

T = TypeVar("T")
silu = torch.ops.aten.silu.out
silu_backward = torch.ops.aten.silu_backward.grad_input


@dataclass(frozen=True, kw_only=True)
class Run:
    """What n chunks read beside the weights: q, k, minus_v [n, G, C, K or V]; the rest per block of c positions:

    carried = (b, f) [n, G, C, 2], minus_mix = -G [n, G, C, c], minus_ends = -(G_C, N_C) [n, G, C, 2] and
    ends = (b_C, f_C, m_C) [n, G, s, 3].
    """

    q: Tensor
    k: Tensor
    minus_v: Tensor
    carried: Tensor
    minus_mix: Tensor
    minus_ends: Tensor
    ends: Tensor

    def split(self, chunks: list[int]) -> Iterator[Run]:
        """Runs of so many chunks each."""
        if len(chunks) == 1:
            yield self
            return
        for parts in zip(*(x.split(chunks) for x in vars(self).values()), strict=True):
            yield Run(**dict(zip(vars(self), parts, strict=True)))

    def first_heads(self, n: int, heads: int) -> Run:
        """The first n heads of each batch row."""
        return Run(**{k: x.unflatten(1, (-1, heads))[:, :, :n].flatten(1, 2) for k, x in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the backward of one chunk needs: products and states, a tensor a layer (z and g: a hidden layer).

    What is elementwise is made again. u of the output layer is r X, before the factors.
    """

    scores: Sequence[Tensor]
    u: Sequence[Tensor]
    states: Sequence[Tensor]
    z: Sequence[Tensor]
    g: Sequence[Tensor]
    error: Tensor

    @staticmethod
    def count(depth: int) -> int:
        return 5 * depth - 1

    @staticmethod
    def of(x: Sequence[Tensor], depth: int) -> Kept:
        """From `count` tensors in the order of `Chunks.forward`."""
        at = (0, depth, 2 * depth, 3 * depth, 4 * depth - 1, 5 * depth - 2)
        return Kept(**{n: x[a:b] for n, a, b in zip(("scores", "u", "states", "z", "g"), at, at[1:], strict=False)}, error=x[-1])


def _per_block(x: Tensor) -> list[Views]:
    return [b.unbind(0) for b in x.unbind(2)]


class Chunks:
    """The forward of one chunk after another: inputs as tracks, one chunk of scratch for everything else."""

    def __init__(self, run: Run, states: Sequence[Tensor], anchors: Sequence[Tensor], output: int) -> None:
        self.n, self.g, self.size, _ = run.q.shape
        self.s, self.depth, self.last, self.given = run.ends.shape[2], len(states), len(states) - 1, anchors
        self.like, self.shapes = run.q, [x.shape[1:] for x in states]
        self.hidden, self.c = [rows for rows, _ in self.shapes[:-1]], self.size // self.s
        self.mask = None
        if self.hidden and output < self.hidden[0]:
            self.mask = (torch.arange(self.hidden[0], device=run.q.device) < output).to(run.q.dtype)
        self.q, self.k, self.minus_v, self.carried, self.minus_mix, self.minus_ends = (
            Track(x, self.s) for x in (run.q, run.k, run.minus_v, run.carried, run.minus_mix, run.minus_ends)
        )
        self.keep = [_per_block(run.ends[..., None, ::2].repeat_interleave(w // 2, -1)) for _, w in self.shapes]
        self.carry = _per_block(run.ends[..., 1, None, None])
        self.x, self.fresh = ([self.states(s) for s in self.shapes] for _ in range(2))
        for x, start in zip(self.x, states, strict=True):
            x.block[0].copy_(start)
        packed = self.given or [x.anchor for x in self.x]
        self.maps = [*packed[: self.last], packed[self.last].mT]  # [G, d_out, d_in]
        self.maps_t = [a.mT for a in self.maps]
        self.inner, self.r = [self.k, *self.wide()], [self.q, *self.wide()]
        self.deltas = [*self.wide(), self.rows(self.shapes[-1][1] // 2)]
        self.pairs, self.mix = [self.rows(w) for _, w in self.shapes], self.rows(self.c)

    def rows(self, width: int) -> Track:
        return Track(self.like.new_empty(1, self.g, self.size, width), self.s, self.n)

    def wide(self) -> list[Track]:
        """One track a hidden layer."""
        return [self.rows(w) for w in self.hidden]

    def states(self, shape: Sequence[int]) -> States:
        return States(self.like.new_empty(self.g, self.s, *shape))

    def sides(self, layer: int, deltas: Sequence[T], inner: Sequence[T]) -> tuple[T, T]:
        """(wide, narrow) of a layer: its write is wide^T narrow."""
        return (deltas[layer], inner[layer]) if layer < self.last else (inner[layer], deltas[layer])

    def forward(self, i: int, y: Track, record: bool) -> list[Tensor]:
        """One chunk: y into its track. Returns what `Kept` holds, when there will be a backward."""
        z, g = self.predict(i)
        for layer in range(self.depth):
            self.write(layer, i)
        states = [x.whole.clone() for x in self.x] if record else []
        parts = [self.read(layer, i, y) for layer in range(self.depth)]
        for layer in range(self.depth):
            self.step(layer, self.s - 1, i)
        scores, u = zip(*parts, strict=True)
        return [*scores, *u, *states, *z, *g, self.deltas[-1].chunk[i].clone()] if record else []

    def predict(self, i: int) -> tuple[list[Tensor], list[Tensor]]:
        """The gradient's factors at the anchors, into `inner` and `deltas`; returns z and g."""
        z: list[Tensor] = []
        g: list[Tensor] = []
        inner, deltas = self.inner, self.deltas
        for layer in range(self.last):
            z.append(torch.bmm(inner[layer].chunk[i], self.maps_t[layer]))
            silu(z[-1], out=inner[layer + 1].chunk[i])
        torch.baddbmm(self.minus_v.chunk[i], inner[-1].chunk[i], self.maps_t[-1], out=deltas[-1].chunk[i])
        for layer in reversed(range(self.last)):
            g.insert(0, torch.bmm(deltas[layer + 1].chunk[i], self.maps[layer + 1]))
            silu_backward(g[0], z[layer], grad_input=deltas[layer].chunk[i])
        return z, g

    def write(self, layer: int, i: int) -> None:
        """The increments of all blocks into `fresh`, and the states at the starts of all but the first."""
        wide, narrow = self.sides(layer, self.deltas, self.inner)
        pairs = scale(self.minus_ends, narrow.block[i], self.pairs[layer], i)
        torch.bmm(wide.block_t[i], pairs, out=self.fresh[layer].flat)
        for j in range(self.s - 1):
            self.step(layer, j, i)

    def step(self, layer: int, j: int, i: int) -> None:
        """X after block j, at the next block's place; after the last, at the first block's."""
        x, fresh = self.x[layer], self.fresh[layer]
        fresh.block_weights[j].addcmul_(x.block_momenta[j], self.carry[j][i])
        torch.addcmul(fresh.block[j], x.block[j], self.keep[layer][j][i], out=x.block[(j + 1) % self.s])

    def read(self, layer: int, i: int, y: Track) -> tuple[Tensor, Tensor]:
        """scores = r x^T, and u (of the output layer: r X)."""
        r, pairs, x = self.r[layer], self.pairs[layer], self.x[layer]
        scores = torch.bmm(r.block[i], self.inner[layer].block_t[i])
        torch.mul(scores, self.minus_mix.block[i], out=self.mix.block[i])
        if layer == self.last:
            both, out = torch.bmm(r.block[i], x.flat), y.block[i]
            first, second = both.chunk(2, -1)
            torch.mul(first, self.carried.first[i], out=out)
            out.addcmul_(second, self.carried.second[i]).baddbmm_(self.mix.block[i], self.deltas[layer].block[i])
            return scores, both
        scale(self.carried, r.block[i], pairs, i)
        u = torch.bmm(pairs.block[i], x.flat_t).baddbmm_(self.mix.block[i], self.deltas[layer].block[i])
        after = self.r[layer + 1].block[i]
        silu(u, out=after)
        if self.mask is not None:
            after.mul_(self.mask)
        return scores, u
