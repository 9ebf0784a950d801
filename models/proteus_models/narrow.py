"""Linear maps that leave out what a schedule locks: projections (with their short convolution) into a memory and out of it.

A row of a projection that feeds only locked coordinates gives nothing that is ever read. Time is cut into `Run`s of one
count of open coordinates (the largest, where neighbours share one), and each run multiplies the open rows alone. The result
has its full width, zero where it is locked. One autograd function a map: slices of weights and of time would each fill a
whole gradient in the backward, and what is elementwise here works on a few positions at a time, inside the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proteus_kernels.masks import segments

silu_backward = torch.ops.aten.silu_backward
WORK = 2**23
"""Multiplications of a run at least (0.2 ms forward and backward on one core): below, its calls cost more than they save."""
BLOCK = 2**17
"""Entries of an elementwise step: a few tensors of that size stay in the cache."""


class Run(NamedTuple):
    """Positions start .. stop-1, `opened` coordinates of every group."""

    start: int
    stop: int
    opened: int


def runs(active: Sequence[int] | None, dim: int, per_position: int) -> list[Run] | None:
    """Runs of `WORK` or more; None where leaving out nothing is as fast. per_position: multiplications of the whole map."""
    if active is None or len(active) * per_position < WORK or min(active) == dim:
        return None
    found: list[Run] = []
    for start, stop, n in segments(active, len(active), dim):
        last = found[-1] if found else None
        if last and (last.stop - last.start) * per_position < WORK:
            found[-1] = Run(last.start, stop, max(n, last.opened))
        elif last and n == last.opened:
            found[-1] = Run(last.start, stop, n)
        else:
            found.append(Run(start, stop, n))
    return found


def pays(x_BTD: Tensor) -> bool:
    """Whether these functions are the fast way: several positions on a CPU, in 32 bits or more."""
    return x_BTD.shape[1] > 1 and x_BTD.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def inputs(
    x_BTD: Tensor, weight_RD: Tensor, taps_WR: Tensor | None, tail_BWR: Tensor | None, *, widths: Sequence[int], heads: int,
    skipped: Sequence[bool], axis: str, active: Sequence[int] | None,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Projections of several kinds (q, k, v) stacked in W: their outputs [B, T, heads, width], and the new tail.

    skipped: which kinds leave out their locked coordinates of `axis`.
    """
    length, sizes = x_BTD.shape[1], [heads * width for width in widths]
    saved = x_BTD.shape[-1] * sum(size for size, skips in zip(sizes, skipped, strict=True) if skips)
    cut = runs(active, {"head": heads, "key": widths[0], "value": widths[-1]}[axis], saved) if saved else None
    layouts = [(1, w) if axis == "head" else (heads, 1) for w in widths]  # groups, and channels a coordinate opens in each
    own = [layout if skips and cut else None for layout, skips in zip(layouts, skipped, strict=True)]
    parts = [(layout, [size for _, size in kinds]) for layout, kinds in groupby(zip(own, sizes, strict=True), lambda kind: kind[0])]
    rows_of = [sum(kinds) for _, kinds in parts]
    convs: list[Any] = [(None, None)] * len(parts)
    if taps_WR is not None and tail_BWR is not None:
        convs = list(zip(taps_WR.split(rows_of, -1), tail_BWR.split(rows_of, -1), strict=True))
    outs, ends = [], []
    for (layout, kinds), weight, (taps, tail) in zip(parts, weight_RD.split(rows_of), convs, strict=True):
        groups, opened = 1, whole(length, sum(kinds))
        if layout is not None and cut is not None:
            groups, opened = layout[0] * len(kinds), [run._replace(opened=run.opened * layout[1]) for run in cut]
        y, end = project(x_BTD, weight, taps, tail, opened, groups)
        outs += y.split(kinds, -1)
        ends.append(end)
    return [y.unflatten(-1, (heads, -1)) for y in outs], ends[0] if len(ends) == 1 else torch.cat(ends, -1)


def unit(x_BTHK: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    return _Unit.apply(x_BTHK, eps)


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        y, roots = torch.empty_like(x), x.new_empty(*x.shape[:-1], 1)
        for at, n in blocks(x.shape[1], x[0, 0].numel()):
            part, root = x[:, at : at + n], roots[:, at : at + n]
            torch.rsqrt(part.square().sum(-1, keepdim=True).add_(eps), out=root)
            torch.mul(part, root, out=y[:, at : at + n])
        ctx.save_for_backward(y, roots)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_y: Tensor) -> tuple[Tensor, None]:
        y, roots = ctx.saved_tensors
        d_x = torch.empty_like(y)
        for at, n in blocks(y.shape[1], y[0, 0].numel()):
            here = slice(at, at + n)
            along = (y[:, here] * d_y[:, here]).sum(-1, keepdim=True)
            torch.addcmul(d_y[:, here], y[:, here], along, value=-1, out=d_x[:, here]).mul_(roots[:, here])
        return d_x, None


def whole(length: int, dim: int) -> list[Run]:
    return [Run(0, length, dim)]


