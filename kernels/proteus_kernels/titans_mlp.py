"""Titans with a two-layer MLP memory M(k) = W2 silu(W1 k): the definition and the dual (chunked) form.

W1_BHNK, W2_BHVN; N hidden units, no biases, no residual path, so one axis (hidden) covers the whole memory: unit j owns
row j of W1 and column j of W2. With unit masks w, p, r (write, predict, output) and the anchor (W1^, W2^):

    z = W1^ k, a = p . silu(z), e = W2^ a - v
    dW2 = e a^T, dW1 = (silu'(z) . p . W2^^T e) k^T                     gradient of ||M(k) - v||^2 / 2
    S = where(w, eta S - theta dW, S), W = where(w, (1 - alpha) W + S, W)  for both layers
    y = W2 (r . silu(W1 q))                                               read="pre": the weights before this write

A zero start is dead (both gradients vanish), so M_0 is learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proteus_kernels.masks import Counts, counts, cut_time
from proteus_kernels.titans_common import Coefficients, TitansState, coefficients, pieces

silu = torch.nn.functional.silu


def silu_slope(z: Tensor) -> Tensor:
    """d silu(z) / dz."""
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


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
    axis: str = "hidden",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> tuple[Tensor, TitansState]:
    """The definition, one position at a time. Returns y_BTHV and the state (weights = (W1, W2))."""
    _only_hidden(axis)
    weights, momentum, anchor = state.weights, state.momentum, state.anchor
    dim, outs = weights[0].shape[2], []
    units = torch.arange(dim, device=q_BTHK.device)
    for t in range(q_BTHK.shape[1]):
        if (state.offset + t) % inner == 0:
            anchor = weights
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, p, r = (units < n for n in (c.write, c.predict, c.output))
        q, k, v = q_BTHK[:, t, :, :, None], k_BTHK[:, t, :, :, None], v_BTHV[:, t, :, :, None]
        z = anchor[0] @ k
        a = silu(z) * p[:, None]
        e = anchor[1] @ a - v
        grads = ((silu_slope(z) * p[:, None] * (anchor[1].mT @ e)) @ k.mT, e @ a.mT)
        keep, eta = (x[:, t].exp()[..., None, None] for x in (log_keep_BTH, log_eta_BTH))
        theta = theta_BTH[:, t, :, None, None]
        masks = (w[:, None], w[None, :])
        momentum = tuple(torch.where(m, eta * s - theta * g, s) for m, s, g in zip(masks, momentum, grads, strict=True))
        before = weights
        weights = tuple(
            torch.where(m, keep * x + s, keep * x if decay_locked == "unmasked" else x)
            for m, x, s in zip(masks, weights, momentum, strict=True)
        )
        w1, w2 = before if read == "pre" else weights
        outs.append((w2 @ (silu(w1 @ q) * r[:, None])).squeeze(-1))
    offset = (state.offset + q_BTHK.shape[1]) % inner
    return torch.stack(outs, 1), TitansState(weights=weights, momentum=momentum, anchor=anchor, offset=offset)


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
    axis: str = "hidden",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    inner: int = 16,
) -> tuple[Tensor, TitansState]:
    """The dual form of `recurrent` (same arguments and result): no per-token weights are ever formed.

    W_t q = b_t W q + f_t S q - sum_i G_ti (k_i . q) dz_i, one C x C product a layer and inner chunk. Locked units are
    sliced away for writing; a gate that reads more than it writes adds their (unwritten) part.
    """
    _only_hidden(axis)
    dim = state.weights[0].shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV))
    gates = [x.transpose(1, 2) for x in (log_keep_BTH, log_eta_BTH, theta_BTH)]
    weights, momentum, anchor = state.weights, state.momentum, state.anchor
    outs, pre, length = [], read == "pre", q.shape[2]
    spans = list(pieces(active, length, dim, inner, state.offset))
    for (start, _, size, n), (q_s, k_s, v_s, *gates_s) in zip(spans, cut_time(spans, q, k, v, *gates), strict=True):
        coef = coefficients(*(g.unflatten(2, (-1, size)) for g in gates_s), pre=pre)
        decay = gates_s[0].unflatten(2, (-1, size)).unbind(2) if decay_locked == "unmasked" else None
        c = counts(n, dim, gate)
        for i, x in enumerate(_inner_chunks(q_s, k_s, v_s, coef, size)):
            if (state.offset + start + i * size) % inner == 0:
                anchor = weights
            locked_decay = None if decay is None else decay[i]
            y, weights, momentum = _one_chunk(x, locked_decay, weights, momentum, anchor, c, pre)
            outs.append(y)
    out = (outs[0] if len(outs) == 1 else torch.cat(outs, 2)).transpose(1, 2)
    offset = (state.offset + length) % inner
    return out, TitansState(weights=weights, momentum=momentum, anchor=anchor, offset=offset)


Pair = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class _Inner:
    """What one inner chunk needs and no weights can change, computed for all chunks at once. [B, H, C, .]

    reads = [b q | f q]; qk_mix = QK^T . G; writes = [G_C . k | N_C . k]; ends = b_C, f_C, m_C.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    reads: Tensor
    qk_mix: Tensor
    writes: Tensor
    mix: Tensor
    carried: Tensor
    end_rows: Tensor
    ends: tuple[Tensor, Tensor, Tensor]


