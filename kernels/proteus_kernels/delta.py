"""Gated delta rule: the definition (`recurrent`) and the chunked form (`chunk`), with capacity masks.

Shapes: B batch, T positions, H heads, K key, V value; state S_BHKV, row = key index. Per head and step
(Gated DeltaNet; DeltaNet is log_decay = 0), decay first and then prediction from the decayed state:

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

from proteus_kernels.masks import Counts, counts, cut_time, segments

DeltaOut = tuple[Tensor, Tensor]


def axis_size(axis: str, *, heads: int, key: int, value: int) -> int:
    """Size of the scheduled axis of S_BHKV."""
    sizes = {"key": key, "value": value, "head": heads}
    if axis not in sizes:
        raise ValueError(f"a matrix memory has no axis {axis!r}; one of key, value, head")
    return sizes[axis]


def _mask(n: int, axis: str, state_BHKV: Tensor) -> Tensor:
    dim = {"head": 1, "key": 2, "value": 3}[axis]
    shape = [1, 1, 1, 1]
    shape[dim] = state_BHKV.shape[dim]
    return (torch.arange(state_BHKV.shape[dim], device=state_BHKV.device) < n).view(shape)


def recurrent(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
) -> DeltaOut:
    """The definition, one position at a time. Returns y_BTHV and the final state_BHKV."""
    length, state = q_BTHK.shape[1], state_BHKV
    scale = q_BTHK.shape[-1] ** -0.5
    dim = axis_size(axis, heads=state.shape[1], key=state.shape[2], value=state.shape[3])
    outs = []
    for t in range(length):
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, p, r = (_mask(n, axis, state) for n in (c.write, c.predict, c.output))
        q, k, v = q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t]
        decay = log_decay_BTH[:, t].exp()[..., None, None]
        before = state
        decayed = state * decay if decay_locked == "unmasked" else torch.where(w, state * decay, state)
        u = beta_BTH[:, t, :, None] * (v - torch.einsum("bhkv,bhk->bhv", decayed * p, k))
        state = decayed + w * (k[..., :, None] * u[..., None, :])
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else state) * r, q))
    return torch.stack(outs, 1), state


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    beta_BTH: Tensor,
    state_BHKV: Tensor,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    chunk_size: int = 64,
) -> DeltaOut:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions.

    Time is cut where the number of open coordinates changes. Inside such a segment the open part is an ordinary
    gated delta rule on a SLICE of the state, so locked rows, columns and heads are neither loaded nor multiplied.
    A gate that opens more for reading than for writing adds the locked rows' constant (or merely decaying) part.
    """
    length = q_BTHK.shape[1]
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK * q_BTHK.shape[-1] ** -0.5, k_BTHK, v_BTHV))
    g, beta = log_decay_BTH.transpose(1, 2), beta_BTH.transpose(1, 2)
    dim = axis_size(axis, heads=state_BHKV.shape[1], key=state_BHKV.shape[2], value=state_BHKV.shape[3])
    outs, state = [], state_BHKV
    segment = {"key": _key_segment, "value": _value_segment, "head": _head_segment}[axis]
    spans = list(segments(active, length, dim))
    for (_, _, n), parts in zip(spans, cut_time(spans, q, k, v, g, beta), strict=True):
        y, state = segment(
            parts,
            state,
            counts(n, dim, gate),
            pre=read == "pre",
            decay_all=decay_locked == "unmasked",
            chunk_size=chunk_size,
        )
        outs.append(y)
    y = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return y.transpose(1, 2), state


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _locked_decay(g_BHT: Tensor, *, pre: bool, decay_all: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Factors (at prediction, at output, at the end) of a coordinate that is only decayed, never written."""
    if not decay_all:
        one = torch.ones_like(g_BHT)[..., None]
        return one, one, one[:, :, -1:]
    cum = g_BHT.cumsum(-1)
    at_read = (cum - g_BHT if pre else cum).exp()[..., None]
    return cum.exp()[..., None], at_read, cum[:, :, -1:, None].exp()


def _key_segment(x: Inputs, state: Tensor, c: Counts, *, pre: bool, decay_all: bool, chunk_size: int) -> DeltaOut:
    q, k, v, g, beta = x
    w = c.write
    mask = torch.arange(q.shape[-1], device=q.device)
    q = q if c.output >= q.shape[-1] else q * (mask < c.output)
    if w == state.shape[2]:  # every row is written: gates none and read, or a fully open memory
        return _core(q, k, v, g, beta, state, pre=pre, chunk_size=chunk_size)
    open_rows, locked = state[:, :, :w], state[:, :, w:]
    at_predict, at_read, at_end = _locked_decay(g, pre=pre, decay_all=decay_all)
    if c.predict > w:  # gate write: the prediction also sees the locked rows
        v = v - at_predict * (k[..., w:] @ locked)
    y, open_rows = _core(q[..., :w], k[..., :w], v, g, beta, open_rows, pre=pre, chunk_size=chunk_size)
    if c.output > w:
        y = y + at_read * (q[..., w:] @ locked)
    return y, torch.cat([open_rows, locked * at_end if decay_all else locked], 2)


def _value_segment(x: Inputs, state: Tensor, c: Counts, *, pre: bool, decay_all: bool, chunk_size: int) -> DeltaOut:
    q, k, v, g, beta = x
    w, full = c.write, state.shape[3]
    if w == full:
        y, state = _core(q, k, v, g, beta, state, pre=pre, chunk_size=chunk_size)
        return (y if c.output == full else y * (torch.arange(full, device=y.device) < c.output)), state
    locked = state[..., w:]
    _, at_read, at_end = _locked_decay(g, pre=pre, decay_all=decay_all)
    y, open_columns = _core(q, k, v[..., :w], g, beta, state[..., :w], pre=pre, chunk_size=chunk_size)
    y = torch.cat([y, at_read * (q @ locked)], -1) if c.output > w else torch.nn.functional.pad(y, (0, full - w))
    return y, torch.cat([open_columns, locked * at_end if decay_all else locked], 3)


def _head_segment(x: Inputs, state: Tensor, c: Counts, *, pre: bool, decay_all: bool, chunk_size: int) -> DeltaOut:
    w, heads = c.write, state.shape[1]
    if w == heads:
        y, state = _core(*x, state, pre=pre, chunk_size=chunk_size)
        if c.output < heads:
            y = torch.cat([y[:, : c.output], torch.zeros_like(y[:, c.output :])], 1)
        return y, state
    q, _, _, g, _ = x
    q_w, k_w, v_w, g_w, beta_w = (z[:, :w] for z in x)
    y, open_heads = _core(q_w, k_w, v_w, g_w, beta_w, state[:, :w], pre=pre, chunk_size=chunk_size)
    locked = state[:, w:]
    _, at_read, at_end = _locked_decay(g[:, w:], pre=pre, decay_all=decay_all)
    rest = at_read * (q[:, w:] @ locked) if c.output > w else y.new_zeros(y.shape[0], heads - w, *y.shape[2:])
    return torch.cat([y, rest], 1), torch.cat([open_heads, locked * at_end if decay_all else locked], 1)


def _core(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, pre: bool, chunk_size: int
) -> DeltaOut:
    """An unmasked gated delta rule over one segment; q already scaled. All [B, H, T, .].

    WY form per chunk with L = cumsum(g), Gam_ij = exp(L_i - L_j) (i >= j):
    A = tril(beta . KK^T . Gam, -1), [W U] = (I + A)^{-1} [beta e^L K, beta V], D = U - W S,
    Y = (e^L Q) S + (QK^T . Gam) D, S' = e^{L_C} S + (e^{L_C - L} K)^T D.
    """
    length = q.shape[2]
    if length == 1:
        return _one_step(q, k, v, g, beta, state, pre=pre)
    size = min(chunk_size, length)
    whole = length - length % size
    y, state = _chunks(q, k, v, g, beta, state, 0, whole, size, pre)
    if whole == length:
        return y, state
    tail, state = _chunks(q, k, v, g, beta, state, whole, length, length - whole, pre)
    return torch.cat([y, tail], 2), state


def _one_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, pre: bool) -> DeltaOut:
    decayed = state * g.exp()[..., None]
    u = beta[..., None] * (v - k @ decayed)
    after = decayed + k.transpose(-1, -2) @ u
    return q @ (state if pre else after), after


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, start: int, stop: int, size: int, pre: bool
) -> DeltaOut:
    def cut(x: Tensor) -> Tensor:
        return x[:, :, start:stop].unflatten(2, (-1, size))

    q, k, v, g, beta = cut(q), cut(k), cut(v), cut(g), cut(beta)
    cum = g.cumsum(-1)
    read_cum = cum - g if pre else cum
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    strict = causal.tril(-1)
    reads = strict if pre else causal
    gam = (cum[..., :, None] - cum[..., None, :]).masked_fill(~strict, -torch.inf).exp()
    read_gam = (read_cum[..., :, None] - cum[..., None, :]).masked_fill(~reads, -torch.inf).exp()
    kt = k.transpose(-1, -2)
    lower = (k @ kt) * gam * beta[..., None]
    decayed_k = k * cum.exp()[..., None]
    rhs = torch.cat([decayed_k, v], -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
    w_k, u = solved.split([k.shape[-1], v.shape[-1]], -1)
    scores = (q @ kt) * read_gam
    decayed_q = q * read_cum.exp()[..., None]
    to_end = (k * (cum[..., -1:] - cum).exp()[..., None]).transpose(-1, -2)
    end = cum[..., -1].exp()[..., None, None]
    deltas, states = [], []
    for w_c, u_c, k_c, e_c in zip(w_k.unbind(2), u.unbind(2), to_end.unbind(2), end.unbind(2), strict=True):
        states.append(state)
        delta = u_c - w_c @ state
        deltas.append(delta)
        state = e_c * state + k_c @ delta
    y = decayed_q @ torch.stack(states, 2) + scores @ torch.stack(deltas, 2)
    return y.flatten(2, 3), state
