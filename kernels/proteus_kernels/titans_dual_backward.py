"""The backward of `titans_dual`, one inner chunk after another from the last; shapes and equations stand there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels.titans_dual_forward import Chunks, Kept, Run, silu, silu_backward
from proteus_kernels.titans_tracks import Track, fold, scale


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
        self.deltas[-1].chunk[i].copy_(kept.error)
        for layer in range(self.last):
            self.recompute(layer, i, kept)
        for layer in reversed(range(self.depth)):
            self.d_read(layer, i, kept)
        for layer in range(self.depth):
            self.d_write(layer, i)
        self.d_predict(i, kept)

    def recompute(self, layer: int, i: int, kept: Kept) -> None:
        """x, delta, r, the slope silu'(z) = s + x (1 - s) and the curve silu''(z) = (1 - s) (slope + s - x s)."""
        s, x = self.d_inner[layer + 1].chunk[i], self.inner[layer + 1].chunk[i]
        slope, curve = self.slope[layer].chunk[i], self.curve[layer].chunk[i]
        torch.sigmoid(kept.z[layer], out=s)
        torch.mul(kept.z[layer], s, out=x)
        torch.addcmul(s, x, s, value=-1, out=curve)
        torch.add(curve, x, out=slope)
        curve.add_(slope)
        curve.addcmul_(curve, s, value=-1)
        torch.mul(slope, kept.g[layer], out=self.deltas[layer].chunk[i])
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
            scale(self.carried, d_u.block[i], pairs, i)
            torch.bmm(r.block_t[i], pairs.block[i], out=d_x.flat)
            torch.bmm(pairs.block[i], x.flat_t, out=d_r)
            self.factors(layer, kept.u[layer].chunk(2, -1), d_u.block[i], self.d_carried.block[i], True)
        else:
            self.d_mix.block[i].addcmul_(scores, d_scores.block[i])
            back = self.back[layer]
            scale(self.carried, r.block[i], pairs, i)
            torch.bmm(d_u.block_t[i], pairs.block[i], out=d_x.flat)
            torch.bmm(d_u.block[i], x.flat, out=back.block[i])
            fold(self.carried, back, i, d_r)
            self.factors(layer, (back.first[i], back.second[i]), r.block[i], self.d_carried.block[i], False)
        d_scores.block[i].mul_(self.minus_mix.block[i])
        d_r.baddbmm_(d_scores.block[i], self.inner[layer].block[i])
        torch.bmm(d_scores.block_t[i], r.block[i], out=self.d_inner[layer].block[i])
        if layer:
            if self.mask is not None:
                d_r.mul_(self.mask)
            silu_backward(d_r, kept.u[layer - 1], grad_input=d_r)

    def factors(self, layer: int, pair: Sequence[Tensor], y: Tensor, out: Tensor, first: bool) -> None:
        """The gradient of two factors, <x_1, y> and <x_2, y> per position: into `out`, or added to it."""
        product = self.product[layer]
        torch.mul(pair[0], y, out=product.first[0])
        torch.mul(pair[1], y, out=product.second[0])
        if first:
            torch.sum(product.pair[0], -1, out=out)
        else:
            out.add_(torch.sum(product.pair[0], -1, out=self.two.block[0]))

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
        scale(self.minus_ends, narrow.block[i], pairs, i)
        d_wide.block[i].baddbmm_(pairs.block[i], o.flat_t)
        torch.bmm(wide.block[i], o.flat, out=back.block[i])
        d_narrow.block[i].addcmul_(back.first[i], self.minus_ends.first[i])
        d_narrow.block[i].addcmul_(back.second[i], self.minus_ends.second[i])
        self.factors(layer, (back.first[i], back.second[i]), narrow.block[i], self.d_rows.block[i], layer == 0)
        self.d_step(layer, 0, i)

    def d_step(self, layer: int, j: int, i: int) -> None:
        o, d_x = self.omega[layer], self.d_x[layer]
        d_x.block_momenta[j].addcmul_(o.block_weights[j], self.carry[j][i])
        torch.addcmul(d_x.block[j], o.block[j], self.keep[layer][j][i], out=o.block[j - 1])

    def d_predict(self, i: int, kept: Kept) -> None:
        d_inner, d_deltas = ([x.chunk[i] for x in tracks] for tracks in (self.d_inner, self.d_deltas))
        for layer in range(self.last):
            slope, d_g, d_z = (x[layer].chunk[i] for x in (self.slope, self.d_g, self.d_z))
            torch.mul(slope, d_deltas[layer], out=d_g)
            torch.mul(d_deltas[layer], kept.g[layer], out=d_z).mul_(self.curve[layer].chunk[i])
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
