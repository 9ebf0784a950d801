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

from proteus_kernels.masks import segments
from proteus_kernels.pieces import AXIS_DIM, Piece, full_precision, room
from proteus_kernels.titans_group import Group, Kept, Scratch
from proteus_kernels.titans_runs import BLOCK, Factors, block_length

GROUP = 2**18
"""Numbers in the states of a group at most, if it is not one chunk: more leave the cache, fewer cost calls; measured."""
PLACE = {"head": 1, "key": -2, "value": -1}
"""Where an axis lies in `_States`."""
KINDS = ("key", "key", "value")
COUNT = len(fields(Factors))


@dataclass(frozen=True)
class Turn:
    """A piece in blocks, `each` an inner chunk, whose factors are those of a stretch from block `first` on. `fresh`: it begins
    an inner chunk; `marks`: the anchor of its last chunk is used after it."""

    piece: Piece
    each: int
    stretch: int
    first: int
    fresh: bool
    marks: bool

    def view(self, x: Tensor, kind: str) -> Tensor:
        """`Piece.view` in one call, where four cost as much as the copy: [m, B, H, c, D]."""
        piece, (b, h, _, d), (by_b, by_h, by_t, by_d) = self.piece, x.shape, x.stride()
        sizes = {"head": h, kind: d} | {piece.axis: piece.opened}
        shape = (piece.chunks, b, sizes["head"], piece.size, sizes[kind])
        return x.as_strided(shape, (piece.size * by_t, by_b, by_h, by_t, by_d), x.storage_offset() + piece.start * by_t)

    def take(self, x: Tensor, kind: str, out: Tensor) -> Tensor:
        """The open part of x [B, H, T, D] into `out` [m, G, c, D], zero where it is locked."""
        view = self.view(x, kind)
        out.view(view.shape).copy_(view)
        return self._close(out, kind)

    def put(self, out: Tensor, x: Tensor, kind: str) -> None:
        """The inverse; changes x."""
        view = self.view(out, kind)
        view.copy_(self._close(x, kind).view(view.shape))

    def _close(self, x: Tensor, kind: str) -> Tensor:
        """Zeros for what a count shuts of x [m, G, c, D] or [m G, c, D], in place."""
        piece = self.piece
        if piece.counts is not None and kind == piece.axis:
            blocks = x.view(piece.chunks, -1, piece.size, piece.opened)
            for start, stop, n in segments(piece.counts, len(piece.counts), piece.opened):
                for (a, b), (i, j) in rectangles(start, stop, piece.size):
                    blocks[a:b, :, i:j, n:].zero_()
        return x


