"""Linear maps that leave out what a schedule locks: what the ways into a memory (`narrow_inputs`) and out of it share.

A row of a projection that feeds only locked coordinates gives nothing that is ever read. Time is cut into `Run`s of one
count of open coordinates (the largest, where neighbours share one), and each run multiplies the open rows alone. The result
has its full width, zero where it is locked. One autograd function a map: slices of weights and of time would each fill a
whole gradient in the backward, and what is elementwise here works on a few positions at a time, inside the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proteus_kernels.masks import segments

WORK = 2**23
"""Multiplications of a run at least (0.2 ms forward and backward on one core): below, its calls cost more than they save."""
PRODUCT = 4096
"""Positions of a product at most, so that what it makes is used in the cache; fewer ask more often for the weights."""
BLOCK = 2**18
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


def products(run: Run) -> Iterator[Run]:
    """A run in parts of one product."""
    return (run._replace(start=at, stop=min(run.stop, at + PRODUCT)) for at in range(run.start, run.stop, PRODUCT))


def columns(x: Tensor, groups: int, n: int) -> Tensor:
    """[..., rows] -> a view [..., groups, n] of the first n of each group."""
    return x.unflatten(-1, (groups, -1))[..., :n]


def rows(weight_RD: Tensor, groups: int, n: int) -> Tensor:
    """The first n rows of each group."""
    return weight_RD.unflatten(0, (groups, -1))[:, :n].flatten(0, 1)


def blocks(length: int, width: int) -> Iterator[tuple[int, int]]:
    """(start, positions) of the steps of an elementwise pass over so many channels, all about equally long."""
    steps = max(1, -(-length * width // BLOCK))
    size = -(-length // steps)
    return ((at, min(size, length - at)) for at in range(0, length, size))


def add_product(
    d_x: Tensor, d_weight: Tensor, d_u: Tensor, x: Tensor, weight: Tensor, run: Run, groups: int, *, first: bool = False
) -> None:
    """The gradients of u = x W^T over the positions and open rows of a run. first: nothing is in these rows of d_x yet."""
    opened, here = rows(weight, groups, run.opened), slice(run.start, run.stop)
    d_x[:, here].baddbmm_(d_u, opened.expand(len(x), *opened.shape), beta=0 if first else 1)
    d_rows = d_u.flatten(0, 1).T @ x[:, here].flatten(0, 1)
    d_weight.unflatten(0, (groups, -1))[:, : run.opened].add_(d_rows.unflatten(0, (groups, -1)))
