"""The chunked form behind `linear`, for any number c of taps, as one function with a backward written by hand.

A pair (k_i, v_i) reaches the state that y_t reads with the coefficient

    G_{t,i} = sum_j exp(L_t - L_{i+j}) b_{i+j,j}       over writing positions s = i + j <= t inside the chunk

so Y = (e^L Q) S + (Q K^T . G) V and S' = e^{L_C} S + (G_C . K)^T V with keys and values that begin c - 1 positions before the
chunk. No division by a_t. G sees no mask: every mask is a slice of q, k, v, S. With c > 1 a key is written with the masks of
several positions: every chunk has keys before it of its own, so a mask of the whole chunk is exact, one inside it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from proteus_kernels.matrix import Core, MatrixOut, Parts
from proteus_kernels.pieces import Piece, between, full_precision, room

KEPT = 8
KINDS = ("key", "key", "value")


def core(*, read: str, chunk_size: int, taps: int) -> Core:
    """The recurrence for `matrix.scan`: q already scaled, k and v begin taps - 1 positions early, gates = (weights,) or ()."""
    pre = read == "pre"

    def run(x: Parts, state: Tensor, pieces: Sequence[Piece]) -> MatrixOut:
        if x.q.shape[2] == 1:
            return _one_step(x, state, pre)
        coefficients = [c for group in _groups(pieces) for c in _coefficients(x, group, pre)]
        inputs = (*(t.to(state.dtype) for t in (x.q, x.k, x.v)), state, *coefficients)
        record = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        return _Chunked.apply(pieces, record, *inputs)

    return Core(run, chunk_size, anywhere=taps == 1)


def _one_step(x: Parts, state: Tensor, pre: bool) -> MatrixOut:
    decay, v = x.decay(), x.on_columns(x.v)
    assert decay is not None
    for weights in x.gates:
        v = v * weights.flip(-1).transpose(-1, -2)
    after = state * decay + x.k.transpose(-1, -2) @ v
    return x.on_columns(x.q @ (state if pre else after)), after


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Neighbours with chunks of one size: their coefficients are made together."""
    for _, run in groupby(pieces, key=lambda piece: piece.size):
        yield list(run)


