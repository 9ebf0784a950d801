"""The way into a memory without its locked coordinates: projections, short convolution with SiLU, L2 norms (see `narrow`).

One autograd function. Forward and backward go through time in blocks: what a block's product makes is used up in the cache,
and only the convolution's inputs, the roots of the norms and the outputs are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proteus_models.narrow import PRODUCT, Run, add_product, blocks, columns, rows, runs, whole

silu_backward = torch.ops.aten.silu_backward


class Kind(NamedTuple):
    """One of the stacked projections (q, k or v): `size` rows in heads of `width`, each head normalised or not."""

    size: int
    width: int
    normed: bool


def inputs(
    x_BTD: Tensor, weight_RD: Tensor, taps_WR: Tensor | None, tail_BWR: Tensor | None, *, widths: Sequence[int], heads: int,
    skipped: Sequence[bool], axis: str, active: Sequence[int] | None, normed: Sequence[bool], eps: float = 0.0,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Projections of several kinds (q, k, v) stacked in W: their outputs [B, T, heads, width], and the new tail.

    skipped: which kinds leave out their locked coordinates of `axis`; normed: which become x / sqrt(sum x^2 + eps) per head.
    """
    length, kinds = x_BTD.shape[1], [Kind(heads * width, width, norm) for width, norm in zip(widths, normed, strict=True)]
    saved = x_BTD.shape[-1] * sum(kind.size for kind, skips in zip(kinds, skipped, strict=True) if skips)
    cut = runs(active, {"head": heads, "key": widths[0], "value": widths[-1]}[axis], saved) if saved else None
    layouts = [(1, w) if axis == "head" else (heads, 1) for w in widths]  # groups, and channels a coordinate opens in each
    own = [layout if skips and cut else None for layout, skips in zip(layouts, skipped, strict=True)]
    parts = [(layout, [kind for _, kind in found]) for layout, found in groupby(zip(own, kinds, strict=True), lambda kind: kind[0])]
    rows_of = [sum(kind.size for kind in found) for _, found in parts]
    convs: list[Any] = [(None, None)] * len(parts)
    if taps_WR is not None and tail_BWR is not None:
        convs = list(zip(taps_WR.split(rows_of, -1), tail_BWR.split(rows_of, -1), strict=True))
    outs, ends = [], []
    for (layout, found), weight, (taps, tail) in zip(parts, weight_RD.split(rows_of), convs, strict=True):
        groups, opened = 1, whole(length, len(weight))
        if layout is not None and cut is not None:
            groups, opened = layout[0] * len(found), [run._replace(opened=run.opened * layout[1]) for run in cut]
        *ys, end = _Project.apply(x_BTD, weight, taps, tail, _How(found, groups, opened, eps))
        outs += ys
        ends.append(end)
    return outs, ends[0] if len(ends) == 1 else torch.cat(ends, -1)


