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

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels.masks import Counts, counts
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
    for start, stop, size, n in pieces(active, length, dim, inner, state.offset):
        s = slice(start, stop)
        coef = coefficients(*(g[:, :, s].unflatten(2, (-1, size)) for g in gates), pre=pre)
        decay = gates[0][:, :, s].unflatten(2, (-1, size)) if decay_locked == "unmasked" else None
        rows = {name: x.unbind(2) for name, x in vars(coef).items()}
        c = counts(n, dim, gate)
        for i in range((stop - start) // size):
            at = slice(start + i * size, start + (i + 1) * size)
            if (state.offset + at.start) % inner == 0:
                anchor = weights
            row = Coefficients(**{name: x[i] for name, x in rows.items()})
            locked_decay = None if decay is None else decay[:, :, i]
            y, weights, momentum = _one_chunk(
                q[:, :, at], k[:, :, at], v[:, :, at], row, locked_decay, weights, momentum, anchor, c, pre
            )
            outs.append(y)
    out = (outs[0] if len(outs) == 1 else torch.cat(outs, 2)).transpose(1, 2)
    offset = (state.offset + length) % inner
    return out, TitansState(weights=weights, momentum=momentum, anchor=anchor, offset=offset)


Pair = tuple[Tensor, ...]


def _only_hidden(axis: str) -> None:
    if axis != "hidden":
        raise ValueError(f"an MLP memory is scheduled along its hidden units, not along {axis!r}")


def _split(pair: Pair, n: int) -> tuple[Pair, Pair]:
    return (pair[0][:, :, :n], pair[1][..., :n]), (pair[0][:, :, n:], pair[1][..., n:])


def _one_chunk(
    q: Tensor, k: Tensor, v: Tensor, coef: Coefficients, decay: Tensor | None,
    weights: Pair, momentum: Pair, anchor: Pair, c: Counts, pre: bool,
) -> tuple[Tensor, Pair, Pair]:  # fmt: skip
    """One inner chunk of one unlock segment; q, k, v [B, H, C, .]."""
    dim, w = weights[0].shape[2], c.write
    target = v
    if w < dim:
        locked = _split(weights, w)[1]
        if c.predict > w:  # gate write: the prediction reads the locked units of the anchor too
            l1, l2 = _split(anchor, w)[1]
            target = v - silu(k @ l1.mT) @ l2.mT
        weights, momentum_open = _split(weights, w)[0], _split(momentum, w)[0]
        anchor_open = _split(anchor, w)[0]
    else:
        momentum_open, anchor_open = momentum, anchor
    y, new_weights, new_momentum = _dual(q, k, target, coef, weights, momentum_open, anchor_open, c.output)
    if w < dim:
        if c.output > w:
            y = y + _locked_read(q, locked, decay, pre)
        rest_m = _split(momentum, w)[1]
        if decay is not None:
            end = decay.sum(-1).exp()[..., None, None]
            locked = (locked[0] * end, locked[1] * end)
        new_weights = (torch.cat([new_weights[0], locked[0]], 2), torch.cat([new_weights[1], locked[1]], 3))
        new_momentum = (torch.cat([new_momentum[0], rest_m[0]], 2), torch.cat([new_momentum[1], rest_m[1]], 3))
    return y, new_weights, new_momentum


def _locked_read(q: Tensor, locked: Pair, decay: Tensor | None, pre: bool) -> Tensor:
    z = q @ locked[0].mT
    if decay is None:
        return silu(z) @ locked[1].mT
    cum = decay.cumsum(-1)
    factor = (cum - decay if pre else cum).exp()[..., None]
    return factor * (silu(factor * z) @ locked[1].mT)


def _dual(
    q: Tensor, k: Tensor, v: Tensor, coef: Coefficients, weights: Pair, momentum: Pair, anchor: Pair, output: int
) -> tuple[Tensor, Pair, Pair]:
    """Both layers in dual form on the open units; `output` units of them are read."""
    z = k @ anchor[0].mT
    a = silu(z)
    e = a @ anchor[1].mT - v
    dz = silu_slope(z) * (e @ anchor[1])
    keep, carry = coef.keep[..., None], coef.carry[..., None]
    r = min(output, weights[0].shape[2])
    h = _read(q, k, dz[..., :r], coef.mix, keep, carry, weights[0][:, :, :r].mT, momentum[0][:, :, :r].mT)
    y = _read(silu(h), a[..., :r], e, coef.mix, keep, carry, weights[1][..., :r].mT, momentum[1][..., :r].mT)
    ends = [x[..., None, None] for x in (coef.end_keep, coef.end_carry, coef.end_momentum)]
    new_w, new_m = [], []
    for left, right, x, s in ((dz, k, weights[0], momentum[0]), (e, a, weights[1], momentum[1])):
        into_w = (left * coef.end_mix[..., None]).mT @ right
        into_m = (left * coef.end_surprise[..., None]).mT @ right
        new_w.append(ends[0] * x + ends[1] * s - into_w)
        new_m.append(ends[2] * s - into_m)
    return y, tuple(new_w), tuple(new_m)


def _read(
    x: Tensor, keys: Tensor, errors: Tensor, mix: Tensor, keep: Tensor, carry: Tensor, w: Tensor, s: Tensor
) -> Tensor:
    """x_t through the weights at t: b x W + f x S - (x keys^T . G) errors."""
    return keep * (x @ w) + carry * (x @ s) - ((x @ keys.mT) * mix) @ errors
