"""Decayed linear attention with a window of c writes a position: RetNet (c = 1) and SWLA.

Shapes as in `delta`. Per head and step, with tap weights b_{t,j} of position t (None: one tap of weight 1):

    S' = where(w, a_t S, S) + w . sum_{j=0..c-1} b_{t,j} k_{t-j} v_{t-j}^T      y = scale (r . S')^T q_t

RetNet (arXiv 2307.08621): c = 1 and a fixed a per head. SWLA, the sliding-window linear attention that the Proteus paper
uses with c = 2: M_t = a_t M_{t-1} + sum_{i=t-c+1..t} b_i^(t) v_i k_i^T. Every write of position t, an older key's too,
goes through the mask of time t: keys are shifted first and masked then. The other order would write an older key with
the mask it had on arrival, wrong at every unlock and for good.

The weights belong to the writing position t, so the window that a state carries is the last c - 1 keys and values.
The chunked form is one pass for every c. A pair (k_i, v_i) reaches the state that y_t reads with the coefficient

    G_{t,i} = sum_j exp(L_t - L_{i+j}) b_{i+j,j}       over writing positions s = i + j <= t inside the chunk

so Y = (e^L Q) S + (Q K^T . G) V with keys and values that begin c - 1 positions before the chunk. No division by a_t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from proteus_kernels.masks import counts, cut_time, segments
from proteus_kernels.matrix import Core, MatrixOut, Parts, memory_axis_size, prefix_mask, scan


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
    spans = list(segments(active, q_BTHK.shape[1], memory_axis_size(axis, state.memory_BHKV)))
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    given = [x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV, log_decay_BTH, weights_BTHC) if x is not None]
    parts = _windowed(cut_time(spans, *given), keys[:, : taps - 1], values[:, : taps - 1])
    y, memory = scan(
        zip((n for _, _, n in spans), parts, strict=True),
        state.memory_BHKV,
        _core(pre=read == "pre", taps=taps, chunk_size=chunk_size),
        axis=axis, gate=gate, read=read, decay_locked=decay_locked,
    )  # fmt: skip
    return y, _end(memory, keys, values, taps)


def _windowed(pieces: Iterator[tuple[Tensor, ...]], keys_BWHK: Tensor, values_BWHV: Tensor) -> Iterator[Parts]:
    """Each segment's inputs, its keys and values with the whole keys and values before them: shift, and mask later."""
    taps = keys_BWHK.shape[1] + 1
    keys, values = keys_BWHK.transpose(1, 2), values_BWHV.transpose(1, 2)
    for q, k, v, g, *weights in pieces:
        if taps > 1:
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            keys, values = k[:, :, 1 - taps :], v[:, :, 1 - taps :]
        yield Parts(q=q, k=k, v=v, g=g, gates=tuple(weights))


def _core(*, pre: bool, taps: int, chunk_size: int) -> Core:
    """The unmasked recurrence over one segment; k and v begin taps - 1 positions early, q is scaled."""

    def run(x: Parts, state: Tensor) -> MatrixOut:
        length = x.q.shape[2]
        if length == 1:
            return _one_step(x, state, pre, taps)
        size = min(chunk_size, length)
        whole = length - length % size
        y, state = _chunks(x, state, 0, whole, size, pre, taps)
        if whole == length:
            return y, state
        tail, state = _chunks(x, state, whole, length, length - whole, pre, taps)
        return torch.cat([y, tail], 2), state

    return run


def _one_step(x: Parts, state: Tensor, pre: bool, taps: int) -> MatrixOut:
    assert x.g is not None
    v = x.v if not x.gates else x.v * x.gates[0].flip(-1).transpose(-1, -2)
    after = state * x.g.exp()[..., None] + x.k.transpose(-1, -2) @ v
    return x.q @ (state if pre else after), after


def _banded(coefficient: Tensor, weights: Tensor | None, taps: int) -> Tensor:
    """sum_j coefficient[..., s] b_{s,j} at column s - j of the extended keys: [..., C] -> [..., C + taps - 1]."""
    if weights is None:
        return coefficient
    terms = (pad(coefficient * weights[..., j], (taps - 1 - j, j)) for j in range(taps))
    return sum(terms, torch.zeros((), dtype=coefficient.dtype, device=coefficient.device))


def _chunks(x: Parts, state: Tensor, start: int, stop: int, size: int, pre: bool, taps: int) -> MatrixOut:
    assert x.g is not None
    cut: Callable[[Tensor], Tensor] = lambda z: z[:, :, start:stop].unflatten(2, (-1, size))  # noqa: E731
    q, g = cut(x.q), cut(x.g)
    if taps == 1:
        kt, v, weights = cut(x.k).transpose(-1, -2), cut(x.v), None if not x.gates else cut(x.gates[0])
    else:
        last = stop + taps - 1
        kt = x.k[:, :, start:last].unfold(2, size + taps - 1, size)
        v = x.v[:, :, start:last].unfold(2, size + taps - 1, size).transpose(-1, -2)
        weights = cut(x.gates[0])
    cum = g.cumsum(-1)
    read_cum = cum - g if pre else cum
    reads = torch.ones(size, size, dtype=torch.bool, device=q.device).tril(-1 if pre else 0)
    gam = (read_cum[..., :, None] - cum[..., None, :]).masked_fill(~reads, -torch.inf).exp()
    scores = (q @ kt) * _banded(gam, None if weights is None else weights[..., None, :, :], taps)
    to_end = _banded((cum[..., -1:] - cum).exp(), weights, taps)
    writes = (kt * to_end[..., None, :]) @ v
    states = []
    for write, decay in zip(writes.unbind(2), cum[..., -1].exp()[..., None, None].unbind(2), strict=True):
        states.append(state)
        state = decay * state + write
    y = (q * read_cum.exp()[..., None]) @ torch.stack(states, 2) + scores @ v
    return y.flatten(2, 3), state