class _How(NamedTuple):
    """What is constant: each run opens the first coordinates of `groups` equal groups of the kinds' rows."""

    kinds: list[Kind]
    groups: int
    cut: list[Run]
    eps: float

    def opened(self, run: Run) -> list[tuple[slice, int, int]]:
        """Of each kind: its place among the open channels of a run, which are so many heads times so many coordinates."""
        total, found, start = sum(kind.size for kind in self.kinds), [], 0
        for kind in self.kinds:
            channels = kind.size * run.opened * self.groups // total
            width = max(1, min(kind.width, run.opened))  # a group is all the rows, the heads of a kind, or one head
            found.append((slice(start, start + channels), channels // width, width))
            start += channels
        return found


class _Project(torch.autograd.Function):
    """silu(conv(x W^T)) or, without taps, x W^T: an output [B, T, heads, width] a kind, zero where it is locked, normed or not.

    And the new tail, the convolution's last inputs, always whole.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, taps: Tensor | None, tail: Tensor | None, how: _How) -> tuple[Tensor, ...]:
        length, full = x.shape[1], how.groups * how.cut[0].opened == len(weight) and len(how.cut) == 1
        new = x.new_empty if full else x.new_zeros
        outs = [new(*x.shape[:2], kind.size // kind.width, kind.width) for kind in how.kinds]
        roots = [new(*x.shape[:2], kind.size // kind.width, 1) if kind.normed else None for kind in how.kinds]
        saved = [_run_forward(x, weight, taps, tail, outs, roots, how, run) for run in how.cut]
        normed = [out if kind.normed else None for kind, out in zip(how.kinds, outs, strict=True)]
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, taps, tail, *normed, *roots, *(saved if taps is not None else ()))
        if tail is None:
            return *outs, x.new_zeros(0)
        early = tail.shape[1]
        if full:
            return *outs, saved[0][:, length:].clone()
        return *outs, torch.cat([tail, x[:, -early:] @ weight.T], 1)[:, -early:].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_all: Any) -> tuple[Tensor | None, ...]:
        *d_outs, d_end = d_all
        x, weight, taps, tail, *kept = ctx.saved_tensors
        how, n = ctx.how, len(d_outs)
        normed, roots, saved = kept[:n], kept[n : 2 * n], kept[2 * n :] or [None] * len(ctx.how.cut)
        used, first = any(d is not None for d in d_outs), len(how.cut) == 1
        d_x = torch.empty_like(x) if used and first else torch.zeros_like(x)
        d_taps, d_tail = (None if z is None else torch.zeros_like(z) for z in (taps, tail))
        grads = _Grads(d_x, torch.zeros_like(weight), d_taps, d_tail)
        if used:
            outs = list(zip(normed, roots, d_outs, strict=True))
            for run, u in zip(how.cut, saved, strict=True):
                _run_backward(x, weight, taps, u, outs, how, run, grads)
        if d_end is not None and d_tail is not None:  # rows that came from x, and those that were there before
            early, new = d_tail.shape[1], min(d_tail.shape[1], x.shape[1])
            d_tail[:, x.shape[1] :].add_(d_end[:, : early - new])
            at = Run(x.shape[1] - new, x.shape[1], weight.shape[0] // how.groups)
            add_product(grads.x, grads.weight, d_end[:, early - new :], x, weight, at, how.groups)
        return *grads, None


class _Grads(NamedTuple):
    x: Tensor
    weight: Tensor
    taps: Tensor | None
    tail: Tensor | None


def _run_forward(
    x: Tensor, weight: Tensor, taps: Tensor | None, tail: Tensor | None, outs: list[Tensor], roots: list[Any], how: _How, run: Run
) -> Tensor:
    """One run of the outputs. Returns what the convolution reads: from width - 1 positions before it, of the tail's too."""
    early, length = 0 if tail is None else tail.shape[1], run.stop - run.start
    before, opened = min(early, run.start), rows(weight, how.groups, run.opened).T.expand(len(x), -1, -1)
    u = x.new_empty(len(x), early + length, opened.shape[-1])
    if tail is not None and before < early:
        u[:, : early - before] = columns(tail[:, run.start :], how.groups, run.opened).flatten(2)
    own = None if taps is None else columns(taps, how.groups, run.opened).flatten(1)
    parts = list(zip(how.opened(run), outs, roots, strict=True))
    for at in range(0, length, PRODUCT):
        first, last = at + early if at else early - before, min(at + PRODUCT, length) + early
        torch.bmm(x[:, run.start - early + first : run.start - early + last], opened, out=u[:, first:last])
        for step, n in blocks(last - early - at, u.shape[-1]):
            here = slice(run.start + at + step, run.start + at + step + n)
            y = u[:, at + step : at + step + n] if own is None else torch.ops.aten.silu_(_conv(u, own, at + step, n))
            for (part, heads, width), out, root in parts:
                given, goal = y[..., part].view(len(x), n, heads, width), out[:, here, :heads, :width]
                if root is None:
                    goal.copy_(given)
                    continue
                r = root[:, here, :heads]
                torch.rsqrt(given.square().sum(-1, keepdim=True).add_(how.eps), out=r)
                torch.mul(given, r, out=goal)
    return u


def _run_backward(
    x: Tensor, weight: Tensor, taps: Tensor | None, u: Tensor | None, outs: list[tuple[Any, ...]], how: _How, run: Run,
    grads: _Grads,
) -> None:  # fmt: skip
    """outs: the output (where it is normed), its roots and its gradient of each kind."""
    early, length = 0 if taps is None else len(taps) - 1, run.stop - run.start
    own = None if taps is None else columns(taps, how.groups, run.opened).flatten(1)
    d_own, channels, opened = None if own is None else torch.zeros_like(own), how.groups * run.opened, how.opened(run)
    carry = x.new_zeros(len(x), early, channels)
    for at in range(0, length, PRODUCT):
        n = min(PRODUCT, length - at)
        d_u = x.new_zeros(len(x), early + n, channels)
        d_u[:, :early] = carry  # what the block before owes to the inputs that both read
        for step, size in blocks(n, channels):
            d = x.new_empty(len(x), size, channels)
            _before_norms(d, outs, opened, slice(run.start + at + step, run.start + at + step + size))
            if own is None or d_own is None or u is None:
                d_u[:, step : step + size] = d
                continue
            d = silu_backward(d, _conv(u, own, at + step, size))
            for i, tap in enumerate(own):
                d_u[:, step + i : step + i + size].addcmul_(d, tap)
                d_own[i].add_((d * u[:, at + step + i : at + step + i + size]).sum((0, 1)))
        carry = d_u[:, n:]
        first = run.start - early + at
        given, stop = max(0, -first), n if at + n < length else n + early
        if given and grads.tail is not None:
            d_given = d_u[:, :given].unflatten(2, (how.groups, -1))
            columns(grads.tail[:, run.start : run.start + given], how.groups, run.opened).add_(d_given)
        here = Run(first + given, first + stop, run.opened)
        add_product(grads.x, grads.weight, d_u[:, given:stop], x, weight, here, how.groups, first=len(how.cut) == 1)
    if d_own is not None and grads.taps is not None:
        columns(grads.taps, how.groups, run.opened).add_(d_own.unflatten(1, (how.groups, -1)))


def _before_norms(d_all: Tensor, outs: list[tuple[Any, ...]], opened: list[tuple[slice, int, int]], here: slice) -> None:
    """Into d_all [B, t, open channels] of all kinds: their gradients before their norms, at some positions."""
    for (part, heads, width), (y, root, d) in zip(opened, outs, strict=True):
        goal = d_all[..., part].view(*d_all.shape[:2], heads, width)
        if d is None:
            goal.zero_()
        elif root is None:
            goal.copy_(d[:, here, :heads, :width])
        else:
            y_here, d_here = y[:, here, :heads], d[:, here, :heads]
            along = torch.mul(y_here, d_here, out=goal).sum(-1, keepdim=True)
            torch.addcmul(d_here, y_here, along, value=-1, out=goal).mul_(root[:, here, :heads])


def _conv(u: Tensor, taps: Tensor, at: int, n: int) -> Tensor:
    y = u[:, at : at + n] * taps[0]
    for i in range(1, len(taps)):
        y.addcmul_(u[:, at + i : at + i + n], taps[i])
    return y
