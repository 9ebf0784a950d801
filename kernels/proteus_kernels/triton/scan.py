"""The delta family on Triton as one autograd function; what belongs to one rule only is in `delta`, `comba`, `linear`.

    forward    solve -> carry -> output                 saved: the inputs and T
    backward   carry again -> inner -> carry_back -> pairs -> gradients

`Scan` holds what is constant in a pass and starts the kernels. Tensors are flat, [T, H, D] with all sequences one after
another (see `chunks`); the state is [N, H, K, V], one entry a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from proteus_kernels.triton import delta_backward, delta_forward
from proteus_kernels.triton.chunks import ChunkTable
from proteus_kernels.triton.tuned import Products, launch, tile


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One pass: the chunks, the masked axis, and the rule (read before the write; predict before the decay)."""

    table: ChunkTable
    axis: str
    pre: bool
    undecayed: bool
    products: Products

    def __call__(
        self, q: Tensor, k: Tensor, p: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """y [T, H, V] in the type of v and the final state in that of `state`.

        p None: k predicts; beta None: nothing does; g None: nothing decays.
        """
        y, final = _Recurrence.apply(self, q, k, p, v, g, beta, state)
        return y, final

    def start(self, kernel: Any, grid: str, like: Tensor, state: Tensor, *arguments: Any, **rule: bool) -> None:
        """Run a kernel on grid "chunks", "chunks x keys", "chunks x values" or "values x sequences" (heads in the middle)."""
        _, H, K, V = state.shape
        options = launch(kernel.fn.__name__, like.device, K, V, self.axis)
        keys, values = triton.cdiv(K, options.BK), triton.cdiv(V, options.BV)
        grids = {
            "chunks": (self.table.chunks, H),
            "chunks x keys": (self.table.chunks, H, keys),
            "chunks x values": (self.table.chunks, H, values),
            "values x sequences": (values, H, self.table.sequences),
        }
        constants = {
            "H": H, "K": K, "V": V, "AXIS": self.axis, "PRE": self.pre, "UNDECAYED": self.undecayed,
            "C": tile(self.table.size), "BK": options.BK, "BV": options.BV, "NK": keys,
            "DOT": self.products.dot, "PREC": self.products.precision, **rule,
        }  # fmt: skip
        taken = {name: value for name, value in constants.items() if name in kernel.arg_names}
        with torch.cuda.device_of(like):  # triton launches on the current device; does nothing for tensors on the CPU
            kernel[grids[grid]](*arguments, **taken, num_warps=options.num_warps, num_stages=options.num_stages)

    def carry(
        self, k: Tensor, p: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, inverse: Tensor | None, state: Tensor,
        final: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The states that chunks start from [chunks, H, K, V], and D [T, H, V]."""
        states = state.new_empty(self.table.chunks, *state.shape[1:], dtype=self.products.stored)
        delta = v if inverse is None else torch.empty_like(v, dtype=self.products.stored)
        self.start(
            delta_forward.carry, "values x sequences", v, state,
            k, p, v, g, beta, inverse, state, self.table.table, self.table.first, states, delta, final,
            PREDICT=inverse is not None, FINAL=final is not None, DECAY=g is not None,
        )  # fmt: skip
        return states, delta


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scan: Scan, q: Tensor, k: Tensor, p: Tensor | None, v: Tensor, g: Tensor | None, beta: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v, state = (x.contiguous() for x in (q, k, v, state))
        p, g, beta = (None if x is None else x.contiguous() for x in (p, g, beta))
        table, rule, used = scan.table.table, {"DECAY": g is not None}, k if p is None else p
        inverse = None
        if beta is not None:
            inverse = k.new_empty(*k.shape[:2], tile(scan.table.size), dtype=scan.products.stored)
            scan.start(delta_forward.solve, "chunks", k, state, k, used, g, beta, table, inverse, **rule)
        y, final = torch.empty_like(v), torch.empty_like(state)
        states, delta = scan.carry(k, used, v, g, beta, inverse, state, final)
        scale = k.shape[-1] ** -0.5
        scan.start(
            delta_forward.output, "chunks x values", q, state, q, k, delta, g, states, table, y, scale, **rule
        )
        ctx.scan = scan
        ctx.save_for_backward(q, k, p, v, g, beta, state, inverse)
        return y, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        scan, (q, k, p, v, g, beta, state, inverse) = ctx.scan, ctx.saved_tensors
        table, used, scale = scan.table.table, k if p is None else p, k.shape[-1] ** -0.5
        rule = {"DECAY": g is not None, "PREDICT": beta is not None}
        dy, d_final = dy.contiguous(), d_final.contiguous()
        states, delta = scan.carry(k, used, v, g, beta, inverse, state, None)
        d_inner, f = (torch.empty_like(v, dtype=scan.products.stored) for _ in range(2))
        scan.start(
            delta_backward.inner, "chunks x values", q, state, q, k, g, table, dy, d_inner, scale, **rule
        )
        d_states, dv, d_initial = torch.empty_like(states), torch.empty_like(v), torch.empty_like(state)
        scan.start(
            delta_backward.carry_back, "values x sequences", q, state,
            q, k, used, g, beta, inverse, table, scan.table.first, dy, d_inner, d_final, d_states, f, dv, d_initial, scale,
            **rule,
        )  # fmt: skip
        dq, dk, dp = torch.empty_like(q), torch.empty_like(k), None if p is None else torch.empty_like(p)
        parts = triton.cdiv(k.shape[-1], launch("gradients", k.device, k.shape[-1], v.shape[-1], scan.axis).BK)
        dg = None if g is None else g.new_empty(parts, *g.shape, dtype=torch.float32)
        dbeta = None if beta is None else beta.new_empty(1 + parts, *beta.shape, dtype=torch.float32)
        square = k.new_empty(2, *k.shape[:2], tile(scan.table.size), dtype=scan.products.stored)
        scan.start(
            delta_backward.pairs, "chunks", q, state, v, g, delta, f, table, dy, *square, dbeta, scale, **rule
        )
        scan.start(
            delta_backward.gradients, "chunks x keys", q, state,
            q, k, used, g, beta, delta, f, *square, states, d_states, table, dy, dq, dk, dp, dg, dbeta, scale, k.shape[0],
            SAME=p is None, **rule,
        )  # fmt: skip
        dg, dbeta = (None if x is None else x.sum(0) for x in (dg, dbeta))
        return None, dq, dk, dp, dv, dg, dbeta, d_initial
