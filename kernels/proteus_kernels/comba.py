"""Comba (arXiv 2506.02475): state feedback through p, output correction; the definition and the chunked form.

Shapes as in `delta`, p_BTHK the feedback's key, correction_H one d a head. Per head and step:

    u  = beta_t (v_t - (p . S)^T p_t)       the prediction reads S BEFORE its decay
    S' = where(w, a_t S, S) + w . (k_t u^T)
    y  = scale (r . S')^T (q_t - d p_t)     output correction; read="pre" takes S instead of S'

(p . is the predict mask, p_t the key.) Without masks the transition is a_t I - beta_t k_t p_t^T, scalar plus low rank,
which is what separates Comba from Gated DeltaNet's a_t (I - beta_t k_t k_t^T): predicting from the decayed state would
put a_t on the low-rank term too. The public recurrent reference in flash-linear-attention does that, its chunked and
fused kernels do not, and no test of it compares the two; so this definition follows the paper's transition and not that
function. Nor is p normalised in here: p = b k_t with |k_t| = 1 keeps the feedback strength b, a norm would erase it.

Chunked: the WY form with an exclusive cumulative decay L0 = L - g on the prediction, see `wy`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels import wy
from proteus_kernels.masks import counts
from proteus_kernels.matrix import MatrixOut, Parts, memory_axis_size, prefix_mask, scan


def recurrent(
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
) -> MatrixOut:
    """The definition, one position at a time. Returns y_BTHV and the final state_BHKV."""
    state, scale, outs = state_BHKV, q_BTHK.shape[-1] ** -0.5, []
    dim = memory_axis_size(axis, state)
    for t in range(q_BTHK.shape[1]):
        c = counts(active[t] if active is not None else dim, dim, gate)
        write, predict, output = (prefix_mask(n, axis, state) for n in (c.write, c.predict, c.output))
        k, p, v = k_BTHK[:, t], p_BTHK[:, t], v_BTHV[:, t]
        q = q_BTHK[:, t] - correction_H[:, None] * p
        before, decayed = state, state * log_decay_BTH[:, t].exp()[..., None, None]
        u = beta_BTH[:, t, :, None] * (v - torch.einsum("bhkv,bhk->bhv", before * predict, p))
        if decay_locked == "masked":
            decayed = torch.where(write, decayed, before)
        state = decayed + write * (k[..., :, None] * u[..., None, :])
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else state) * output, q))
    return torch.stack(outs, 1), state


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
) -> MatrixOut:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions."""
    q_BTHK = (q_BTHK - correction_H[:, None] * p_BTHK) * q_BTHK.shape[-1] ** -0.5
    q, k, p, v, beta, g = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, p_BTHK, v_BTHV, beta_BTH, log_decay_BTH))
    return scan(
        Parts(q=q, k=k, p=p, v=v, gates=(beta,), g=g), active, state_BHKV,
        wy.core(read=read, undecayed=True, chunk_size=chunk_size),
        axis=axis, gate=gate, read=read, decay_locked=decay_locked, undecayed=True,
    )  # fmt: skip
