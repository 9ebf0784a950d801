"""The chunked delta rule behind `delta` and `comba` as one function with a backward written by hand.

Per head, with a_t = exp(g_t), L = cumsum(g) inside a chunk, and P the log decay of the state that the prediction reads
(P = L: the decayed state, Gated DeltaNet; P = L - g: the state before its decay, Comba):

    u_t = beta_t (v_t - S'^T p_t),   S_t = a_t S_{t-1} + k_t u_t^T,   y_t = S_t^T q_t

    A = tril(beta . (p k^T) . exp(P_i - L_j), -1),   N = (q k^T) . exp(R_i - L_j),   T = (I + A)^{-1}
    D = T (beta v - (beta e^P p) S),   Y = (e^R q) S + N D,   S' = e^{L_C} S + (e^{L_C - L} k)^T D

R = L, or L - g for a read before the write. g = None is a rule without decay: no exponential is made. Only D and S go from
chunk to chunk, everything else is one batched product over as many of them as the cache holds: the loop takes
-T (beta e^P p) and T beta v ready made, and is left with two products a chunk.

The gradients of the decays need no C x C sums: all of y_i carries e^{R_i}, so dR_i = <dq_i, q_i>; likewise dP_i = <dp_i, p_i>,
dL_j = -<dk_j, k_j> for k_j where it is written, and dL_C = <dS', S'>.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proteus_kernels.matrix import Core, MatrixOut, Parts
from proteus_kernels.pieces import Piece, Scratch, between, cached, full_precision, later_sum, room, rows_dot

KINDS = ("key", "key", "key", "value", "gate", "gate")
"""What the last axis of q, k, p, v, beta and g is."""
INPUTS = len(KINDS) + 1
BLOCK = 32
"""Positions of a chunk at most: longer ones ask for more C x C work than they save in calls (K = 32 to 128, one core)."""


@dataclass(frozen=True)
class Rule:
    """read before the write; predict from the state before its decay."""

    pre: bool
    undecayed: bool


def core(*, read: str, undecayed: bool, chunk_size: int) -> Core:
    """The recurrence for `matrix.scan`: p is the prediction's key, gates = (beta_BHT,), q already scaled."""
    rule = Rule(read == "pre", undecayed)

    def run(x: Parts, state: Tensor, pieces: Sequence[Piece]) -> MatrixOut:
        assert x.p is not None
        if x.q.shape[2] == 1:
            return _one_step(x, state, rule)
        given = (x.q, x.k, None if x.p is x.k else x.p, x.v, x.gates[0], x.g)
        inputs = (*(t if t is None else t.to(state.dtype) for t in given), state)
        record = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
        return _Chunked.apply(rule, cached(pieces, state), record, *inputs)

    return Core(run, min(chunk_size, BLOCK))


def _one_step(x: Parts, state: Tensor, rule: Rule) -> MatrixOut:
    assert x.p is not None
    decay = x.decay()
    decayed = state if decay is None else state * decay
    u = x.gates[0][..., None] * (x.v - x.p @ (state if rule.undecayed else decayed))
    after = torch.addcmul(decayed, x.k.transpose(-1, -2), x.on_columns(u))
    return x.on_columns(x.q @ (state if rule.pre else after)), after


