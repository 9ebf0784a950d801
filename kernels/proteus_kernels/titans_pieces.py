"""The chunked linear Titans memory under a schedule as one function: pieces on slices, with a backward written by hand.

A piece is a run of inner chunks that works on the open part of one axis (`pieces`). The state of all coordinates is moved
in place, piece by piece; the slices of q, k, v and y are copied piece by piece while they are in the cache, and gradients
are put where they belong. The arithmetic on a slice is in `titans_group`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from proteus_kernels.pieces import Piece, full_precision, room
from proteus_kernels.titans_group import Factors, Group, Kept

GROUP = 8
"""Inner chunks of a piece at most: what they need together should stay in the cache."""
PLACE = {"head": 1, "value": 2, "key": -1}
"""Where an axis lies in `_States`."""
KINDS = ("key", "key", "value")
COUNT = len(fields(Factors))


@dataclass(frozen=True)
class Turn:
    """A piece, and where its factors lie: chunks `first` onwards of a stretch. `fresh`: it begins an inner chunk; `marks`:
    the anchor of its last chunk is used after it."""

    piece: Piece
    stretch: int
    first: int
    fresh: bool
    marks: bool


def plan(pieces: Iterable[Piece], offset: int, inner: int) -> tuple[list[Turn], list[tuple[int, int, int]]]:
    """Turns of `GROUP` chunks at most, and the stretches (start, stop, size) whose factors are made together: neighbours of
    whole inner chunks, every other piece alone. The pass begins `offset` positions into an inner chunk."""
    turns: list[Turn] = []
    spans: list[tuple[int, int, int]] = []
    for piece in pieces:
        start, _, size = spans[-1] if spans else (0, 0, 0)
        if size == piece.size == inner:
            spans[-1] = (start, piece.stop, size)
        else:
            start = piece.start
            spans.append((start, piece.stop, piece.size))
        for part in _parts_of(piece):
            fresh = (offset + part.start) % inner == 0
            turns.append(Turn(part, len(spans) - 1, (part.start - start) // part.size, fresh, True))
    marks = [not after.fresh for after in turns[1:]]
    return [replace(turn, marks=m) for turn, m in zip(turns, [*marks, True], strict=True)], spans


def _parts_of(piece: Piece) -> Iterator[Piece]:
    step = GROUP * piece.size
    for start in range(piece.start, piece.stop, step):
        stop = min(start + step, piece.stop)
        counts = piece.counts and piece.counts[start - piece.start : stop - piece.start]
        yield replace(piece, start=start, stop=stop, counts=counts)


def scan(
    turns: Sequence[Turn], scale: float, inputs: Sequence[Tensor], state: Sequence[Tensor], factors: Sequence[Factors]
) -> tuple[Tensor, ...]:
    """y [B, H, T, V], memory, momentum and anchor [B, H, K, V], from q, k, v [B, H, T, .] and the factors of every stretch."""
    given = [x.to(state[0].dtype) for x in (*inputs, *state, *(x for f in factors for x in vars(f).values()))]
    record = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    return _Scan.apply(turns, scale, record, *given)


class _Scan(torch.autograd.Function):
    """See `scan`."""

    @staticmethod
    @full_precision
    def forward(ctx: Any, turns: Sequence[Turn], scale: float, record: bool, *inputs: Tensor) -> tuple[Tensor, ...]:
        (q, k, v), factors = inputs[:3], inputs[6:]
        states, saved = _States(inputs[3:6]), []
        y = room(v, [turn.piece for turn in turns], "value")
        for turn in turns:
            piece, anchor = turn.piece, None if turn.fresh else states.open_anchor(turn.piece)
            group = Group(piece.take(q, "key"), piece.take(k, "key"), _factors(turn, factors, q.shape[1]), scale, anchor)
            out, end, kept = group.forward(piece.take(v, "value"), states.open(piece))
            if turn.fresh and turn.marks:
                states.mark(piece, kept.states[-1, :, 0, :, : group.width])
            states.put(piece, end)
            piece.put(y, out, "value")
            if record:
                saved += [*vars(kept).values(), anchor]
        if record:
            ctx.turns, ctx.scale = turns, scale
            ctx.save_for_backward(*inputs, *saved)
        return y, *states.split()

    @staticmethod
    @torch.autograd.function.once_differentiable
    @full_precision
    def backward(ctx: Any, d_y: Tensor, *d_after: Tensor) -> tuple[Tensor | None, ...]:
        saved, turns, each = ctx.saved_tensors, ctx.turns, len(fields(Kept)) + 1  # read once: recomputation hands it out only once
        kept_at = len(saved) - len(turns) * each
        (q, k, v), factors = saved[:3], saved[6:kept_at]
        pieces, states = [turn.piece for turn in turns], _States(d_after)
        grads = [room(x, pieces, kind) for x, kind in zip((q, k, v), KINDS, strict=True)]
        d_factors = [torch.zeros_like(x) if pieces[0].axis == "head" else torch.empty_like(x) for x in factors]
        for i, turn in reversed(list(enumerate(turns))):
            piece, (*kept, anchor) = turn.piece, saved[kept_at + i * each : kept_at + (i + 1) * each]
            group = Group(piece.take(q, "key"), piece.take(k, "key"), _factors(turn, factors, q.shape[1]), scale=ctx.scale, anchor=anchor)
            d_begun = states.unmark(piece) if turn.fresh and turn.marks else None
            d_qkv, d_group, d_start, d_anchor = group.backward(Kept(*kept), piece.take(d_y, "value"), states.open(piece), d_begun)
            states.put(piece, d_start)
            if not turn.fresh:
                states.add_anchor(piece, d_anchor)
            for out, d_x, kind in zip(grads, d_qkv, KINDS, strict=True):
                piece.put(out, d_x, kind)
            for out, d_x in zip(_parts(turn, d_factors, q.shape[1]), vars(d_group).values(), strict=True):
                out.copy_(d_x.view_as(out))
        return None, None, None, *grads, *states.split(), *d_factors


def _parts(turn: Turn, factors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """A turn's factors, those of open heads: views [n, B, H, ...]."""
    own, stop = factors[COUNT * turn.stretch : COUNT * (turn.stretch + 1)], turn.first + turn.piece.chunks
    opened = turn.piece.opened if turn.piece.axis == "head" else heads
    return [x[turn.first : stop].unflatten(1, (-1, heads))[:, :, :opened] for x in own]


