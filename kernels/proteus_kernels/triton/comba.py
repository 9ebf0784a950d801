"""`comba.chunk` on Triton: a feedback key p of its own, and predictions from the state before its decay."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from proteus_kernels.triton import calls
from proteus_kernels.triton.delta import unsupported

__all__ = ["chunk", "unsupported"]


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    p_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    correction_H: Tensor,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    chunk_size: int = 64,
    cu_seqlens: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """As `proteus_kernels.comba.chunk`; `cu_seqlens` as in `delta`. ValueError for what `unsupported` names."""
    calls.refuse(unsupported(
        v_BTHV=v_BTHV, log_decay_BTH=log_decay_BTH, state_BHKV=state_BHKV, active=active, gate=gate,
        decay_locked=decay_locked,
    ))  # fmt: skip
    return calls.run(
        q=q_BTHK - correction_H[:, None] * p_BTHK, k=k_BTHK, p=p_BTHK, v=v_BTHV, g=log_decay_BTH, beta=beta_BTH,
        state=state_BHKV, active=active, axis=axis, gate=gate, read=read, undecayed=True, chunk_size=chunk_size,
        cu_seqlens=cu_seqlens,
    )  # fmt: skip
