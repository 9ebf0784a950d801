"""Linear Titans on Triton: `titans_linear.chunk` as one autograd function over kernels, same arguments and result.

Data flow of a pass (kernels in `titans_gates`, `titans_forward`, `titans_backward`; a piece is a row of the chunk table
on the grid of inner chunks):

    gates_forward -> states_forward (once a phase) -> outputs_forward
    local_backward -> states_backward (phases from the last) -> inputs_backward -> gates_backward

A phase is a run of pieces whose open key rows fit one power of two: its kernel is compiled for that many rows, so locked
rows are not even in the tile. States stay in float32; what a piece begins and ends with is kept in the products' type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from proteus_kernels.masks import counts
from proteus_kernels.matrix import memory_axis_size
from proteus_kernels.titans_common import TitansState
from proteus_kernels.triton.calls import MAX_KEY, open_mask, refuse
from proteus_kernels.triton.titans_backward import inputs_backward, local_backward, states_backward
from proteus_kernels.triton.titans_forward import outputs_forward, states_forward
from proteus_kernels.triton.titans_gates import gates_backward, gates_forward
from proteus_kernels.triton.titans_plan import MAX_INNER, Plan, plan
from proteus_kernels.triton.tuned import products


def unsupported(
    *,
    q_BTHK: Tensor,
    active: Sequence[int] | None = None,
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> str | None:
    """Why these kernels cannot do a call; None when they can."""
    if read != "post":
        return f"read={read}"
    if active is not None and gate == "write":
        return "gate=write predicts with locked coordinates"
    if active is not None and gate == "both" and decay_locked != "masked":
        return f"decay_locked={decay_locked} changes locked coordinates"
    if inner > MAX_INNER:
        return f"inner chunks of {inner} > {MAX_INNER} positions"
    if q_BTHK.shape[-1] > MAX_KEY:
        return f"a key of {q_BTHK.shape[-1]} > {MAX_KEY} coordinates"
    if products(q_BTHK.dtype) is None:
        return f"inputs of {q_BTHK.dtype}"
    return None


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_keep_BTH: Tensor,
    log_eta_BTH: Tensor,
    theta_BTH: Tensor,
    state: TitansState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> tuple[Tensor, TitansState]:
    """As `titans_linear.chunk`, whose arguments these are; the state is float32, y has the type of v.

    ValueError for what `unsupported` names.
    """
    refuse(unsupported(q_BTHK=q_BTHK, active=active, gate=gate, read=read, decay_locked=decay_locked, inner=inner))
    (memory,), (momentum,), (anchor,) = state.weights, state.momentum, state.anchor
    dim, q, seen = memory_axis_size(axis, memory), q_BTHK, None
    if active is not None and gate != "both":  # everything is written: only what leaves the memory is masked
        seen = open_mask([counts(n, dim, gate).output for n in active], dim, axis, q)
        active = None
    if seen is not None and axis == "key":
        q = q * seen
    work = plan(
        memory.shape, q.shape[1], axis=axis, active=active, inner=inner, offset=state.offset, dtype=q.dtype, device=q.device
    )  # fmt: skip
    gates = [x.permute(2, 0, 1).float().contiguous() for x in (log_keep_BTH, log_eta_BTH, theta_BTH)]  # [H, B, T]
    states = [x.float() for x in (memory, momentum, anchor)]
    y, memory, momentum, anchor = _Titans.apply(work, *(x.contiguous() for x in (q, k_BTHK, v_BTHV)), *gates, *states)
    if seen is not None and axis != "key":
        y = y * seen
    offset = (state.offset + q.shape[1]) % inner
    return y, TitansState(weights=(memory,), momentum=(momentum,), anchor=(anchor,), offset=offset)


class _Titans(torch.autograd.Function):
    """(y, memory, momentum, anchor) of q, k, v [B, T, H, .], three gates [H, B, T] and three states [B, H, K, V]."""

    @staticmethod
    def forward(ctx: Any, work: Plan, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        gates, (memory, momentum, anchor) = rest[:3], (x.clone(memory_format=torch.contiguous_format) for x in rest[3:])
        rows = gates[0].new_empty(5, *gates[0].shape)
        y, error = torch.empty_like(v), torch.empty_like(v, dtype=work.kind.stored)
        starts = [work.saved() for _ in range(3 if work.split else 2)]
        work.each_piece(gates_forward, *gates, work.tables[0], rows)
        for phase in work.phases:
            work.along_time(
                states_forward, phase,
                k, v, rows, *work.tables, memory, momentum, anchor, *starts[:2], starts[-1], error,
            )  # fmt: skip
            if phase.begins:  # rows outside the tile have stood still, so they are the anchor too
                anchor[:, :, phase.rows :] = memory[:, :, phase.rows :]
        work.each_tile(outputs_forward, q, k, rows, *gates, work.tables[0], *starts[:2], error, y, work.scale)
        ctx.work = work
        ctx.save_for_backward(q, k, rows, error, *gates, *starts)
        return y, memory, momentum, anchor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_y: Tensor, *d_states: Tensor) -> tuple[Tensor | None, ...]:
        work = ctx.work
        q, k, rows, error, *saved = ctx.saved_tensors
        gates, starts, d_y = saved[:3], saved[3:], d_y.contiguous()
        dm, ds, da = (x.clone(memory_format=torch.contiguous_format) for x in d_states)
        d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(d_y)
        ends = [work.saved() for _ in range(2)]
        work.each_tile(local_backward, q, k, d_y, *gates, work.tables[0], d_v, work.scale)
        for phase in reversed(work.phases):
            if phase.begins:
                dm[:, :, phase.rows :] += da[:, :, phase.rows :]
                da[:, :, phase.rows :] = 0
            work.along_time(
                states_backward, phase, q, k, d_y, rows, *work.tables, dm, ds, da, *ends, d_v, work.scale
            )  # fmt: skip
        d_rows, d_gates = rows.new_empty(4, *gates[0].shape), [torch.empty_like(x) for x in gates]
        d_mix, d_ends = (rows.new_empty(*ends[0].shape[:2], *n) for n in ((work.chunk, work.chunk), (4,)))
        work.each_piece(
            inputs_backward, q, k, d_y, d_v, error, rows, *gates, work.tables[0], *starts[:2], starts[-1], *ends,
            d_q, d_k, d_mix, d_rows, d_ends, work.scale,
        )  # fmt: skip
        work.each_piece(gates_backward, *gates, work.tables[0], d_mix, d_rows, d_ends, *d_gates)
        return None, d_q, d_k, d_v, *d_gates, dm, ds, da
