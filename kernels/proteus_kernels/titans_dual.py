"""The dual form of an MLP Titans memory over equal inner chunks: forward and hand-written backward.

An autograd graph of many small products costs more than the products, so a whole run of chunks is ONE
`torch.autograd.Function`, which keeps per chunk the states and the pre-activations and recomputes what is elementwise.

G = batch x heads, n chunks of C = s c positions. An anchor holds for a chunk, but the closed form of `titans_common` is
opened anew every c positions (a block): its c x c products with N-wide activations are the largest term at small K.

A layer of widths d_in -> d_out has weights W and momentum S, side by side with the wide dimension as rows, so that a
read, a write and their gradients are one product each: X = [W | S] of [G, s, rows, 2 cols], one state a block.

    input layers   rows = d_out, cols = d_in          read [b r | f r] X^T      write  delta^T [G_C x | N_C x]
    output layer   rows = d_in, cols = d_out          read b, f of (r X)        write  x^T [G_C delta | N_C delta]

Anchors A:  z_l = A_l x_{l-1}, x_l = silu(z_l), delta_L = z_L - v, g_l = A_{l+1}^T delta_{l+1}, delta_l = silu'(z_l) . g_l.
Reads:      u_l = (b W_l + f S_l) r_{l-1} - (r_{l-1} x_{l-1}^T . G) delta_l, r_l = silu(u_l), y = u_L.
The coefficients of gradients come with their minus sign, so that every product is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from proteus_kernels.titans_tracks import States, Track, Views

T = TypeVar("T")
silu = torch.ops.aten.silu.out
silu_backward = torch.ops.aten.silu_backward.grad_input


@dataclass(frozen=True, kw_only=True)
class Run:
    """What n chunks read beside the weights: q, k, minus_v [n, G, C, K or V]; the rest per block of c positions:

    carried = (b, f) [n, G, C, 2], minus_mix = -G [n, G, C, c], minus_ends = -(G_C, N_C) [n, G, C, 2] and
    ends = (b_C, f_C, m_C) [n, G, s, 3]. All contiguous.
    """

    q: Tensor
    k: Tensor
    minus_v: Tensor
    carried: Tensor
    minus_mix: Tensor
    minus_ends: Tensor
    ends: Tensor


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the backward of one chunk cannot repeat cheaply, a tensor a layer: scores, reads before silu, states."""

    scores: Sequence[Tensor]
    u: Sequence[Tensor]
    states: Sequence[Tensor]

    def flat(self) -> list[Tensor]:
        return [*self.scores, *self.u, *self.states]

    @staticmethod
    def of(x: Sequence[Tensor], depth: int) -> Kept:
        return Kept(scores=x[:depth], u=x[depth : 2 * depth], states=x[2 * depth :])


def dual(run: Run, states: Sequence[Tensor], anchors: Sequence[Tensor], output: int) -> tuple[Tensor, ...]:
    """y [n, G, C, V], the states after the run, and the weights at the last chunk's start (none for a single chunk).

    States [G, rows, 2 cols]. `anchors` [G, rows, cols] are those of a chunk that was begun before; (): every chunk
    anchors at its start. The first `output` hidden units are read.
    """
    inputs = (*vars(run).values(), *states, *anchors)
    record = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return Dual.apply(len(states), output, record, *inputs)


