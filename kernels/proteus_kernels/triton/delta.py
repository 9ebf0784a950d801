"""`delta.chunk` on Triton: the delta rule, gated or not, with the arguments and the result of that function."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from proteus_kernels.triton import calls


def unsupported(
    *,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor | None = None,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    gate: str = "both",
    decay_locked: str = "masked",
) -> str | None:
    """Why the kernels cannot do this call; None when they can."""
    return calls.reason_against(
        state=state_BHKV, dtype=v_BTHV.dtype, active=active, gate=gate, decay_locked=decay_locked,
        decays=log_decay_BTH is not None,
    )  # fmt: skip


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor | None = None,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    chunk_size: int = 64,
    cu_seqlens: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """As `proteus_kernels.delta.chunk`. ValueError for what `unsupported` names.

    `cu_seqlens` (bounds 0 .. T of documents packed into a batch of one) takes one state a document, state_BHKV [N, H, K, V].
    """
    calls.refuse(unsupported(
        v_BTHV=v_BTHV, log_decay_BTH=log_decay_BTH, state_BHKV=state_BHKV, active=active, gate=gate,
        decay_locked=decay_locked,
    ))  # fmt: skip
    return calls.run(
        q=q_BTHK, k=k_BTHK, p=None, v=v_BTHV, g=log_decay_BTH, beta=beta_BTH, state=state_BHKV, active=active, axis=axis,
        gate=gate, read=read, undecayed=False, chunk_size=chunk_size, cu_seqlens=cu_seqlens,
    )  # fmt: skip