def _inner_chunks(q: Tensor, k: Tensor, v: Tensor, coef: Coefficients, size: int) -> Iterator[_Inner]:
    q, k, v = (x.unflatten(2, (-1, size)) for x in (q, k, v))
    carried = torch.stack([coef.keep, coef.carry], -1)  # [..., C, 2]
    end_rows = torch.stack([coef.end_mix, coef.end_surprise], -1)
    parts = {
        "q": q,
        "k": k,
        "v": v,
        "reads": _outer(carried, q),
        "qk_mix": (q @ k.mT) * coef.mix,
        "writes": _outer(end_rows, k),
        "mix": coef.mix,
        "carried": carried,
        "end_rows": end_rows,
    }
    ends = [x[..., None, None].unbind(2) for x in (coef.end_keep, coef.end_carry, coef.end_momentum)]
    columns = {name: x.unbind(2) for name, x in parts.items()}
    for i in range(q.shape[2]):
        yield _Inner(**{name: x[i] for name, x in columns.items()}, ends=(ends[0][i], ends[1][i], ends[2][i]))


def _outer(factors: Tensor, x: Tensor) -> Tensor:
    """[f_1 x | f_2 x]: factors [..., C, 2], x [..., C, D] -> [..., C, 2 D]."""
    return (factors[..., :, :, None] * x[..., :, None, :]).flatten(-2)


def _only_hidden(axis: str) -> None:
    if axis != "hidden":
        raise ValueError(f"an MLP memory is scheduled along its hidden units, not along {axis!r}")


def _split(pair: Pair, n: int) -> tuple[Pair, Pair]:
    return (pair[0][:, :, :n], pair[1][..., :n]), (pair[0][:, :, n:], pair[1][..., n:])


def _one_chunk(
    x: _Inner, decay: Tensor | None, weights: Pair, momentum: Pair, anchor: Pair, c: Counts, pre: bool
) -> tuple[Tensor, Pair, Pair]:
    """One inner chunk of one unlock segment."""
    dim, w = weights[0].shape[2], c.write
    if w == dim:
        return _dual(x, x.v, weights, momentum, anchor, c.output)
    locked, rest = _split(weights, w)[1], _split(momentum, w)[1]
    target = x.v
    if c.predict > w:  # gate write: the prediction reads the locked units of the anchor too
        l1, l2 = _split(anchor, w)[1]
        target = target - silu(x.k @ l1.mT) @ l2.mT
    opened = [_split(pair, w)[0] for pair in (weights, momentum, anchor)]
    y, new_weights, new_momentum = _dual(x, target, opened[0], opened[1], opened[2], c.output)
    if c.output > w:
        y = y + _locked_read(x.q, locked, decay, pre)
    if decay is not None:
        end = decay.sum(-1).exp()[..., None, None]
        locked = (locked[0] * end, locked[1] * end)
    new_weights = (torch.cat([new_weights[0], locked[0]], 2), torch.cat([new_weights[1], locked[1]], 3))
    new_momentum = (torch.cat([new_momentum[0], rest[0]], 2), torch.cat([new_momentum[1], rest[1]], 3))
    return y, new_weights, new_momentum


def _locked_read(q: Tensor, locked: Pair, decay: Tensor | None, pre: bool) -> Tensor:
    z = q @ locked[0].mT
    if decay is None:
        return silu(z) @ locked[1].mT
    cum = decay.cumsum(-1)
    factor = (cum - decay if pre else cum).exp()[..., None]
    return factor * (silu(factor * z) @ locked[1].mT)


def _dual(
    x: _Inner, target: Tensor, weights: Pair, momentum: Pair, anchor: Pair, output: int
) -> tuple[Tensor, Pair, Pair]:
    """Both layers in dual form on the open units; `output` units of them are read. [W | S] side by side: one product."""
    z = x.k @ anchor[0].mT
    s = z.sigmoid()
    a = z * s
    e = a @ anchor[1].mT - target
    dz = (s + a - a * s) * (e @ anchor[1])  # silu'(z) = s + a (1 - s)
    both_1 = torch.cat([weights[0], momentum[0]], -1)  # [N, 2K]
    both_2 = torch.cat([weights[1].mT, momentum[1].mT], -2)  # [2N, V]
    read_1, read_2, dz_read, a_read = both_1, both_2, dz, a
    units = weights[0].shape[2]
    if output < units:
        read_1, dz_read, a_read = both_1[:, :, :output], dz[..., :output], a[..., :output]
        read_2 = torch.cat([both_2[:, :, :output], both_2[:, :, units : units + output]], 2)
    h = silu(x.reads @ read_1.mT - x.qk_mix @ dz_read)
    y = _outer(x.carried, h) @ read_2 - ((h @ a_read.mT) * x.mix) @ e
    step_1 = dz.mT @ x.writes  # [N, 2K]: into the weights | into the momentum
    step_2 = _outer(x.end_rows, e).mT @ a  # [2V, N]
    keep, carry, decay = x.ends
    into_w1, into_s1 = step_1.chunk(2, -1)
    into_w2, into_s2 = step_2.chunk(2, -2)
    new_weights = tuple(
        torch.addcmul(keep * w, carry, m) - d for w, m, d in zip(weights, momentum, (into_w1, into_w2), strict=True)
    )
    new_momentum = tuple(decay * m - d for m, d in zip(momentum, (into_s1, into_s2), strict=True))
    return y, new_weights, new_momentum
