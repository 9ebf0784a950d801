"""The unmasked chunked delta rule behind `delta` and `comba`, over one segment (WY form).

Per head, with a_t = exp(g_t), L = cumsum(g), and P the log decay of the state that the prediction reads
(P = L: the decayed state, Gated DeltaNet; P = L - g: the state before its decay, Comba):

    u_t = beta_t (v_t - S'^T p_t),   S_t = a_t S_{t-1} + k_t u_t^T,   y_t = S_t^T q_t

    A = tril(beta . (P K^T) . exp(P_i - L_j), -1),   [W U] = (I + A)^{-1} [beta e^P p, beta V],   D = U - W S,
    Y = (e^R Q) S + (Q K^T . exp(R_i - L_j)) D,      S' = e^{L_C} S + (e^{L_C - L} K)^T D

R = L, or L - g for a read before the write. g = None is a rule without decay: no exponential is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from proteus_kernels.matrix import Core, MatrixOut, Parts


def core(*, read: str, undecayed: bool, chunk_size: int) -> Core:
    """The recurrence for `matrix.scan`: p is the prediction's key, gates = (beta_BHT,), q already scaled."""
    pre = read == "pre"

    def run(x: Parts, state: Tensor) -> MatrixOut:
        length = x.q.shape[2]
        if length == 1:
            return _one_step(x, state, pre, undecayed)
        size = min(chunk_size, length)
        whole = length - length % size
        y, state = _chunks(x, state, 0, whole, size, pre, undecayed)
        if whole == length:
            return y, state
        tail, state = _chunks(x, state, whole, length, length - whole, pre, undecayed)
        return torch.cat([y, tail], 2), state

    return run


def _one_step(x: Parts, state: Tensor, pre: bool, undecayed: bool) -> MatrixOut:
    assert x.p is not None
    decayed = state if x.g is None else state * x.g.exp()[..., None]
    u = x.gates[0][..., None] * (x.v - x.p @ (state if undecayed else decayed))
    after = decayed + x.k.transpose(-1, -2) @ u
    return x.q @ (state if pre else after), after


def _chunks(
    x: Parts, state: Tensor, start: int, stop: int, size: int, pre: bool, undecayed: bool
) -> MatrixOut:
    assert x.p is not None
    cut: Callable[[Tensor], Tensor] = lambda z: z[:, :, start:stop].unflatten(2, (-1, size))  # noqa: E731
    q, k, v, beta = cut(x.q), cut(x.k), cut(x.v), cut(x.gates[0])
    p = k if x.p is x.k else cut(x.p)
    causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    strict = causal.tril(-1)
    reads = strict if pre else causal
    kt = k.transpose(-1, -2)
    if x.g is None:
        lower, scores = (p @ kt) * (strict * beta[..., None]), (q @ kt) * reads
        to_end, end = kt, None
    else:
        g = cut(x.g)
        cum = g.cumsum(-1)
        predict_cum, read_cum = (cum - g if undecayed else cum), (cum - g if pre else cum)
        gam = (predict_cum[..., :, None] - cum[..., None, :]).masked_fill(~strict, -torch.inf).exp()
        read_gam = (read_cum[..., :, None] - cum[..., None, :]).masked_fill(~reads, -torch.inf).exp()
        lower, scores = (p @ kt) * gam * beta[..., None], (q @ kt) * read_gam
        p, q = p * predict_cum.exp()[..., None], q * read_cum.exp()[..., None]
        to_end = (k * (cum[..., -1:] - cum).exp()[..., None]).transpose(-1, -2)
        end = cum[..., -1].exp()[..., None, None]
    rhs = torch.cat([p, v], -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(lower, rhs, upper=False, unitriangular=True)
    w, u = solved.split([k.shape[-1], v.shape[-1]], -1)
    deltas, states = [], []
    decays = [None] * q.shape[2] if end is None else end.unbind(2)
    for w_c, u_c, k_c, e_c in zip(w.unbind(2), u.unbind(2), to_end.unbind(2), decays, strict=True):
        states.append(state)
        delta = u_c - w_c @ state
        deltas.append(delta)
        state = (state if e_c is None else e_c * state) + k_c @ delta
    y = q @ torch.stack(states, 2) + scores @ torch.stack(deltas, 2)
    return y.flatten(2, 3), state
