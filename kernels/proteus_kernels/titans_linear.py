"""Titans with a linear memory M(k) = M^T k: the definition and the chunked form, with capacity masks.

Shapes as in `delta`; M_BHKV. With masks w, p, r (write, predict, output) of one axis and A the anchor:

    grad_t = k_t ((p . A)^T k_t - v_t)^T
    S_t = where(w, eta_t S - theta_t grad_t, S)        momentum of a locked coordinate stays as it is
    M_t = where(w, (1 - alpha_t) M + S_t, M)           so does the memory
    y_t = (r . M_t)^T q_t / sqrt(K)                    read="pre": M_{t-1}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from proteus_kernels.masks import Counts, counts, cut_time
from proteus_kernels.matrix import AXIS_DIM, memory_axis_size, prefix_mask
from proteus_kernels.pieces import Piece, may_share, share
from proteus_kernels.titans_common import TitansState, pieces
from proteus_kernels.titans_dual import dual
from proteus_kernels.titans_dual_forward import Run
from proteus_kernels.titans_pieces import plan, scan
from proteus_kernels.titans_runs import block_length, by_chunk, by_position, factors_of, run_of, stretches


def recurrent(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_keep_BTH: Tensor,
    log_eta_BTH: Tensor,
    theta_BTH: Tensor,
    state: TitansState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> tuple[Tensor, TitansState]:
    """The definition, one position at a time. Returns y_BTHV and the state."""
    (memory,), (momentum,), (anchor,) = state.weights, state.momentum, state.anchor
    dim = memory_axis_size(axis, memory)
    scale, outs = q_BTHK.shape[-1] ** -0.5, []
    for t in range(q_BTHK.shape[1]):
        if (state.offset + t) % inner == 0:
            anchor = memory
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, p, r = (prefix_mask(n, axis, memory) for n in (c.write, c.predict, c.output))
        q, k, v = q_BTHK[:, t], k_BTHK[:, t], v_BTHV[:, t]
        keep, eta = (x[:, t].exp()[..., None, None] for x in (log_keep_BTH, log_eta_BTH))
        error = torch.einsum("bhkv,bhk->bhv", anchor * p, k) - v
        grad = k[..., :, None] * error[..., None, :]
        momentum = torch.where(w, eta * momentum - theta_BTH[:, t, :, None, None] * grad, momentum)
        before = memory
        memory = torch.where(w, keep * memory + momentum, keep * memory if decay_locked == "unmasked" else memory)
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else memory) * r, q))
    offset = (state.offset + q_BTHK.shape[1]) % inner
    return torch.stack(outs, 1), TitansState(weights=(memory,), momentum=(momentum,), anchor=(anchor,), offset=offset)


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_keep_BTH: Tensor,
    log_eta_BTH: Tensor,
    theta_BTH: Tensor,
    state: TitansState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> tuple[Tensor, TitansState]:
    """The chunked form of `recurrent` (same arguments and result): `titans_pieces` where what opens writes, predicts and reads
    and what is locked stands still, and where all is open; for the other gates `titans_dual` with one layer.

    Pieces run on a slice of memory, momentum and anchor; locked parts are not touched.
    """
    if q_BTHK.shape[1] == 1:  # nothing to share: the definition has fewer operations
        return recurrent(
            q_BTHK=q_BTHK, k_BTHK=k_BTHK, v_BTHV=v_BTHV, log_keep_BTH=log_keep_BTH, log_eta_BTH=log_eta_BTH,
            theta_BTH=theta_BTH, state=state, active=active, axis=axis, gate=gate, read=read, decay_locked=decay_locked,
            inner=inner,
        )  # fmt: skip
    (memory,), (momentum,), (anchor,) = state.weights, state.momentum, state.anchor
    dim = memory_axis_size(axis, memory)
    if active is not None and all(n == dim for n in active) and len(active) == q_BTHK.shape[1]:
        active = None
    gates = [x.transpose(1, 2) for x in (log_keep_BTH, log_eta_BTH, theta_BTH)]
    if active is None or (gate == "both" and decay_locked == "masked"):
        qkv = [x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV)]
        return _scanned(qkv, gates, state, active, axis, inner, read == "pre")
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    length, outs, pre = q.shape[2], [], read == "pre"
    spans = list(pieces(active, length, dim, inner, state.offset))
    columns, joined = cut_time(spans, q, k, gates[0]), list(stretches(spans, inner))
    parts = cut_time([(s[0][0], s[-1][1]) for s in joined], q, k, v, *gates)
    for stretch, (q_s, k_s, v_s, *gates_s) in zip(joined, parts, strict=True):
        size = stretch[0][2]
        block = block_length(size, min(memory.shape[2:]))
        runs = run_of(q_s, k_s, v_s, gates_s, size, block, pre=pre).split([(b - a) // size for a, b, _, _ in stretch])
        for (at, _, _, n), run, (q_p, k_p, keep) in zip(stretch, runs, columns, strict=False):
            fresh, decay = (state.offset + at) % inner == 0, keep if decay_locked == "unmasked" else None
            y, memory, momentum, anchor = _piece(
                run, q_p, k_p, decay, (memory, momentum, memory if fresh else anchor),
                counts(n, dim, gate), axis, fresh, pre,
            )  # fmt: skip
            outs.append(y)
    out = (outs[0] if len(outs) == 1 else torch.cat(outs, 2)).transpose(1, 2)
    offset = (state.offset + length) % inner
    return out, TitansState(weights=(memory,), momentum=(momentum,), anchor=(anchor,), offset=offset)


def _scanned(
    qkv: Sequence[Tensor],
    gates: Sequence[Tensor],
    state: TitansState,
    active: Sequence[int] | None,
    axis: str,
    inner: int,
    pre: bool,
) -> tuple[Tensor, TitansState]:
    """`titans_pieces` from q, k, v and gates [B, H, T, ...]."""
    length, scale = qkv[0].shape[2], qkv[0].shape[-1] ** -0.5
    (memory,), (momentum,), (anchor,) = state.weights, state.momentum, state.anchor
    turns, spans = plan(_pieces(active, length, state, axis, inner), memory, state.offset, inner)
    cuts = cut_time([(s.start, s.stop) for s in spans], *gates)
    factors = [factors_of(cut, s.block, pre=pre) for s, cut in zip(spans, cuts, strict=True)]
    y, memory, momentum, anchor = scan(turns, scale, qkv, (memory, momentum, anchor), factors)
    offset = (state.offset + length) % inner
    return y.transpose(1, 2), TitansState(weights=(memory,), momentum=(momentum,), anchor=(anchor,), offset=offset)


def _pieces(active: Sequence[int] | None, length: int, state: TitansState, axis: str, inner: int) -> Iterator[Piece]:
    """Pieces between unlocks on the grid of inner chunks, or shared ones where what is locked holds nothing."""
    (memory,), parts = state.weights, (*state.weights, *state.momentum, *state.anchor)
    dim = memory_axis_size(axis, memory)
    spans = list(pieces(active, length, dim, inner, state.offset))
    for *_, n in spans:
        counts(n, dim, "both")  # refuses what the axis does not have
    held = [x.detach() if state.constant and not x.is_leaf else x for x in parts]
    if active is not None and state.offset == 0 and may_share(active, held, axis):
        yield from share(active, memory, axis, inner)
        return
    for start, stop, size, n in spans:
        yield Piece(start=start, stop=stop, size=size, axis=axis, opened=n)


Trio = tuple[Tensor, Tensor, Tensor]


def _piece(
    run: Run, q: Tensor, k: Tensor, decay: Tensor | None, state: Trio, c: Counts, axis: str, fresh: bool, pre: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut the open slice out of the state, run it, add what an open read sees of the locked part, put it back.

    q, k [B, H, T, K] are those of the run, for what reads and predicts with locked coordinates. y [B, H, T, V].
    """
    dim = AXIS_DIM[axis]
    w, full, size = c.write, state[0].shape[dim], run.q.shape[2]
    if axis == "key" and c.output < full:
        run = replace(run, q=run.q * (torch.arange(full, device=q.device) < c.output))
    if w == full:
        y, *new = _chunks(run, state, fresh)
        if axis == "value" and c.output < full:
            y = y * (torch.arange(full, device=y.device) < c.output)
        if axis == "head" and c.output < full:
            y = torch.cat([y[:, : c.output], torch.zeros_like(y[:, c.output :])], 1)
        return y, new[0], new[1], new[2]
    inside, locked = _cut(state, dim, 0, w), _cut(state, dim, w, full - w)
    read_factor = end = None
    if decay is not None:  # locked weights decay (the literal, unmasked variant); momentum does not
        cum = decay.cumsum(-1)
        read_factor, end = (cum - decay if pre else cum).exp()[..., None], cum[:, :, -1:, None].exp()
    sees = c.output > w
    if axis == "key":
        if c.predict > w:
            run = replace(run, minus_v=run.minus_v + by_chunk(_anchored(k[..., w:], locked, size, decay), size))
        y, *new = _chunks(replace(run, q=run.q[..., :w], k=run.k[..., :w]), inside, fresh)
        if sees:
            y = y + _times(q[..., w:] @ locked[0], read_factor)
    elif axis == "value":
        y, *new = _chunks(replace(run, minus_v=run.minus_v[..., :w]), inside, fresh)
        rest = _times(q @ locked[0], read_factor) if sees else y.new_zeros(*y.shape[:-1], full - w)
        y = torch.cat([y, rest], -1)
    else:
        y, *new = _chunks(run.first_heads(w, full), inside, fresh)
        tail_factor = read_factor[:, w:] if read_factor is not None else None
        seen = _times(q[:, w:] @ locked[0], tail_factor) if sees else None
        rest = y.new_zeros(y.shape[0], full - w, *y.shape[2:]) if seen is None else seen
        y = torch.cat([y, rest], 1)
        end = end[:, w:] if end is not None else None
    last_anchor = _last_anchor(locked, size, q.shape[2], decay if axis != "head" or decay is None else decay[:, w:])
    kept = (_times(locked[0], end), locked[1], last_anchor)
    joined = [torch.cat([a, b], dim) for a, b in zip(new, kept, strict=True)]
    return y, joined[0], joined[1], joined[2]


