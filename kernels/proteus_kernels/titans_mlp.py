"""Titans with an MLP memory of depth L >= 2, M(k) = W_L silu(... silu(W_1 k)): the definition and the dual (chunked) form.

W_1 [B, H, N, K], W_2 .. W_{L-1} [B, H, N, N], W_L [B, H, V, N]; no biases, norms or residual path, so one axis (hidden)
covers the whole memory: unit j of EVERY hidden layer owns row j of its W_l and column j of W_{l+1}. With unit masks w, p,
r (write, predict, output) and the anchors W^:

    x_0 = k, z_l = W^_l x_{l-1}, x_l = p . silu(z_l);  delta_L = z_L - v, delta_l = silu'(z_l) . p . W^_{l+1}^T delta_{l+1}
    dW_l = delta_l x_{l-1}^T                                               gradient of ||M(k) - v||^2 / 2
    S_l = where(w, eta S_l - theta dW_l, S_l), W_l = where(w, (1 - alpha) W_l + S_l, W_l)
    y = W_L (r . silu(... r . silu(W_1 q)))                                read="pre": the weights before this write

w masks the rows of W_1, the columns of W_L and BOTH sides of the layers between, so with n of N units open the active
parameters are n (K + V) + (L - 2) n^2: linear in n at depth 2, nearly quadratic beyond. `active_fraction` of a schedule
counts units; `parameter_fraction` says what that is in parameters. A zero start is dead (every gradient vanishes), so
M_0 is learned. Depth 1 has no hidden units: it is `titans_linear`, with the axes of a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from proteus_kernels import titans_partial
from proteus_kernels.masks import Counts, counts, cut_time
from proteus_kernels.titans_common import TitansState, pieces
from proteus_kernels.titans_dual import dual
from proteus_kernels.titans_dual_forward import Run
from proteus_kernels.titans_partial import Layers
from proteus_kernels.titans_runs import block_length, by_position, run_of, stretches

silu = torch.nn.functional.silu


def silu_slope(z: Tensor) -> Tensor:
    """d silu(z) / dz."""
    s = z.sigmoid()
    return s * (1 + z * (1 - s))


def parameter_fraction(units: int, *, hidden: int, key: int, value: int, depth: int) -> float:
    """Active over all parameters of a memory with `units` of `hidden` units open."""
    return (units * (key + value) + (depth - 2) * units**2) / (hidden * (key + value) + (depth - 2) * hidden**2)


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
    """The definition, one position at a time. Returns y_BTHV and the state (weights = (W_1, .., W_L))."""
    dim = _hidden(state, axis)
    weights, momentum, anchor, outs = state.weights, state.momentum, state.anchor, []
    units = torch.arange(dim, device=q_BTHK.device)
    for t in range(q_BTHK.shape[1]):
        if (state.offset + t) % inner == 0:
            anchor = weights
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, p, r = ((units < n)[:, None] for n in (c.write, c.predict, c.output))
        q, k, v = q_BTHK[:, t, :, :, None], k_BTHK[:, t, :, :, None], v_BTHV[:, t, :, :, None]
        zs, xs = [], [k]
        for a in anchor[:-1]:
            zs.append(a @ xs[-1])
            xs.append(silu(zs[-1]) * p)
        deltas = [anchor[-1] @ xs[-1] - v]
        for z, a in zip(reversed(zs), reversed(anchor), strict=False):
            deltas.insert(0, silu_slope(z) * p * (a.mT @ deltas[0]))
        keep, eta = (x[:, t].exp()[..., None, None] for x in (log_keep_BTH, log_eta_BTH))
        theta = theta_BTH[:, t, :, None, None]
        masks = [w, *[w & w.mT] * (len(weights) - 2), w.mT]
        momentum = tuple(
            torch.where(m, eta * s - theta * (d @ x.mT), s) for m, s, d, x in zip(masks, momentum, deltas, xs, strict=True)
        )
        before = weights
        weights = tuple(
            torch.where(m, keep * x + s, keep * x if decay_locked == "unmasked" else x)
            for m, x, s in zip(masks, weights, momentum, strict=True)
        )
        *hidden, last = before if read == "pre" else weights
        for layer in hidden:
            q = silu(layer @ q) * r
        outs.append((last @ q).squeeze(-1))
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

    Pieces never cross an unlock: each runs on the open part of the layers (`titans_dual`), locked parts are not touched.
    A gate that predicts with more units than it writes (`write`) takes `titans_partial`, without a backward of its own.
    """
    if q_BTHK.shape[1] == 1:  # nothing to share: the definition has fewer operations
        return recurrent(
            q_BTHK=q_BTHK, k_BTHK=k_BTHK, v_BTHV=v_BTHV, log_keep_BTH=log_keep_BTH, log_eta_BTH=log_eta_BTH,
            theta_BTH=theta_BTH, state=state, active=active, axis=axis, gate=gate, read=read, decay_locked=decay_locked,
            inner=inner,
        )  # fmt: skip
    dim, length = _hidden(state, axis), q_BTHK.shape[1]
    pre, heads = read == "pre", (q_BTHK.shape[0], q_BTHK.shape[2])
    spans = list(pieces(active, length, dim, inner, state.offset))
    q, k, v, *gates = (x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV, log_keep_BTH, log_eta_BTH, theta_BTH))
    decays = [d for (d,) in cut_time(spans, gates[0])] if decay_locked == "unmasked" else [None] * len(spans)
    layers, outs, left = Layers.of(state), [], iter(zip(spans, decays, strict=True))
    joined = list(stretches(spans, inner))
    columns = cut_time([(s[0][0], s[-1][1]) for s in joined], q, k, v, *gates)
    for stretch, (q_s, k_s, v_s, *gates_s) in zip(joined, columns, strict=True):
        size, ys = stretch[0][2], []
        block = size if gate == "write" else block_length(size, min(q.shape[-1], v.shape[-1]))
        runs = run_of(q_s, k_s, v_s, gates_s, size, block, pre=pre).split([(b - a) // size for a, b, _, _ in stretch])
        for run, ((start, _, _, n), decay) in zip(runs, left, strict=False):
            y, layers = _piece(run, decay, layers, counts(n, dim, gate), (state.offset + start) % inner == 0, pre)
            ys.append(y)
        outs.append(by_position(ys[0] if len(ys) == 1 else torch.cat(ys, 0), heads))
    y = outs[0] if len(outs) == 1 else torch.cat(outs, 1)
    return y, layers.state((state.offset + length) % inner)


def _hidden(state: TitansState, axis: str) -> int:
    """The number of hidden units; ValueError for another axis or depth."""
    if axis != "hidden":
        raise ValueError(f"an MLP memory is scheduled along its hidden units, not along {axis!r}")
    if len(state.weights) < 2:
        raise ValueError("an MLP memory has at least two layers; one layer is the linear memory")
    return state.weights[0].shape[2]


def _piece(
    run: Run, decay: Tensor | None, layers: Layers, c: Counts, fresh: bool, pre: bool
) -> tuple[Tensor, Layers]:
    """A run of equal inner chunks between two unlocks: y [n, B H, C, V]."""
    if c.predict > c.write:
        return titans_partial.piece(run, decay, layers, c.write, fresh, pre)
    states, anchors = layers.opened(c.write)
    y, *after = dual(run, states, () if fresh else anchors, c.output)
    depth, size = len(states), run.q.shape[2]
    return y, layers.after(after[:depth], after[depth:], c.write, decay, size, fresh)