def _factors(turn: Turn, factors: Sequence[Tensor], heads: int) -> Factors:
    return Factors(*(x.flatten(1, 2) for x in _parts(turn, factors, heads)))


class _States:
    """X = [W | S] [B, H, V, 2, K] of all coordinates and the anchor [B, H, V, K], or their gradients; moved in place."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        memory, momentum, anchor = (x.mT for x in parts)
        self.x, self.anchor = torch.stack([memory, momentum], 3), anchor.clone(memory_format=torch.contiguous_format)
        self.weights = self.x.select(3, 0)

    def view(self, x: Tensor, piece: Piece) -> Tensor:
        return x.narrow(PLACE[piece.axis], 0, piece.opened)

    def open(self, piece: Piece) -> Tensor:
        """[G, V, 2 K]"""
        return self.view(self.x, piece).flatten(0, 1).flatten(2)

    def put(self, piece: Piece, x: Tensor) -> None:
        view = self.view(self.x, piece)
        view.copy_(x.view(view.shape))

    def open_anchor(self, piece: Piece) -> Tensor:
        """[G, V, K], a copy."""
        return self.view(self.anchor, piece).clone(memory_format=torch.contiguous_format).flatten(0, 1)

    def add_anchor(self, piece: Piece, x: Tensor) -> None:
        view = self.view(self.anchor, piece)
        view.add_(x.view(view.shape))

    def mark(self, piece: Piece, opened: Tensor) -> None:
        """The anchor of a chunk whose open weights were [G, V, K] at its start; what is locked has not moved since."""
        self.anchor.copy_(self.weights)
        view = self.view(self.anchor, piece)
        view.copy_(opened.unflatten(0, view.shape[:2]))

    def unmark(self, piece: Piece) -> Tensor:
        """The adjoint of `mark`: the gradient of the open weights."""
        opened = self.open_anchor(piece)
        self.view(self.anchor, piece).zero_()
        self.weights.add_(self.anchor)
        self.anchor.zero_()
        return opened

    def split(self) -> tuple[Tensor, Tensor, Tensor]:
        """Memory, momentum and anchor [B, H, K, V]."""
        memory, momentum, anchor = (x.mT.contiguous() for x in (*self.x.unbind(3), self.anchor))
        return memory, momentum, anchor