def _coefficients(x: Parts, group: list[Piece], pre: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """G, its last row, e^L at the reads and at the end, all [n, B, H, ., .]."""
    assert x.g is not None
    start, stop, size = group[0].start, group[-1].stop, group[0].size

    def chunked(z: Tensor) -> Tensor:
        return z[:, :, start:stop].unflatten(2, (-1, size)).movedim(2, 0)

    g = chunked(x.g)
    cum = g.cumsum(-1)
    at_read = cum - g if pre else cum
    gam, to_end = between(at_read, cum, -1 if pre else 0), (cum[..., -1:] - cum).exp()
    for weights in x.gates:
        taps = chunked(weights).unbind(-1)
        gam, to_end = _banded(gam, [w[..., None, :] for w in taps]), _banded(to_end, list(taps))
    return gam, to_end[..., None], at_read.exp()[..., None], cum[..., -1:, None].exp()


def _banded(coefficient: Tensor, weights: list[Tensor]) -> Tensor:
    """sum_j coefficient[..., s] b_{s,j} at column s - j of the extended keys: [..., C] -> [..., C + taps - 1]."""
    last = len(weights) - 1
    return reduce(torch.add, (pad(coefficient * w, (last - j, j)) for j, w in enumerate(weights)))


class _Chunked(torch.autograd.Function):
    """y [B, H, T, V] and the state after all pieces; what is locked keeps its state and gives zero."""

    @staticmethod
    @full_precision
    def forward(ctx: Any, pieces: Sequence[Piece], record: bool, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, state, *coefficients = inputs
        y = room(v if v.shape[2] == q.shape[2] else v[:, :, : q.shape[2]], pieces, "value")
        state = state.clone(memory_format=torch.contiguous_format)
        saved: list[Tensor] = []
        for piece, own in _own(pieces, coefficients):
            out, kept = _forward(piece, (q, k, v), own, piece.state(state))
            piece.put(y, out, "value")
            saved += kept if record else ()
        ctx.pieces = pieces
        ctx.save_for_backward(*inputs, *saved)
        return y, state

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision
    def backward(ctx: Any, d_y: Tensor, d_state: Tensor) -> tuple[Tensor | None, ...]:
        pieces, saved = ctx.pieces, ctx.saved_tensors
        inputs, kept = saved[: -KEPT * len(pieces)], saved[-KEPT * len(pieces) :]
        q, k, v, _, *coefficients = inputs
        extra, wanted = k.shape[2] - q.shape[2], ctx.needs_input_grad[6]
        d_state = d_state.clone(memory_format=torch.contiguous_format)
        d_q, d_k, d_v = (torch.zeros_like(x) if extra else room(x, pieces, kind) for x, kind in zip((q, k, v), KINDS, strict=True))
        d_coefficients = [torch.zeros_like(c) if wanted else None for c in coefficients]
        owns = list(zip(_own(pieces, coefficients), _own(pieces, d_coefficients), strict=True))
        for i in reversed(range(len(pieces))):
            (piece, _), (_, d_own) = owns[i]
            grads = _backward(piece, kept[i * KEPT : (i + 1) * KEPT], d_y, piece.state(d_state), d_own)
            piece.put(d_q, grads[0], "key")
            _put_windows(piece, d_k, grads[1], "key", extra)
            _put_windows(piece, d_v, grads[2], "value", extra)
        return None, None, d_q, d_k, d_v, d_state, *d_coefficients


def _own(pieces: Sequence[Piece], coefficients: Sequence[Any]) -> Iterator[tuple[Piece, list[Any]]]:
    """Each piece with its part [n, B, h, ., .] of its group's coefficients."""
    for number, group in enumerate(_groups(pieces)):
        at, of_group = 0, coefficients[4 * number : 4 * number + 4]
        for piece in group:
            heads = piece.opened if piece.axis == "head" else None
            yield piece, [None if c is None else c[at : at + piece.chunks, :, :heads] for c in of_group]
            at += piece.chunks


def _windows(piece: Piece, x: Tensor, kind: str, extra: int) -> Tensor:
    """[B, H, T + extra, D] -> [n G, C + extra, open D], each chunk with what comes before it."""
    length = x.shape[2] - extra
    parts = [piece.take(x[:, :, j : length + j], kind)[:, :, :rows] for j, rows in _blocks(piece.size, extra)]
    return (torch.cat(parts, 2) if extra else parts[0]).flatten(0, 1)


def _put_windows(piece: Piece, out: Tensor, d_x: Tensor, kind: str, extra: int) -> None:
    """The adjoint: windows overlap, so they are added."""
    if not extra:
        piece.put(out, d_x, kind)
        return
    length, chunked = out.shape[2] - extra, piece.chunk_masked(d_x.unflatten(0, (piece.chunks, -1)), kind)
    for j, rows in _blocks(piece.size, extra):
        view = piece.view(out[:, :, j : length + j], kind)[:, :, :, :rows]
        view.add_(chunked[:, :, j : j + rows].unflatten(1, view.shape[1:3]))


def _blocks(size: int, extra: int) -> list[tuple[int, int]]:
    """(first row, rows) that tile a window of extra + size rows, none longer than a chunk, the last a chunk."""
    return [(j, min(size, extra - j)) for j in range(0, extra, size)] + [(extra, size)]


def _forward(piece: Piece, inputs: Sequence[Tensor], own: Sequence[Tensor], state: Tensor) -> tuple[Tensor, list[Tensor]]:
    """y [n G, C, V] of one piece, whose open state moves on in place; and what `_backward` needs."""
    extra = inputs[1].shape[2] - inputs[0].shape[2]
    q = piece.take(inputs[0], "key").flatten(0, 1)
    k, v = _windows(piece, inputs[1], "key", extra), _windows(piece, inputs[2], "value", extra)
    gam, to_end, at_read, at_end = (c.flatten(0, 2) for c in own)
    n, scores = piece.chunks, torch.bmm(q, k.mT)
    states = v.new_empty(n + 1, v.shape[0] // n, k.shape[-1], v.shape[-1])
    torch.bmm((k * to_end).mT, v, out=states[1:].flatten(0, 1))
    states[0].unflatten(0, state.shape[:2]).copy_(state)
    s = states.unbind(0)
    for i, decay in enumerate(at_end.unflatten(0, (n, -1)).unbind(0)):
        s[i + 1].addcmul_(s[i], decay)
    state.copy_(states[-1].unflatten(0, state.shape[:2]))
    y = torch.bmm(q * at_read, states[:-1].flatten(0, 1)).baddbmm_(scores * gam, v)
    return y, [q, k, v, scores, states, gam, to_end, torch.cat([at_read, at_end], 1)]


def _backward(
    piece: Piece, kept: Sequence[Tensor], d_y: Tensor, d_state: Tensor, d_own: Sequence[Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q and of the windows of k and v [n G, ., .]; those of the coefficients go to `d_own`."""
    q, k, v, scores, states, gam, to_end, factors = kept
    n, at_read, at_end = piece.chunks, factors[:, :-1], factors[:, -1:]
    dy = piece.take(d_y, "value").flatten(0, 1)
    grads = torch.empty_like(states)  # at the start of every chunk, and behind the last
    torch.bmm((q * at_read).mT, dy, out=grads[:-1].flatten(0, 1))
    grads[-1].unflatten(0, d_state.shape[:2]).copy_(d_state)
    s = grads.unbind(0)
    for i, decay in reversed(list(enumerate(at_end.unflatten(0, (n, -1)).unbind(0)))):
        s[i].addcmul_(s[i + 1], decay)
    d_state.copy_(grads[0].unflatten(0, d_state.shape[:2]))
    starts, ends = states[:-1].flatten(0, 1), grads[1:].flatten(0, 1)
    from_y, from_state, d_q = torch.bmm(dy, v.mT), torch.bmm(v, ends.mT), torch.bmm(dy, starts.mT)
    if d_own[0] is not None:
        by_state = (starts * ends).sum((1, 2))
        found = (from_y * scores, (from_state * k).sum(-1), (d_q * q).sum(-1), by_state)
        for out, x in zip(d_own, found, strict=True):
            out.copy_(x.view(out.shape))
    d_scores = from_y.mul_(gam)
    d_q.mul_(at_read).baddbmm_(d_scores, k)
    d_k = from_state.mul_(to_end).baddbmm_(d_scores.mT, q)
    d_v = torch.bmm((scores * gam).mT, dy).baddbmm_(k * to_end, ends)
    return d_q, d_k, d_v
