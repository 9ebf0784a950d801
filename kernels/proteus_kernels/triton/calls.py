"""Between the kernels' signatures in the rest of the package and a `Scan`: what is supported, masks, flat tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels.masks import counts
from proteus_kernels.matrix import memory_axis_size
from proteus_kernels.triton.chunks import chunk_table
from proteus_kernels.triton.scan import Scan
from proteus_kernels.triton.tuned import products

MAX_CHUNK = 64
MAX_KEY = 256


def reason_against(
    *, state: Tensor, dtype: torch.dtype, active: Sequence[int] | None, gate: str, decay_locked: str, decays: bool
) -> str | None:
    """Why the Triton kernels cannot do a call; None when they can."""
    if products(dtype) is None:
        return f"inputs of {dtype}"
    if state.shape[2] > MAX_KEY:
        return f"a key of {state.shape[2]} > {MAX_KEY} coordinates"
    if active is None:
        return None
    if gate == "write":
        return "gate=write reads locked coordinates"
    if gate == "both" and decays and decay_locked != "masked":
        return f"decay_locked={decay_locked} changes locked coordinates"
    return None


def refuse(reason: str | None) -> None:
    """ValueError when there is a reason."""
    if reason:
        raise ValueError(f"the Triton kernels do not have {reason}")


def run(
    *,
    q: Tensor,
    k: Tensor,
    p: Tensor | None,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
    active: Sequence[int] | None,
    axis: str,
    gate: str,
    read: str,
    undecayed: bool,
    chunk_size: int,
    cu_seqlens: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    """y_BTHV and the final state for inputs [B, T, H, .] under a gate of `both`, `read` or `none`.

    With `cu_seqlens` the batch is one row of packed documents and `state` has one entry a document.
    """
    batch, length, dim = *q.shape[:2], memory_axis_size(axis, state)
    if active is not None and gate != "both":  # everything is written: only what leaves the memory is masked
        seen = [counts(n, dim, gate).output for n in active]
        if axis == "key":
            q = q * open_mask(seen, dim, axis, q)
        active = None
    else:
        seen = None
    table = chunk_table(
        batch=batch, length=length, dim=dim, size=min(chunk_size, MAX_CHUNK), active=active, cu_seqlens=cu_seqlens,
        device=q.device,
    )  # fmt: skip
    if state.shape[0] != table.sequences:
        raise ValueError(f"{table.sequences} sequences need as many states, got {state.shape[0]}")
    kind = products(torch.promote_types(k.dtype, v.dtype))
    if kind is None:
        raise ValueError(f"the Triton kernels take no inputs of {v.dtype}")
    scan = Scan(table=table, axis=axis, pre=read == "pre", undecayed=undecayed, products=kind)
    p, g, beta = (None if x is None else x.flatten(0, 1) for x in (p, g, beta))
    y, final = scan(q.flatten(0, 1), k.flatten(0, 1), p, v.flatten(0, 1), g, beta, state)
    y = y.unflatten(0, (batch, length))
    return (y if seen is None or axis == "key" else y * open_mask(seen, dim, axis, y)), final


def open_mask(seen: Sequence[int], dim: int, axis: str, like: Tensor) -> Tensor:
    """What an output mask leaves of q or y: [T, 1, K], [T, 1, V] or [T, H, 1]."""
    open_T = torch.tensor(seen, device=like.device)
    mask = torch.arange(dim, device=like.device) < open_T[:, None]
    return mask[:, :, None] if axis == "head" else mask[:, None, :]
