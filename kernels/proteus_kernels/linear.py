"""Decayed linear attention with a window of c writes a position: RetNet (c = 1) and SWLA.

Shapes as in `delta`. Per head and step, with tap weights b_{t,j} of position t (None: one tap of weight 1):

    S' = where(w, a_t S, S) + w . sum_{j=0..c-1} b_{t,j} k_{t-j} v_{t-j}^T      y = scale (r . S')^T q_t

RetNet (arXiv 2307.08621): c = 1 and a fixed a per head. SWLA, the sliding-window linear attention that the Proteus paper
uses with c = 2: M_t = a_t M_{t-1} + sum_{i=t-c+1..t} b_i^(t) v_i k_i^T. Every write of position t, an older key's too,
goes through the mask of time t: keys are shifted first and masked then. The other order would write an older key with
the mask it had on arrival, wrong at every unlock and for good.

The weights belong to the writing position t, so the window that a state carries is the last c - 1 keys and values.
The chunked form is `linear_chunks`, one pass for every c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proteus_kernels import linear_chunks
from proteus_kernels.masks import counts
from proteus_kernels.matrix import Parts, memory_axis_size, prefix_mask, scan


@dataclass(frozen=True, kw_only=True)
class LinearState:
    """The memory S_BHKV and the last c - 1 keys and values, oldest first and unmasked (None when c = 1)."""

    memory_BHKV: Tensor
    keys_BWHK: Tensor | None = None
    values_BWHV: Tensor | None = None

    @staticmethod
    def start(memory_BHKV: Tensor, taps: int = 1) -> LinearState:
        """No past writes: the window's keys and values are zero."""
        if taps == 1:
            return LinearState(memory_BHKV=memory_BHKV)
        batch, heads, key, value = memory_BHKV.shape
        new = memory_BHKV.new_zeros
        keys, values = new(batch, taps - 1, heads, key), new(batch, taps - 1, heads, value)
        return LinearState(memory_BHKV=memory_BHKV, keys_BWHK=keys, values_BWHV=values)

    def window(self, k_BTHK: Tensor, v_BTHV: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the window before them."""
        if self.keys_BWHK is None or self.values_BWHV is None:
            return k_BTHK, v_BTHV
        return torch.cat([self.keys_BWHK, k_BTHK], 1), torch.cat([self.values_BWHV, v_BTHV], 1)


def _taps(weights: Tensor | None, state: LinearState) -> int:
    taps = 1 if weights is None else weights.shape[-1]
    held = 0 if state.keys_BWHK is None else state.keys_BWHK.shape[1]
    if held != taps - 1:
        raise ValueError(f"{taps} taps need the last {taps - 1} keys and values in the state, it holds {held}")
    return taps


def _end(memory: Tensor, keys: Tensor, values: Tensor, taps: int) -> LinearState:
    if taps == 1:
        return LinearState(memory_BHKV=memory)
    return LinearState(memory_BHKV=memory, keys_BWHK=keys[:, 1 - taps :], values_BWHV=values[:, 1 - taps :])


def recurrent(
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
) -> tuple[Tensor, LinearState]:
    """The definition, one position at a time. Returns y_BTHV and the state."""
    taps, memory, scale, outs = _taps(weights_BTHC, state), state.memory_BHKV, q_BTHK.shape[-1] ** -0.5, []
    keys, values = state.window(k_BTHK, v_BTHV)
    dim = memory_axis_size(axis, memory)
    for t in range(q_BTHK.shape[1]):
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, r = (prefix_mask(n, axis, memory) for n in (c.write, c.output))
        increment = torch.zeros_like(memory)
        for j in range(taps):
            i = t + taps - 1 - j  # position t - j in the extended sequence
            outer = keys[:, i, :, :, None] * values[:, i, :, None, :]
            increment = increment + (outer if weights_BTHC is None else weights_BTHC[:, t, :, j, None, None] * outer)
        before, decayed = memory, memory * log_decay_BTH[:, t].exp()[..., None, None]
        if decay_locked == "masked":
            decayed = torch.where(w, decayed, before)
        memory = decayed + w * increment
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else memory) * r, q_BTHK[:, t]))
    return torch.stack(outs, 1), _end(memory, keys, values, taps)


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
) -> tuple[Tensor, LinearState]:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions."""
    taps = _taps(weights_BTHC, state)
    keys, values = state.window(k_BTHK, v_BTHV)
    q, k, v, g = (x.transpose(1, 2) for x in (q_BTHK * q_BTHK.shape[-1] ** -0.5, keys, values, log_decay_BTH))
    gates = () if weights_BTHC is None else (weights_BTHC.transpose(1, 2),)
    y, memory = scan(
        Parts(q=q, k=k, v=v, g=g, gates=gates), active, state.memory_BHKV,
        linear_chunks.core(read=read, chunk_size=chunk_size, taps=taps),
        axis=axis, gate=gate, read=read, decay_locked=decay_locked,
    )  # fmt: skip
    return y, _end(memory, keys, values, taps)
