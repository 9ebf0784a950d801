"""The dual form of an MLP Titans memory over equal inner chunks: forward and hand-written backward.

An autograd graph of many small products costs more than the products, so a whole run of chunks is ONE
`torch.autograd.Function`, which keeps the products and the states of every chunk and makes again what is elementwise.

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
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from proteus_kernels.pieces import full_precision
from proteus_kernels.titans_dual_backward import Gradients
from proteus_kernels.titans_dual_forward import Chunks, Kept, Run
from proteus_kernels.titans_tracks import Track


def dual(run: Run, states: Sequence[Tensor], anchors: Sequence[Tensor], output: int) -> tuple[Tensor, ...]:
    """y [n, G, C, V], the states after the run, and the weights at the last chunk's start (none for a single chunk).

    States [G, rows, 2 cols]. `anchors` [G, rows, cols] are those of a chunk that was begun before; (): every chunk
    anchors at its start. The first `output` hidden units are read.
    """
    inputs = tuple(x.to(states[0].dtype) for x in (*vars(run).values(), *states, *anchors))
    record = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    return Dual.apply(len(states), output, record, *inputs)


class Dual(torch.autograd.Function):
    """See `dual`."""

    @staticmethod
    @full_precision
    def forward(ctx: Any, depth: int, output: int, record: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        work = Chunks(*_unpack(depth, inputs), output)
        y = Track(torch.empty_like(work.minus_v.data), work.s)
        saved: list[Tensor] = []
        last: tuple[Tensor, ...] = ()
        for i in range(work.n):
            if i and i == work.n - 1:
                last = tuple(x.anchor.clone(memory_format=torch.contiguous_format) for x in work.x)
            saved += work.forward(i, y, record)
        if record:
            ctx.depth, ctx.output = depth, output
            ctx.save_for_backward(*inputs, *saved)
        return y.data, *(x.block[0].clone() for x in work.x), *last

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        depth, saved, n = ctx.depth, ctx.saved_tensors, grads[0].shape[0]
        each = Kept.count(depth)
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