def rectangles(start: int, stop: int, size: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Positions start .. stop-1 as (blocks, positions in them): whole blocks together, a part of one alone."""
    while start < stop:
        block, into = divmod(start, size)
        whole = (stop - start) // size if into == 0 else 0
        if whole:
            yield (block, block + whole), (0, size)
            start += whole * size
        else:
            end = min(size, into + stop - start)
            yield (block, block + 1), (into, end)
            start += end - into


@dataclass(frozen=True)
class Stretch:
    """Positions whose factors are made together, in blocks: neighbours of whole inner chunks, every other piece alone."""

    start: int
    stop: int
    size: int
    block: int


def plan(pieces: Iterable[Piece], memory_BHKV: Tensor, offset: int, inner: int) -> tuple[list[Turn], list[Stretch]]:
    """Pieces of inner chunks as turns with about `GROUP` numbers of state. The pass begins `offset` into an inner chunk."""
    turns: list[Turn] = []
    stretches: list[Stretch] = []
    for piece in pieces:
        size = piece.size
        if stretches and stretches[-1].size == size == inner:
            stretches[-1] = replace(stretches[-1], stop=piece.stop)
        else:
            stretches.append(Stretch(piece.start, piece.stop, size, block_length(size, BLOCK)))
        own = stretches[-1]
        each = size // own.block
        opened = memory_BHKV.narrow(AXIS_DIM[piece.axis], 0, piece.opened).numel()
        for part in _parts_of(piece, max(1, GROUP // (2 * opened * each))):
            fresh, first = (offset + part.start) % inner == 0, (part.start - own.start) // own.block
            turns.append(Turn(replace(part, size=own.block), each, len(stretches) - 1, first, fresh, True))
    marks = [not after.fresh for after in turns[1:]]
    return [replace(turn, marks=m) for turn, m in zip(turns, [*marks, True], strict=True)], stretches


def _parts_of(piece: Piece, chunks: int) -> Iterator[Piece]:
    step = chunks * piece.size
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
        states, scratch, saved = _States(inputs[3:6]), _scratch(turns, q, v), []
        y = room(v, [turn.piece for turn in turns], "value")
        for turn in turns:
            piece, anchor = turn.piece, None if turn.fresh else states.open_anchor(turn.piece)
            group = _group(turn, q, k, factors, scale, anchor, scratch.clear())
            start = states.open(piece)
            kept = Kept.room(group.q, start.shape[-1], None if record else scratch)
            turn.take(v, "value", kept.errors)
            out, end = group.forward(kept, start)
            if turn.fresh and turn.marks:
                states.mark(piece, kept.states[-turn.each, :, : group.width])
            states.put(piece, end)
            turn.put(y, out, "value")
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
        (q, k, v), factors, pieces = saved[:3], saved[6:kept_at], [turn.piece for turn in turns]
        states, scratch = _States(d_after), _scratch(turns, q, v)
        grads = [room(x, pieces, kind) for x, kind in zip((q, k, v), KINDS, strict=True)]
        d_factors = [torch.zeros_like(x) if pieces[0].axis == "head" else torch.empty_like(x) for x in factors]
        for i, turn in reversed(list(enumerate(turns))):
            *of_turn, anchor = saved[kept_at + i * each : kept_at + (i + 1) * each]
            kept, group = Kept(*of_turn), _group(turn, q, k, factors, ctx.scale, anchor, scratch.clear())
            d_begun = states.unmark(turn.piece) if turn.fresh and turn.marks else None
            dy = turn.take(d_y, "value", scratch.new(*kept.errors.shape))
            d_qkv, d_group, d_start, d_anchor = group.backward(kept, dy, states.open(turn.piece), d_begun)
            states.put(turn.piece, d_start)
            if d_anchor is not None:
                states.add_anchor(turn.piece, d_anchor)
            for out, d_x, kind in zip(grads, d_qkv, KINDS, strict=True):
                turn.put(out, d_x, kind)
            for out, d_x in zip(_parts(turn, d_factors, q.shape[1]), vars(d_group).values(), strict=True):
                out.copy_(d_x.view(out.shape))
        return None, None, None, *grads, *states.split(), *d_factors


def _scratch(turns: Sequence[Turn], q: Tensor, v: Tensor) -> Scratch:
    """Enough for the largest group."""
    full = {"batch": q.shape[0], "head": q.shape[1], "key": q.shape[3], "value": v.shape[3]}
    opened = [(t.piece, full | {t.piece.axis: t.piece.opened}) for t in turns]
    sizes = [Scratch.numbers(p.chunks, n["batch"] * n["head"], p.size, n["key"], n["value"]) for p, n in opened]
    return Scratch(q, max(sizes))


def _group(
    turn: Turn, q: Tensor, k: Tensor, factors: Sequence[Tensor], scale: float, anchor: Tensor | None, scratch: Scratch
) -> Group:
    m, b, h, c, width = turn.view(q, "key").shape
    parts = _parts(turn, factors, q.shape[1])
    if h < q.shape[1]:
        parts = [x.flatten(1, 2) for x in parts]
    q, k = (turn.take(x, "key", scratch.new(m, b * h, c, width)) for x in (q, k))
    return Group(q, k, Factors(*parts), turn.each, scale, anchor, scratch)


def _parts(turn: Turn, factors: Sequence[Tensor], heads: int) -> list[Tensor]:
    """A turn's factors [n, G, ...], views; [n, B, open heads, ...] where some are locked."""
    own, stop = factors[COUNT * turn.stretch : COUNT * (turn.stretch + 1)], turn.first + turn.piece.chunks
    parts = [x[turn.first : stop] for x in own]
    if turn.piece.axis != "head" or turn.piece.opened == heads:
        return parts
    return [x.unflatten(1, (-1, heads))[:, :, : turn.piece.opened] for x in parts]


class _States:
    """X = [W; S] [B, H, 2, K, V] of all coordinates and the anchor [B, H, K, V], or their gradients; moved in place."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.x, self.anchor = torch.stack(list(parts[:2]), 2), parts[2].clone(memory_format=torch.contiguous_format)
        self.weights = self.x[:, :, 0]

    def view(self, x: Tensor, piece: Piece) -> Tensor:
        return x.narrow(PLACE[piece.axis], 0, piece.opened)

    def open(self, piece: Piece) -> Tensor:
        """[G, 2 K, V]"""
        return self.view(self.x, piece).flatten(0, 1).flatten(1, 2)

    def put(self, piece: Piece, x: Tensor) -> None:
        view = self.view(self.x, piece)
        view.copy_(x.view(view.shape))

    def open_anchor(self, piece: Piece) -> Tensor:
        """[G, K, V], a copy."""
        return self.view(self.anchor, piece).clone(memory_format=torch.contiguous_format).flatten(0, 1)

    def add_anchor(self, piece: Piece, x: Tensor) -> None:
        view = self.view(self.anchor, piece)
        view.add_(x.view(view.shape))

    def mark(self, piece: Piece, opened: Tensor) -> None:
        """The anchor of a chunk whose open weights were [G, K, V] at its start; what is locked has not moved since."""
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
        return self.weights.contiguous(), self.x[:, :, 1].contiguous(), self.anchor
