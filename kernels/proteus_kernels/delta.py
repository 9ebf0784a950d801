"""The delta rule, gated (Gated DeltaNet) or not (DeltaNet): the definition and the chunked form, with capacity masks.

Shapes: B batch, T positions, H heads, K key, V value; state S_BHKV, row = key index. Per head and step, decay first and
then prediction from the decayed state (Gated DeltaNet, arXiv 2412.06464; DeltaNet, arXiv 2406.06484, has no decay):

    S~ = where(w, a_t S, S)                 a_t = exp(log_decay_t); locked coordinates do not decay
    u  = beta_t (v_t - (p . S~)^T k_t)      inner prediction through the predict mask
    S' = S~ + w . (k_t u^T)                 write mask
    y  = scale (r . S')^T q_t               output mask; read="pre" takes S instead of S'

w, p, r are prefix masks on one axis of S (key rows, value columns, whole heads). Proteus Eq. 8-11.
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
    v_BTHV: Tensor,
    log_decay_BTH: Tensor | None = None,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
) -> MatrixOut:
    """The definition, one position at a time; log_decay None is DeltaNet. Returns y_BTHV and the final state_BHKV."""
    state, scale, outs = state_BHKV, q_BTHK.shape[-1] ** -0.5, []
    dim = memory_axis_size(axis, state)
    for t in range(q_BTHK.shape[1]):
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, p, r = (prefix_mask(n, axis, state) for n in (c.write, c.predict, c.output))
        q, k, v = q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t]
        before = decayed = state
        if log_decay_BTH is not None:
            after = state * log_decay_BTH[:, t].exp()[..., None, None]
            decayed = after if decay_locked == "unmasked" else torch.where(w, after, state)
        u = beta_BTH[:, t, :, None] * (v - torch.einsum("bhkv,bhk->bhv", decayed * p, k))
        state = decayed + w * (k[..., :, None] * u[..., None, :])
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else state) * r, q))
    return torch.stack(outs, 1), state


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
) -> MatrixOut:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions."""
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK * q_BTHK.shape[-1] ** -0.5, k_BTHK, v_BTHV))
    gates = [x.transpose(1, 2) for x in (beta_BTH, log_decay_BTH) if x is not None]
    return scan(
        Parts(q=q, k=k, p=k, v=v, gates=(gates[0],), g=gates[1] if gates[1:] else None), active, state_BHKV,
        wy.core(read=read, undecayed=False, chunk_size=chunk_size),
        axis=axis, gate=gate, read=read, decay_locked=decay_locked,
    )  # fmt: skip
