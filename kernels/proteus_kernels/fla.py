"""The delta rule by flash-linear-attention's chunked kernels, behind `delta`'s signature (package `flash-linear-attention`).

Only what those kernels compute in the same way: no mask (their state carry decays locked rows), reads after the write,
16-bit inputs. They take the logarithm of the decay, K^{-1/2} as `scale` and a state [K, V], as `delta` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor


def unsupported(
    *, v_BTHV: Tensor, state_BHKV: Tensor, active: Sequence[int] | None = None, gate: str = "both", read: str = "post"
) -> str | None:
    """Why flash-linear-attention cannot do this call; None when it can."""
    if active is not None and gate != "none":
        return "fla has no masks"
    if read != "post":
        return f"read={read}"
    if v_BTHV.dtype not in (torch.bfloat16, torch.float16):
        return f"inputs of {v_BTHV.dtype}"
    if state_BHKV.shape[2] > 256:
        return f"a key of {state_BHKV.shape[2]} > 256 coordinates"
    return None


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
) -> tuple[Tensor, Tensor]:
    """As `proteus_kernels.delta.chunk`; the chunk size is fla's own. ValueError for what `unsupported` names."""
    reason = unsupported(v_BTHV=v_BTHV, state_BHKV=state_BHKV, active=active, gate=gate, read=read)
    if reason:
        raise ValueError(f"flash-linear-attention does not do {reason}")
    kind = v_BTHV.dtype
    given = {
        "q": q_BTHK.to(kind), "k": k_BTHK.to(kind), "v": v_BTHV, "beta": beta_BTH, "scale": q_BTHK.shape[-1] ** -0.5,
        "initial_state": state_BHKV.float(), "output_final_state": True,
    }  # fmt: skip
    if log_decay_BTH is None:
        rule = importlib.import_module("fla.ops.delta_rule").chunk_delta_rule
        return rule(**given | {"beta": beta_BTH.to(kind)})
    rule = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return rule(**given, g=log_decay_BTH.float())