def project(
    x_BTD: Tensor, weight_RD: Tensor, taps_WR: Tensor | None, tail_BWR: Tensor | None, cut: Sequence[Run], groups: int
) -> tuple[Tensor, Tensor]:
    """silu(conv(x W^T)) on the first coordinates of each of `groups` equal groups of rows, zero on the others.

    Without taps it is x W^T alone. Returns y_BTR and the new tail: the convolution's last inputs, always whole.
    """
    return _Project.apply(x_BTD, weight_RD, taps_WR, tail_BWR, cut, groups)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, taps: Tensor | None, tail: Tensor | None, cut: Sequence[Run], groups: int
    ) -> tuple[Tensor, Tensor]:
        y, saved = _room(x, weight.shape[0], cut, groups), []
        for run in cut:
            out = columns(y[:, run.start : run.stop], groups, run.opened)
            if taps is None or tail is None:
                out.copy_((x[:, run.start : run.stop] @ rows(weight, groups, run.opened).T).view(out.shape))
                continue
            u = _before_conv(x, weight, tail, run, groups)
            saved.append(u)
            own = columns(taps, groups, run.opened).flatten(1)
            for at, n in blocks(out.shape[1], u.shape[-1]):
                torch.ops.aten.silu.out(_conv(u, own, at, n).view(out[:, at : at + n].shape), out=out[:, at : at + n])
        ctx.cut, ctx.groups = cut, groups
        ctx.save_for_backward(x, weight, taps, tail, *saved)
        ctx.set_materialize_grads(False)
        if taps is None or tail is None:
            return y, x.new_zeros(0)
        early = tail.shape[1]
        if cut == whole(x.shape[1], y.shape[-1] // groups):
            return y, saved[0][:, x.shape[1] :].clone()
        return y, torch.cat([tail, x[:, -early:] @ weight.T], 1)[:, -early:].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_y: Any, d_end: Any) -> tuple[Tensor | None, ...]:
        x, weight, taps, tail, *saved = ctx.saved_tensors
        d_x, d_weight, d_taps, d_tail = (None if z is None else torch.zeros_like(z) for z in (x, weight, taps, tail))
        assert d_x is not None and d_weight is not None
        groups, early = ctx.groups, 0 if tail is None else tail.shape[1]
        for i, run in enumerate(ctx.cut if d_y is not None else ()):
            d_u = columns(d_y[:, run.start : run.stop], groups, run.opened)
            if d_taps is None or d_tail is None:
                d_u = d_u.flatten(2)
            else:
                own = columns(taps, groups, run.opened).flatten(1)
                d_u, d_own = _conv_backward(saved[i], own, d_u.flatten(2))
                columns(d_taps, groups, run.opened).add_(d_own.unflatten(1, (groups, -1)))
                before = max(0, early - run.start)
                columns(d_tail[:, early - before :], groups, run.opened).add_(d_u[:, :before].unflatten(2, (groups, -1)))
                d_u = d_u[:, before:]
            add_product(d_x, d_weight, d_u, x, weight, Run(run.stop - d_u.shape[1], run.stop, run.opened), groups)
        if d_end is not None and d_tail is not None:  # rows that came from x, and those that were there before
            new = min(early, x.shape[1])
            d_tail[:, x.shape[1] :].add_(d_end[:, : early - new])
            at = Run(x.shape[1] - new, x.shape[1], weight.shape[0] // groups)
            add_product(d_x, d_weight, d_end[:, early - new :], x, weight, at, groups)
        return d_x, d_weight, d_taps, d_tail, None, None


def _room(x: Tensor, rows: int, cut: Sequence[Run], groups: int) -> Tensor:
    """[B, T, rows] for the runs to write into: zero where one leaves a gap."""
    new = x.new_zeros if any(groups * run.opened < rows for run in cut) else x.new_empty
    return new(*x.shape[:2], rows)


def columns(x: Tensor, groups: int, n: int) -> Tensor:
    """[..., rows] -> a view [..., groups, n] of the first n of each group."""
    return x.unflatten(-1, (groups, -1))[..., :n]


def rows(weight_RD: Tensor, groups: int, n: int) -> Tensor:
    """The first n rows of each group."""
    return weight_RD.unflatten(0, (groups, -1))[:, :n].flatten(0, 1)


def _before_conv(x: Tensor, weight: Tensor, tail: Tensor, run: Run, groups: int) -> Tensor:
    """What the convolution reads for a run, from width - 1 positions before it: of the tail's too where x begins later."""
    early = tail.shape[1]
    u = x[:, max(0, run.start - early) : run.stop] @ rows(weight, groups, run.opened).T
    return u if run.start >= early else torch.cat([columns(tail[:, run.start :], groups, run.opened).flatten(2), u], 1)


def blocks(length: int, width: int) -> Iterator[tuple[int, int]]:
    """(start, positions) of the steps of an elementwise pass over so many channels."""
    size = max(1, BLOCK // width)
    return ((at, min(size, length - at)) for at in range(0, length, size))


def _conv(u: Tensor, taps: Tensor, at: int, n: int) -> Tensor:
    y = u[:, at : at + n] * taps[0]
    for i in range(1, len(taps)):
        y.addcmul_(u[:, at + i : at + i + n], taps[i])
    return y


def _conv_backward(u: Tensor, taps: Tensor, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the inputs and the taps of silu(conv(u))."""
    d_u, d_taps = torch.zeros_like(u), torch.zeros_like(taps)
    for at, n in blocks(d_y.shape[1], u.shape[-1]):
        d = silu_backward(d_y[:, at : at + n], _conv(u, taps, at, n))
        for i, tap in enumerate(taps):
            d_u[:, at + i : at + i + n].addcmul_(d, tap)
            d_taps[i].add_((d * u[:, at + i : at + i + n]).sum((0, 1)))
    return d_u, d_taps


def add_product(
    d_x: Tensor, d_weight: Tensor, d_u: Tensor, x: Tensor, weight: Tensor, run: Run, groups: int
) -> None:
    """The gradients of u = x W^T over the positions and open rows of a run."""
    opened, here = rows(weight, groups, run.opened), slice(run.start, run.stop)
    d_x[:, here].baddbmm_(d_u, opened.expand(len(x), *opened.shape))
    d_rows = d_u.flatten(0, 1).T @ x[:, here].flatten(0, 1)
    d_weight.unflatten(0, (groups, -1))[:, : run.opened].add_(d_rows.unflatten(0, (groups, -1)))
