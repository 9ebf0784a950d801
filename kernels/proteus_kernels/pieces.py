"""How a chunked form cuts time where the number of open coordinates changes, and cuts the open part out of its tensors.

A piece is a run of equal chunks that works on the first `opened` coordinates of one axis. Every cut costs the calls of one
more run and skips what is locked. Where the locked part of the state is zero, neighbours may `share` a piece that opens the
most of them: its inputs are masked, and a zero coordinate stays zero whatever decays. Such cuts keep to the grid of chunks,
so that no unlock leaves a short chunk behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from proteus_kernels.masks import segments

F = TypeVar("F", bound=Callable[..., Any])
AXIS_DIM = {"head": 1, "key": 2, "value": 3}
LEAST = (512, 256)
CACHED = 2**17
"""Entries of a tensor that stays in the cache of a core together with a few more of its kind."""


class Scratch:
    """Memory for temporaries, the same again after each `clear`: an allocator hands out what has long left the cache.

    Nothing of it may be kept beyond the next `clear`, or be given to autograd.
    """

    def __init__(self, like: Tensor) -> None:
        self._like, self._used, self._tensors = like, 0, list[Tensor]()

    def clear(self) -> None:
        self._used = 0

    def new(self, *shape: int) -> Tensor:
        """Not initialised."""
        at, self._used = self._used, self._used + 1
        if at == len(self._tensors):
            self._tensors.append(self._like.new_empty(shape))
        given = self._tensors[at]
        if given.shape == shape:
            return given
        if given.numel() < (size := math.prod(shape)):
            self._tensors[at] = given = self._like.new_empty(shape)
        return given.view(-1)[:size].view(shape)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Positions start .. stop-1 in chunks of `size`. `counts`: what is open at each, where that differs inside the piece."""

    start: int
    stop: int
    size: int
    axis: str
    opened: int
    counts: tuple[int, ...] | None = None

    @property
    def chunks(self) -> int:
        return (self.stop - self.start) // self.size

    def parts(self, chunks: int) -> Iterator[Piece]:
        """The same in runs of so many chunks or fewer."""
        for start in range(self.start, self.stop, chunks * self.size):
            stop = min(self.stop, start + chunks * self.size)
            counts = self.counts and self.counts[start - self.start : stop - self.start]
            yield replace(self, start=start, stop=stop, counts=counts)

    def state(self, state_BHKV: Tensor) -> Tensor:
        """The open part, a view."""
        return state_BHKV.narrow(AXIS_DIM[self.axis], 0, self.opened)

    def take(self, x: Tensor, kind: str, scratch: Scratch | None = None) -> Tensor:
        """[B, H, T, D] -> [n, G, C, open D], a masked copy; G = batch x open heads. kind: what D is, key, value or gate."""
        view = self.view(x, kind)
        out = (x.new_empty(view.shape) if scratch is None else scratch.new(*view.shape)).copy_(view)
        return self._masked(out.flatten(1, 2), kind)

    def put(self, out: Tensor, x: Tensor, kind: str) -> None:
        """The inverse: [n, G, C, open D] into its place."""
        view = self.view(out, kind)
        view.copy_(self._masked(x.view(self.chunks, -1, *x.shape[-2:]), kind).unflatten(1, view.shape[1:3]))

    def view(self, x: Tensor, kind: str) -> Tensor:
        """[n, B, H, C, D]"""
        x = x[:, : self.opened if self.axis == "head" else None, self.start : self.stop]
        if kind == self.axis:
            x = x[..., : self.opened]
        return x.unflatten(2, (self.chunks, self.size)).movedim(2, 0)

    def _masked(self, x: Tensor, kind: str) -> Tensor:
        if self.counts is None or kind != self.axis:
            return x
        return x.mul_(prefixes(self.counts, self.opened, x).view(self.chunks, 1, self.size, -1))

    def chunk_masked(self, x: Tensor, kind: str) -> Tensor:
        """x [n, G, rows, open D] in place, where every chunk has one count."""
        if self.counts is None or kind != self.axis:
            return x
        return x.mul_(prefixes(self.counts[:: self.size], self.opened, x)[:, None, None])


def cut(active: Sequence[int] | None, length: int, state_BHKV: Tensor, axis: str, size: int) -> list[Piece]:
    """Every segment of one count as whole chunks and one shorter chunk."""
    return [
        piece for start, stop, n in segments(active, length, state_BHKV.shape[AXIS_DIM[axis]])
        for piece in _chunked(start, stop, size, axis, n, None)
    ]  # fmt: skip


