"""`linear.chunk` on Triton: RetNet and SWLA, the same carry and output without a prediction.

The memory is linear in its writes, so c taps are c passes: tap j writes the keys and values of j positions earlier, with the
weight and under the mask of the writing position, and only the first pass begins with the state. One tap costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from proteus_kernels.linear import LinearState
from proteus_kernels.triton import calls


def unsupported(
    *,
    v_BTHV: Tensor,
    state: LinearState,
    active: Sequence[int] | None = None,
    gate: str = "both",
    decay_locked: str = "masked",
) -> str | None:
    """Why the kernels cannot do this call; None when they can."""
    return calls.reason_against(
        state=state.memory_BHKV, dtype=v_BTHV.dtype, active=active, gate=gate, decay_locked=decay_locked, decays=True
    )


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    weights_BTHC: Tensor | None = None,
    state: LinearState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    chunk_size: int = 64,
    cu_seqlens: Sequence[int] | None = None,
) -> tuple[Tensor, LinearState]:
    """As `proteus_kernels.linear.chunk`; `cu_seqlens` as in `delta`. ValueError for what `unsupported` names."""
    calls.refuse(unsupported(v_BTHV=v_BTHV, state=state, active=active, gate=gate, decay_locked=decay_locked))
    taps = 1 if weights_BTHC is None else weights_BTHC.shape[-1]
    memory, keys, values = state.memory_BHKV, state.keys_BWHK, state.values_BWHV
    if taps != 1 + (0 if keys is None else keys.shape[1]):
        raise ValueError(f"{taps} taps need the last {taps - 1} keys and values in the state")
    k_windows, v_windows = _windows(k_BTHK, keys, cu_seqlens), _windows(v_BTHV, values, cu_seqlens)
    y, after, start = None, None, memory
    for j in range(taps):
        k, v = _shifted(k_windows, taps - 1, j), _shifted(v_windows, taps - 1, j)
        if weights_BTHC is not None:
            v = v * weights_BTHC[..., j, None]
        part, end = calls.run(
            q=q_BTHK, k=k, p=None, v=v, g=log_decay_BTH, beta=None, state=start, active=active, axis=axis, gate=gate,
            read=read, undecayed=False, chunk_size=chunk_size, cu_seqlens=cu_seqlens,
        )  # fmt: skip
        y, after = (part, end) if y is None or after is None else (y + part, after + end)
        start = torch.zeros_like(memory)
    assert y is not None and after is not None
    if taps == 1:
        return y, LinearState(memory_BHKV=after)
    last = [torch.cat([x[:, 1 - taps :] for x in windows]) for windows in (k_windows, v_windows)]
    return y, LinearState(memory_BHKV=after, keys_BWHK=last[0], values_BWHV=last[1])


def _windows(x: Tensor, past: Tensor | None, cu_seqlens: Sequence[int] | None) -> list[Tensor]:
    """The sequences with what came before them: one [B, W + T, ..] for a batch, or one [1, W + T_n, ..] a document."""
    documents: Sequence[Tensor] = (x,) if cu_seqlens is None else x.split([b - a for a, b in pairwise(cu_seqlens)], 1)
    if past is None:
        return list(documents)
    pasts: Iterator[Tensor] = iter((past,) if cu_seqlens is None else past.split(1))
    return [torch.cat([before, document], 1) for before, document in zip(pasts, documents, strict=True)]


def _shifted(windows: list[Tensor], held: int, j: int) -> Tensor:
    """Every position's entry of j positions earlier: [B, T, ..]."""
    parts = [x[:, held - j : x.shape[1] - j] for x in windows]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