class _Chunked(torch.autograd.Function):
    """y [B, H, T, V] and the state after all pieces; what is locked keeps its state and gives zero."""

    @staticmethod
    @full_precision
    def forward(ctx: Any, rule: Rule, pieces: Sequence[Piece], record: bool, *inputs: Any) -> tuple[Tensor, Tensor]:
        *given, state = inputs
        y, state = room(given[3], pieces, "value"), state.clone(memory_format=torch.contiguous_format)
        saved, scratch = list[Tensor](), Scratch(state)
        for piece in pieces:
            scratch.clear()
            out, kept = _forward(_open(rule, piece, given, scratch), piece, piece.state(state), scratch)
            piece.put(y, out, "value")
            if record:
                saved += kept
        ctx.rule, ctx.pieces = rule, pieces
        ctx.save_for_backward(*inputs, *saved)
        return y, state

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision
    def backward(ctx: Any, d_y: Tensor, d_state: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: recomputation hands it out only once
        *given, _ = saved[:INPUTS]
        kept, pieces, scratch = saved[INPUTS:], ctx.pieces, Scratch(d_state)
        grads = [None if x is None else room(x, pieces, kind) for x, kind in zip(given, KINDS, strict=True)]
        d_state = d_state.clone(memory_format=torch.contiguous_format)
        for i in reversed(range(len(pieces))):
            scratch.clear()
            piece, own = pieces[i], Kept(*kept[i * COUNT : (i + 1) * COUNT])
            x = _open(ctx.rule, piece, given, scratch)
            d_q, d_k, d_p, *rest = _backward(ctx.rule, piece, x, own, d_y, piece.state(d_state), scratch)
            if grads[2] is None:
                d_k.add_(d_p)
            for out, d_x, kind in zip(grads, (d_q, d_k, d_p, *rest), KINDS, strict=True):
                if out is not None and d_x is not None:
                    wide = kind != "gate"
                    piece.put(out if wide else out[..., None], d_x if wide else d_x[..., None], kind)
        return None, None, None, *grads, d_state


class Open(NamedTuple):
    """The open part of one piece's inputs, [n G, C, .], and its decays (None for a rule without), in scratch memory.

    The backward makes it again: copies inside the cache are cheaper than memory that waits for it.
    """

    q: Tensor
    k: Tensor
    p: Tensor
    v: Tensor
    beta: Tensor
    read_gam: Tensor
    predict_gam: Tensor
    read: Tensor | None
    predict: Tensor | None
    to_end: Tensor | None
    end: Tensor | None

    def p_read(self, out: Tensor) -> Tensor:
        """beta e^P p"""
        return torch.mul(self.p, self.beta if self.predict is None else self.beta * self.predict, out=out)


class Kept(NamedTuple):
    """What the backward of one piece does not make again. [n G, C, .] but states [n + 1, G, K, V].

    by_state is -T (beta e^P p), which is what D takes from S.
    """

    scores: Tensor
    inverse: Tensor
    by_state: Tensor
    deltas: Tensor
    states: Tensor


COUNT = len(Kept._fields)


def _open(rule: Rule, piece: Piece, inputs: Sequence[Any], scratch: Scratch) -> Open:
    q, k, p, v, beta, g = inputs
    q, k, v = (piece.take(x, kind, scratch).flatten(0, 1) for x, kind in ((q, "key"), (k, "key"), (v, "value")))
    p = k if p is None else piece.take(p, "key", scratch).flatten(0, 1)
    beta = piece.take(beta[..., None], "gate").flatten(0, 1)
    return Open(q, k, p, v, beta, *_decays(rule, piece, g, beta, scratch))


def _forward(x: Open, piece: Piece, state: Tensor, scratch: Scratch) -> tuple[Tensor, Kept]:
    """y [n G, C, V] of one piece, in scratch memory; its open state moves on in place."""
    n = piece.chunks
    scores = torch.bmm(x.q, x.k.mT).mul_(x.read_gam)
    lower = torch.bmm(x.p, x.k.mT, out=scratch.new(*scores.shape)).mul_(x.predict_gam).mul_(x.beta)
    identity = torch.eye(piece.size, dtype=lower.dtype, device=lower.device).expand_as(lower)
    # from the right: the same inverse in half the time
    inverse = torch.linalg.solve_triangular(lower, identity, upper=False, left=False, unitriangular=True)
    by_state = torch.bmm(inverse, x.p_read(scratch.new(*x.p.shape))).neg_()
    deltas = torch.bmm(inverse, torch.mul(x.v, x.beta, out=scratch.new(*x.v.shape))).unflatten(0, (n, -1))
    states = deltas.new_empty(n + 1, deltas.shape[1], x.k.shape[-1], x.v.shape[-1])
    states[0].unflatten(0, state.shape[:2]).copy_(state)
    s = states.unbind(0)
    k_write = _times(x.k, x.to_end, scratch)
    per_chunk = zip(*_unbound(n, by_state, k_write.mT), deltas.unbind(0), _ends(x.end, n), strict=True)
    for i, (w_i, kt_i, delta, decay) in enumerate(per_chunk):
        delta.baddbmm_(w_i, s[i])
        if decay is None:
            torch.baddbmm(s[i], kt_i, delta, out=s[i + 1])
        else:
            torch.mul(s[i], decay, out=s[i + 1]).baddbmm_(kt_i, delta)
    state.copy_(states[-1].unflatten(0, state.shape[:2]))
    deltas = deltas.flatten(0, 1)
    q_read, y = _times(x.q, x.read, scratch), scratch.new(*x.v.shape)
    torch.bmm(q_read, states[:-1].flatten(0, 1), out=y).baddbmm_(scores, deltas)
    return y, Kept(scores, inverse, by_state, deltas, states)


def _decays(rule: Rule, piece: Piece, g: Tensor | None, like: Tensor, scratch: Scratch) -> tuple[Any, ...]:
    """exp(R_i - L_j), exp(P_i - L_j); e^R, e^P, e^{L_C - L} [n G, C, 1] and e^{L_C} [n G, 1, 1]."""
    size = piece.size
    if g is None:
        causal = torch.ones(size, size, dtype=like.dtype, device=like.device).tril()
        strict = causal.tril(-1)
        return (strict if rule.pre else causal), strict, None, None, None, None
    g = piece.take(g[..., None], "gate").flatten(0, 1).squeeze(-1)
    cum = g.cumsum(-1)
    before = cum - g if rule.pre or rule.undecayed else cum
    reads, predicts = (before if rule.pre else cum), (before if rule.undecayed else cum)
    read_gam = between(reads, cum, -1 if rule.pre else 0, scratch.new(*cum.shape, size))
    predict_gam = read_gam  # its diagonal, if any, is not looked at
    if reads is not predicts:
        predict_gam = between(predicts, cum, -1, scratch.new(*cum.shape, size))
    read = reads.exp()[..., None]
    predict = read if reads is predicts else predicts.exp()[..., None]
    return read_gam, predict_gam, read, predict, (cum[..., -1:] - cum).exp()[..., None], cum[..., -1:, None].exp()


def _times(x: Tensor, factor: Tensor | None, scratch: Scratch) -> Tensor:
    return x if factor is None else torch.mul(x, factor, out=scratch.new(*x.shape))


def _unbound(n: int, *tensors: Tensor) -> list[Sequence[Tensor]]:
    """Tensors [n G, ., .] as their parts in each chunk."""
    return [x.unflatten(0, (n, -1)).unbind(0) for x in tensors]


def _ends(end: Tensor | None, n: int) -> Sequence[Tensor | None]:
    return [None] * n if end is None else end.unflatten(0, (n, -1)).unbind(0)


def _backward(
    rule: Rule, piece: Piece, x: Open, kept: Kept, d_y: Tensor, d_state: Tensor, scratch: Scratch
) -> tuple[Any, ...]:
    """Gradients of q, k, p, v, beta, g of one piece, [n G, C, .], in scratch memory; d_state moves to its start in place."""

    def product(a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b, out=scratch.new(len(a), a.shape[1], b.shape[2]))

    n, dy = piece.chunks, piece.take(d_y, "value", scratch).flatten(0, 1)
    d_deltas = product(kept.scores.mT, dy)
    grads = scratch.new(*kept.states.shape)  # at the start of every chunk, and behind the last
    torch.bmm(_times(x.q, x.read, scratch).mT, dy, out=grads[:-1].flatten(0, 1))
    grads[-1].unflatten(0, d_state.shape[:2]).copy_(d_state)
    s = grads.unbind(0)
    k_write = _times(x.k, x.to_end, scratch)
    per_chunk = list(zip(*_unbound(n, kept.by_state.mT, k_write, d_deltas), _ends(x.end, n), strict=True))
    for i in reversed(range(n)):
        wt_i, k_i, d_delta, decay = per_chunk[i]
        d_delta.baddbmm_(k_i, s[i + 1])
        if decay is None:
            s[i].add_(s[i + 1])
        else:
            s[i].addcmul_(s[i + 1], decay)
        s[i].baddbmm_(wt_i, d_delta)
    d_state.copy_(grads[0].unflatten(0, d_state.shape[:2]))
    d_errors = product(kept.inverse.mT, d_deltas)
    starts, ends = kept.states[:-1].flatten(0, 1).mT, grads[1:].flatten(0, 1)
    d_scores = product(dy, kept.deltas.mT).mul_(x.read_gam)
    d_lower = product(d_errors, kept.deltas.mT).mul_(x.predict_gam).tril_(-1)  # negative, like d_p until its sign is set
    d_q = _scaled(product(dy, starts), x.read).baddbmm_(d_scores, x.k)
    d_p = _scaled(product(d_errors, starts), x.predict).baddbmm_(d_lower, x.k)
    d_k = _scaled(product(kept.deltas, ends.mT), x.to_end).baddbmm_(d_scores.mT, x.q)
    d_k.baddbmm_(d_lower.mul_(x.beta).mT, x.p, alpha=-1)
    of_keys = scratch.new(*x.k.shape)
    from_p = rows_dot(d_p, x.p, of_keys)
    d_beta = rows_dot(d_errors, x.v, scratch.new(*x.v.shape)).sub_(from_p)
    d_g = None
    if x.end is not None:
        by_read, by_predict = rows_dot(d_q, x.q, of_keys), from_p.mul_(x.beta.squeeze(-1)).neg_()
        by_cum = by_read + by_predict - rows_dot(d_k, x.k, of_keys)
        after, d_after = kept.states[1:].flatten(2), grads[1:].flatten(2)
        by_cum[:, -1] += rows_dot(after, d_after, scratch.new(*after.shape)).flatten()
        d_g = later_sum(by_cum)
        if rule.pre:
            d_g -= by_read
        if rule.undecayed:
            d_g -= by_predict
    d_p.mul_(-x.beta)
    return d_q, d_k, d_p, d_errors.mul_(x.beta), d_beta, d_g


def _scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    """In place."""
    return x if factor is None else x.mul_(factor)