def cached(pieces: Sequence[Piece], state: Tensor) -> list[Piece]:
    """On a CPU in parts whose temporaries stay in its cache, and take the memory of the part before."""
    if state.device.type != "cpu":
        return list(pieces)
    batch, heads, *dims = state.shape
    found: list[Piece] = []
    for piece in pieces:
        found += piece.parts(max(1, CACHED // (batch * heads * piece.size * max(*dims, piece.size))))
    return found


def may_share(active: Sequence[int], states: Sequence[Tensor], axis: str) -> bool:
    """Key or value axis, coordinates only ever open, and the locked ones hold zero and want no gradient."""
    opened = [n for *_, n in segments(active, len(active), 0)]
    if axis == "head" or opened != sorted(opened) or any(x.requires_grad or x.is_meta for x in states):
        return False
    dim = AXIS_DIM[axis]
    return not any(x.narrow(dim, active[0], x.shape[dim] - active[0]).any() for x in states)


def prefixes(active: Sequence[int], dim: int, like: Tensor) -> Tensor:
    """One where a coordinate is open at a position, else zero: [T, dim]. Not to be written to."""
    return _prefixes(tuple(active), dim, like.dtype, like.device)


@lru_cache(maxsize=16)
def _prefixes(active: tuple[int, ...], dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Kept: every layer masks q, k and p of a piece alike, forward and backward, and a list of counts is slow to read."""
    with torch.inference_mode(False):
        return (torch.arange(dim, device=device) < torch.tensor(active, device=device)[:, None]).to(dtype)


def least(state: Tensor) -> int:
    """Positions that make a shared piece worth its calls; measured. A small state is quick, its calls weigh more."""
    return LEAST[0] if state.numel() < 2**15 else LEAST[1]


def share(active: Sequence[int], state: Tensor, axis: str, size: int) -> list[Piece]:
    """A non-decreasing schedule in runs of `least` positions or more, the last perhaps shorter."""
    edges, length, enough = [0], len(active), least(state)
    for _, stop, _ in segments(active, length, active[-1]):
        grid = min(length, -(-stop // size) * size)
        if grid - edges[-1] >= enough or grid == length > edges[-1]:
            edges.append(grid)
    pieces: list[Piece] = []
    for start, stop in pairwise(edges):
        counts = tuple(active[start:stop])
        pieces += _chunked(start, stop, size, axis, counts[-1], counts)
    return pieces


def _chunked(start: int, stop: int, size: int, axis: str, opened: int, counts: tuple[int, ...] | None) -> Iterator[Piece]:
    whole = start + (stop - start) // size * size
    for a, b, c in ((start, whole, size), (whole, stop, stop - whole)):
        if b > a:
            inside = counts and counts[a - start : b - start]
            mixed = inside if inside and inside[0] < opened else None
            yield Piece(start=a, stop=b, size=c, axis=axis, opened=opened, counts=mixed)


def room(x: Tensor, pieces: Sequence[Piece], kind: str) -> Tensor:
    """An output like x [B, H, T, D] for the pieces to put in: zero where one may leave a gap."""
    dims = {"head": x.shape[1], kind: x.shape[-1]}
    gaps = any(p.axis in dims and (p.opened < dims[p.axis] or p.counts) for p in pieces)
    return torch.zeros_like(x) if gaps else torch.empty_like(x)


def between(rows: Tensor, cum: Tensor, diagonal: int, out: Tensor | None = None) -> Tensor:
    """exp(rows_i - cum_j) on and below the diagonal, else 0: [..., C] -> [..., C, C].

    Masked by products before (no overflow) and after: filling, and exp of an infinity, take several times as long.
    """
    lower, scale = _lower(cum.shape[-1], diagonal, cum.dtype, cum.device), 1 / math.log(2)
    exponents = torch.sub((rows * scale)[..., :, None], (cum * scale)[..., None, :], out=out)
    return torch.mul(exponents.mul_(lower).exp2_(), lower, out=out)


@lru_cache(maxsize=64)
def _lower(size: int, diagonal: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a tensor of inference mode could not be used by a training afterwards
        return torch.ones(size, size, dtype=dtype, device=device).tril(diagonal)


def full_precision(f: F) -> F:
    """A forward or backward whose products autocast leaves alone: states and triangular solves need 32 bits."""

    @wraps(f)
    def run(ctx: Any, *args: Any) -> Any:
        device = next(x.device.type for x in args if isinstance(x, Tensor))
        # the meta device, on which costs are counted, has no autocast to ask about
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return f(ctx, *args)
        with torch.autocast(device, enabled=False):
            return f(ctx, *args)

    return cast(F, run)


def rows_dot(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Products of the rows of two matrices; `out` receives those of the entries."""
    return torch.mul(a, b, out=out).sum(-1)


def later_sum(x: Tensor) -> Tensor:
    """Sum of this and all later entries: the gradient of a cumulative sum."""
    return x.flip(-1).cumsum(-1).flip(-1)