def _cut(state: Trio, dim: int, start: int, n: int) -> Trio:
    memory, momentum, anchor = state
    return memory.narrow(dim, start, n), momentum.narrow(dim, start, n), anchor.narrow(dim, start, n)


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def _anchor_factor(decay: Tensor, size: int) -> Tensor:
    """Decay of a locked row from the piece's start to each position's inner chunk start. [B, H, T]."""
    chunks = decay.unflatten(2, (-1, size)).sum(-1)
    return (chunks.cumsum(-1) - chunks).exp().repeat_interleave(size, 2)


def _anchored(k: Tensor, locked: Trio, size: int, decay: Tensor | None) -> Tensor:
    """What the prediction reads from locked rows: the first chunk at its anchor, later ones at the decayed weights."""
    first = k[:, :, :size] @ locked[2]
    if k.shape[2] == size:
        return first
    rest = k[:, :, size:] @ locked[0]
    if decay is not None:
        rest = rest * _anchor_factor(decay, size)[:, :, size:, None]
    return torch.cat([first, rest], 2)


def _last_anchor(locked: Trio, size: int, length: int, decay: Tensor | None) -> Tensor:
    if length == size:
        return locked[2]
    return locked[0] if decay is None else locked[0] * _anchor_factor(decay, size)[:, :, -1, None, None]


def _chunks(run: Run, state: Trio, fresh: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Unmasked inner chunks of one size. The first uses the given anchor unless `fresh`, later ones the weights at their start.

    E = K A - V, Y = b (Q M) + f (Q S) - (QK^T . G) E, M' = b_C M + f_C S - K^T (G_C . E), S' = m_C S - K^T (N_C . E).
    """
    memory, momentum, anchor = state
    heads = (memory.shape[0], memory.shape[1])
    packed = torch.cat([memory, momentum], -1).flatten(0, 1)
    y, packed, *begun = dual(run, [packed], () if fresh else (anchor.flatten(0, 1),), 0)
    memory, momentum = packed.unflatten(0, heads).chunk(2, -1)
    if begun:
        anchor = begun[0].unflatten(0, heads)
    return by_position(y, heads).transpose(1, 2), memory, momentum, anchor
