"""The way out of a memory without its locked coordinates: RMSNorm per head, gate, output projection (see `narrow`).

What is locked reads zero. It counts in the norm's mean and adds nothing behind it, so the gate's rows and the columns of
the output projection that meet it are left out, and the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from proteus_models.narrow import Run, add_product, blocks, columns, products, rows

ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "silu": (torch.nn.functional.silu, torch.ops.aten.silu_backward),
    "sigmoid": (torch.sigmoid, lambda d, x: torch.ops.aten.sigmoid_backward(d, x.sigmoid())),
}
"""Each with its backward, (gradient, input) -> gradient."""


def read_out(
    y_BTHV: Tensor, x_BTD: Tensor, norm: torch.nn.RMSNorm, gate_RD: Tensor | None, activation: str, out_DR: Tensor,
    cut: Sequence[Run], axis: str,
) -> Tensor:  # fmt: skip
    """(norm(y) * activation(x W^T)) O^T where y is zero beyond the open coordinates of each run (value columns or heads)."""
    assert norm.eps is not None
    return _ReadOut.apply(y_BTHV, x_BTD, norm.weight, gate_RD, out_DR, _How(norm.eps, activation, tuple(cut), axis == "head"))


class _How:
    """What is constant: the runs in channels of each group. Heads are one group, in which n heads are n V channels."""

    def __init__(self, eps: float, activation: str, cut: Sequence[Run], by_head: bool) -> None:
        self.eps, self.cut, self.by_head = eps, cut, by_head
        self.act, self.act_backward = ACTIVATIONS[activation]

    def runs(self, y: Tensor) -> tuple[list[Run], int]:
        """Runs in channels, and the number of groups."""
        if self.by_head:
            return [run._replace(opened=run.opened * y.shape[3]) for run in self.cut], 1
        return list(self.cut), y.shape[2]

    def unit(self, y: Tensor, run: Run, groups: int) -> tuple[Tensor, Tensor]:
        """The open part over its root mean square [B, t, heads, open V], and one over that root."""
        part = columns(y[:, run.start : run.stop].flatten(2), groups, run.opened)
        part = part.unflatten(-1, (-1, y.shape[3])).squeeze(2) if self.by_head else part
        root = (part.square().sum(-1, keepdim=True) / y.shape[3]).add_(self.eps).rsqrt_()
        return part * root, root


def _steps(run: Run, groups: int) -> Iterator[tuple[Run, slice]]:
    """A run in steps of elementwise work, and their places inside it."""
    for at, n in blocks(run.stop - run.start, groups * run.opened):
        yield run._replace(start=run.start + at, stop=run.start + at + n), slice(at, at + n)


def _product(x: Tensor, weight: Tensor | None, run: Run, groups: int) -> Tensor | None:
    return None if weight is None else x[:, run.start : run.stop] @ rows(weight, groups, run.opened).T


class _ReadOut(torch.autograd.Function):
    """In parts of one product each: what it makes is used up in the cache, and only the gate is kept."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, norm: Tensor, gate: Tensor | None, out: Tensor, how: _How) -> Tensor:
        result, gates = x.new_empty(*x.shape[:2], out.shape[0]), []
        cut, groups = how.runs(y)
        for run in cut:
            to_out = columns(out, groups, run.opened).flatten(1).T.expand(len(x), -1, -1)
            for part in products(run):
                g = _product(x, gate, part, groups)
                gates.append(g)
                hidden = x.new_empty(len(x), part.stop - part.start, groups * run.opened)
                for step, here in _steps(part, groups):
                    unit, _ = how.unit(y, step, groups)
                    torch.mul(unit, norm[: unit.shape[-1]], out=hidden[:, here].view(unit.shape))
                    if g is not None:
                        hidden[:, here].mul_(how.act(g[:, here]))
                torch.bmm(hidden, to_out, out=result[:, part.start : part.stop])
        ctx.how = how
        ctx.save_for_backward(y, x, norm, gate, out, *gates)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_result: Tensor) -> tuple[Tensor | None, ...]:
        y, x, norm, gate, out, *gates = ctx.saved_tensors
        how: _How = ctx.how
        d_norm, d_gate, d_out = (None if z is None else torch.zeros_like(z) for z in (norm, gate, out))
        assert d_norm is not None and d_out is not None
        cut, groups = how.runs(y)
        whole = all(groups * run.opened == y.shape[2] * y.shape[3] for run in cut)
        d_y, d_x = (torch.empty_like if whole else torch.zeros_like)(y), (torch.zeros_like if gate is None else torch.empty_like)(x)
        for part, g in zip((part for run in cut for part in products(run)), gates, strict=True):
            d_here, from_out = d_result[:, part.start : part.stop], columns(out, groups, part.opened).flatten(1)
            d_hidden = d_here @ from_out
            hidden, d_g = torch.empty_like(d_hidden), None if g is None else torch.empty_like(g)
            for step, here in _steps(part, groups):
                unit, root = how.unit(y, step, groups)
                d_unit = d_hidden[:, here]
                torch.mul(unit, norm[: unit.shape[-1]], out=hidden[:, here].view(unit.shape))
                if g is not None and d_g is not None:
                    open_gate = how.act(g[:, here])
                    d_g[:, here] = how.act_backward(d_unit * hidden[:, here], g[:, here])
                    hidden[:, here].mul_(open_gate)
                    d_unit.mul_(open_gate)
                _norm_backward(d_unit.view(unit.shape), unit, root, norm, d_norm, d_y[:, step.start : step.stop])
            if d_g is not None and d_gate is not None:
                add_product(d_x, d_gate, d_g, x, gate, part, groups, first=True)
            d_columns = d_here.flatten(0, 1).T @ hidden.flatten(0, 1)
            columns(d_out, groups, part.opened).add_(d_columns.unflatten(1, (groups, -1)))
        return d_y, d_x, d_norm, d_gate, d_out, None


def _norm_backward(d_unit: Tensor, unit: Tensor, root: Tensor, norm: Tensor, d_norm: Tensor, d_y: Tensor) -> None:
    """Into d_y and d_norm. d_unit, the gradient of unit * norm, and unit are used up."""
    width = unit.shape[-1]
    d_norm[:width].add_((d_unit * unit).sum((0, 1, 2)))
    d_unit.mul_(norm[:width])
    along = (d_unit * unit).sum(-1, keepdim=True).div_(d_y.shape[3])
    torch.mul(d_unit.addcmul_(unit, along, value=-1), root, out=d_y[:, :, : unit.shape[2], :width])