class Dual(torch.autograd.Function):
    """See `dual`."""

    @staticmethod
    def forward(ctx: Any, depth: int, output: int, record: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        work = Chunks(*_unpack(depth, inputs), output)
        y = Track(torch.empty_like(work.minus_v.data), work.s)
        saved: list[Tensor] = []
        last: tuple[Tensor, ...] = ()
        for i in range(work.n):
            if i and i == work.n - 1:
                last = tuple(x.anchor.contiguous() for x in work.x)
            kept = work.forward(i, y)
            saved += kept.flat() if record else []
        if record:
            ctx.depth, ctx.output = depth, output
            ctx.save_for_backward(*inputs, *saved)
        return y.data, *(x.block[0].clone() for x in work.x), *last

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        depth, saved, n = ctx.depth, ctx.saved_tensors, grads[0].shape[0]
        each = 3 * depth
        start = len(saved) - n * each
        work = Gradients(*_unpack(depth, saved[:start]), ctx.output, grads[0].contiguous(), grads[1 : 1 + depth])
        for i in reversed(range(n)):
            work.backward(i, Kept.of(saved[start + i * each : start + (i + 1) * each], depth))
            if i and i == n - 1:
                work.add_to_weights(grads[1 + depth :])
        return None, None, None, *work.results()


def _unpack(depth: int, inputs: Sequence[Tensor]) -> tuple[Run, Sequence[Tensor], Sequence[Tensor]]:
    names = [f.name for f in fields(Run)]
    run = Run(**dict(zip(names, inputs, strict=False)))
    return run, inputs[len(names) : len(names) + depth], inputs[len(names) + depth :]


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
        if output < self.hidden[0]:
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
        self.z, self.gs = self.wide(), self.wide()
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

    def forward(self, i: int, y: Track) -> Kept:
        self.predict(i)
        for layer in range(self.depth):
            self.write(layer, i)
        states = [x.whole.clone() for x in self.x]
        parts = [self.read(layer, i, y) for layer in range(self.depth)]
        for layer in range(self.depth):
            self.step(layer, self.s - 1, i)
        scores, u = zip(*parts, strict=True)
        return Kept(scores=scores, u=u, states=states)

    def predict(self, i: int) -> None:
        """The gradient's factors at the anchors, `inner` and `deltas`, with z and g behind them."""
        inner, deltas = self.inner, self.deltas
        for layer in range(self.last):
            torch.bmm(inner[layer].chunk[i], self.maps_t[layer], out=self.z[layer].chunk[i])
            silu(self.z[layer].chunk[i], out=inner[layer + 1].chunk[i])
        torch.baddbmm(self.minus_v.chunk[i], inner[-1].chunk[i], self.maps_t[-1], out=deltas[-1].chunk[i])
        for layer in reversed(range(self.last)):
            torch.bmm(deltas[layer + 1].chunk[i], self.maps[layer + 1], out=self.gs[layer].chunk[i])
            silu_backward(self.gs[layer].chunk[i], self.z[layer].chunk[i], grad_input=deltas[layer].chunk[i])

    def write(self, layer: int, i: int) -> None:
        """The increments of all blocks into `fresh`, and the states at the starts of all but the first."""
        wide, narrow = self.sides(layer, self.deltas, self.inner)
        pairs = self.pairs[layer]
        torch.mul(self.minus_ends.factors[i], narrow.spread[i], out=pairs.pair[i])
        torch.bmm(wide.block_t[i], pairs.block[i], out=self.fresh[layer].flat)
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
        torch.mul(self.carried.factors[i], r.spread[i], out=pairs.pair[i])
        u = torch.bmm(pairs.block[i], x.flat_t).baddbmm_(self.mix.block[i], self.deltas[layer].block[i])
        after = self.r[layer + 1].block[i]
        silu(u, out=after)
        if self.mask is not None:
            after.mul_(self.mask)
        return scores, u


class Gradients(Chunks):
    """The backward of one chunk after another, from the last: every d_x is the gradient of x."""

    def __init__(
        self, run: Run, states: Sequence[Tensor], anchors: Sequence[Tensor], output: int,
        d_y: Tensor, d_states: Sequence[Tensor],
    ) -> None:  # fmt: skip
        super().__init__(run, states, anchors, output)
        inputs = (self.q, self.k, self.minus_v, self.carried, self.minus_mix, self.minus_ends)
        self.results_ = [Track(torch.empty_like(x.data), self.s) for x in inputs]
        d_q, d_k, d_minus_v, self.d_carried, self.d_mix, self.d_rows = self.results_
        self.slope, self.curve, d_u = self.wide(), self.wide(), self.wide()
        self.d_r, self.d_u = [d_q, *d_u], [*d_u, Track(d_y, self.s)]  # silu's backward works in place
        self.d_inner, self.d_deltas, self.d_z = [d_k, *self.wide()], [*self.wide(), d_minus_v], [*d_u, d_minus_v]
        self.d_g = self.r[1:]
        self.back, self.product = ([self.rows(w) for _, w in self.shapes] for _ in range(2))
        self.two, self.d_scores = self.rows(2), self.rows(self.c)
        self.d_x, self.omega = ([self.states(s) for s in self.shapes] for _ in range(2))
        self.d_maps = [self.like.new_empty(self.g, rows, w // 2) for rows, w in self.shapes]
        self.dots = [self.like.new_empty(self.n, self.g, self.s, w) for _, w in self.shapes]
        self.crosses = [self.like.new_empty(self.n, self.g, self.s, w // 2) for _, w in self.shapes]
        for o, d in zip(self.omega, d_states, strict=True):
            o.block[-1].copy_(d)

    def backward(self, i: int, kept: Kept) -> None:
        for x, state in zip(self.x, kept.states, strict=True):
            x.whole.copy_(state)
        self.predict(i)
        for layer in range(self.last):
            self.slopes(layer, i, kept)
        for layer in reversed(range(self.depth)):
            self.d_read(layer, i, kept)
        for layer in range(self.depth):
            self.d_write(layer, i)
        self.d_predict(i)

    def slopes(self, layer: int, i: int, kept: Kept) -> None:
        """r, the slope silu'(z) = s + x (1 - s) and the curve silu''(z) = (1 - s) (slope + s - x s)."""
        s, x = self.d_inner[layer + 1].chunk[i], self.inner[layer + 1].chunk[i]
        slope, curve = self.slope[layer].chunk[i], self.curve[layer].chunk[i]
        torch.sigmoid(self.z[layer].chunk[i], out=s)
        torch.addcmul(s, x, s, value=-1, out=curve)
        torch.add(curve, x, out=slope)
        curve.add_(slope)
        curve.addcmul_(curve, s, value=-1)
        r = self.r[layer + 1].block[i]
        silu(kept.u[layer], out=r)
        if self.mask is not None:
            r.mul_(self.mask)

    def d_read(self, layer: int, i: int, kept: Kept) -> None:
        r, d_u, d_r, x, d_x = self.r[layer], self.d_u[layer], self.d_r[layer].block[i], self.x[layer], self.d_x[layer]
        scores, d_scores, pairs = kept.scores[layer], self.d_scores, self.pairs[layer]
        torch.mul(scores, self.minus_mix.block[i], out=self.mix.block[i])
        torch.bmm(self.mix.block_t[i], d_u.block[i], out=self.d_deltas[layer].block[i])
        torch.bmm(d_u.block[i], self.deltas[layer].block_t[i], out=d_scores.block[i])
        if layer == self.last:
            torch.mul(scores, d_scores.block[i], out=self.d_mix.block[i])
            torch.mul(self.carried.factors[i], d_u.spread[i], out=pairs.pair[i])
            torch.bmm(r.block_t[i], pairs.block[i], out=d_x.flat)
            torch.bmm(pairs.block[i], x.flat_t, out=d_r)
            self.factors(layer, kept.u[layer].unflatten(-1, (2, -1)), d_u.spread[i], self.d_carried.block[i], True)
        else:
            self.d_mix.block[i].addcmul_(scores, d_scores.block[i])
            back = self.back[layer]
            torch.mul(self.carried.factors[i], r.spread[i], out=pairs.pair[i])
            torch.bmm(d_u.block_t[i], pairs.block[i], out=d_x.flat)
            torch.bmm(d_u.block[i], x.flat, out=back.block[i])
            torch.mul(back.first[i], self.carried.first[i], out=d_r)
            d_r.addcmul_(back.second[i], self.carried.second[i])
            self.factors(layer, back.pair[i], r.spread[i], self.d_carried.block[i], False)
        d_scores.block[i].mul_(self.minus_mix.block[i])
        d_r.baddbmm_(d_scores.block[i], self.inner[layer].block[i])
        torch.bmm(d_scores.block_t[i], r.block[i], out=self.d_inner[layer].block[i])
        if layer:
            if self.mask is not None:
                d_r.mul_(self.mask)
            silu_backward(d_r, kept.u[layer - 1], grad_input=d_r)

    def factors(self, layer: int, pair: Tensor, spread: Tensor, out: Tensor, first: bool) -> None:
        """The gradient of two factors, <x_1, y> and <x_2, y> per position: into `out`, or added to it."""
        product = self.product[layer].pair[0]
        torch.mul(pair, spread, out=product)
        if first:
            torch.sum(product, -1, out=out)
        else:
            out.add_(torch.sum(product, -1, out=self.two.block[0]))

    def d_write(self, layer: int, i: int) -> None:
        """omega[j] is the gradient of the state after block j, omega[-1] at last that of the state before the chunk."""
        o, x, scratch = self.omega[layer], self.x[layer], self.fresh[layer]
        for j in reversed(range(1, self.s)):
            self.d_step(layer, j, i)
        torch.mul(o.whole, x.whole, out=scratch.whole)
        torch.sum(scratch.whole, 2, out=self.dots[layer][i])
        torch.mul(o.weights, x.momenta, out=scratch.weights)
        torch.sum(scratch.weights, 2, out=self.crosses[layer][i])
        wide, narrow = self.sides(layer, self.deltas, self.inner)
        d_wide, d_narrow = self.sides(layer, self.d_deltas, self.d_inner)
        pairs, back = self.pairs[layer], self.back[layer]
        torch.mul(self.minus_ends.factors[i], narrow.spread[i], out=pairs.pair[i])
        d_wide.block[i].baddbmm_(pairs.block[i], o.flat_t)
        torch.bmm(wide.block[i], o.flat, out=back.block[i])
        d_narrow.block[i].addcmul_(back.first[i], self.minus_ends.first[i])
        d_narrow.block[i].addcmul_(back.second[i], self.minus_ends.second[i])
        self.factors(layer, back.pair[i], narrow.spread[i], self.d_rows.block[i], layer == 0)
        self.d_step(layer, 0, i)

    def d_step(self, layer: int, j: int, i: int) -> None:
        o, d_x = self.omega[layer], self.d_x[layer]
        d_x.block_momenta[j].addcmul_(o.block_weights[j], self.carry[j][i])
        torch.addcmul(d_x.block[j], o.block[j], self.keep[layer][j][i], out=o.block[j - 1])

    def d_predict(self, i: int) -> None:
        d_inner, d_deltas = ([x.chunk[i] for x in tracks] for tracks in (self.d_inner, self.d_deltas))
        for layer in range(self.last):
            slope, d_g, d_z = (x[layer].chunk[i] for x in (self.slope, self.d_g, self.d_z))
            torch.mul(slope, d_deltas[layer], out=d_g)
            torch.mul(d_deltas[layer], self.gs[layer].chunk[i], out=d_z).mul_(self.curve[layer].chunk[i])
            d_deltas[layer + 1].baddbmm_(d_g, self.maps_t[layer + 1])
            wide, narrow = self.sides(layer + 1, self.deltas, [self.d_g[0], *self.d_g])
            torch.bmm(wide.chunk_t[i], narrow.chunk[i], out=self.d_maps[layer + 1])
        for layer in reversed(range(self.depth)):
            wide, narrow = self.sides(layer, self.d_z, self.inner)
            if layer:
                self.d_maps[layer].baddbmm_(wide.chunk_t[i], narrow.chunk[i])
            else:
                torch.bmm(wide.chunk_t[i], narrow.chunk[i], out=self.d_maps[layer])
            d_inner[layer].baddbmm_(self.d_z[layer].chunk[i], self.maps[layer])
            if layer:
                self.d_z[layer - 1].chunk[i].addcmul_(self.slope[layer - 1].chunk[i], d_inner[layer])
        if not self.given:
            self.add_to_weights(self.d_maps)

    def add_to_weights(self, grads: Sequence[Tensor]) -> None:
        """To the gradient of the weights at the start of the chunk that was just done."""
        for o, g in zip(self.omega, grads, strict=True):
            o.block_weights[-1].add_(g)

    def results(self) -> list[Tensor]:
        halves = [d.unflatten(-1, (2, -1)).sum(-1) for d in self.dots]
        ends = (sum(h[..., 0] for h in halves), sum(x.sum(-1) for x in self.crosses), sum(h[..., 1] for h in halves))
        states = [o.block[-1].clone() for o in self.omega]
        anchors = self.d_maps if self.given else ()
        return [*(x.data for x in self.results_), torch.stack(ends, -1), *states, *anchors]  # type: ignore[arg-type]
