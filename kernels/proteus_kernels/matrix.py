"""What every matrix memory S_BHKV shares: its axes, prefix masks, and the cut of a masked pass into unmasked slices.

Where the number of open coordinates is constant, the open part of a gated matrix recurrence is the ordinary recurrence
on a SLICE of the state, because rows, columns and heads meet only through sums over open key rows. So a chunked form
cuts time where the count changes, runs its unmasked core on the slice, and leaves the locked part alone: it is neither
loaded nor multiplied. A gate that opens more for reading than for writing adds the locked part's constant (or merely
decaying) contribution. The count may rise or fall from one segment to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from proteus_kernels.masks import Counts, counts, segments
from proteus_kernels.pieces import AXIS_DIM, Piece, cut, may_share, share

MatrixOut = tuple[Tensor, Tensor]


def memory_axis_size(axis: str, state_BHKV: Tensor) -> int:
    """Size of the scheduled axis of S_BHKV."""
    if axis not in AXIS_DIM:
        raise ValueError(f"a matrix memory has no axis {axis!r}; one of key, value, head")
    return state_BHKV.shape[AXIS_DIM[axis]]


def prefix_mask(n: int, axis: str, state_BHKV: Tensor) -> Tensor:
    """True on the first n coordinates of the axis; broadcasts against S_BHKV."""
    dim = AXIS_DIM[axis]
    return _prefix_mask(n, state_BHKV.shape[dim], dim, state_BHKV.device)


@lru_cache(maxsize=4096)
def _prefix_mask(n: int, size: int, dim: int, device: torch.device) -> Tensor:
    """Kept: one position at a time asks for the same masks thousands of times."""
    shape = [1, 1, 1, 1]
    shape[dim] = size
    with torch.inference_mode(False):  # a tensor of inference mode could not be used by a training afterwards
        return (torch.arange(size, device=device) < n).view(shape)


class Opened(NamedTuple):
    """One where a coordinate is open, else zero."""

    state: Tensor
    """Broadcasts against S_BHKV."""
    columns: Tensor | None
    """Broadcasts against what is written and read, [B, H, 1, V]. None on the key axis."""
    rows: Tensor | None
    """Broadcasts against q, k and p, [B, H, 1, K], on the key axis alone."""


@lru_cache(maxsize=4096)
def _opened(n: int, size: int, dim: int, device: torch.device, dtype: torch.dtype) -> Opened:
    """In numbers: a product with truth values would convert them every time."""
    with torch.inference_mode(False):
        ones = _prefix_mask(n, size, dim, device).to(dtype)
        on_rows = dim == AXIS_DIM["key"]
        return Opened(ones, None if on_rows else ones, ones.mT if on_rows else None)


class Parts(NamedTuple):
    """The inputs of one segment, heads second: q, k, p [B, H, T, K], v [B, H, T, V], log decay g [B, H, T] or None.

    p reads the prediction (None: the rule predicts nothing); gates are further tensors [B, H, T, ...]. k and v may begin
    earlier than the segment (a window of past writes), p and q may not.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor | None
    p: Tensor | None = None
    gates: tuple[Tensor, ...] = ()
    opened: Opened | None = None
    """What is open, in a pass of one position over a whole state."""

    def over(self, spans: Sequence[tuple[int, int, int]]) -> list[Parts]:
        """The part of each span. By `split`, whose backward is one concatenation, where windows do not overlap."""
        if len(spans) == 1:
            return [self]
        early, nothing = self.k.shape[2] - self.q.shape[2], [None] * len(spans)

        def cut(x: Tensor, early: int = 0) -> list[Tensor]:
            if early:
                return [x[:, :, start : stop + early] for start, stop, _ in spans]
            return list(x.split([stop - start for start, stop, _ in spans], 2))

        k = cut(self.k, early)
        p = k if self.p is self.k else nothing if self.p is None else cut(self.p)
        g = nothing if self.g is None else cut(self.g)
        gates = list(zip(*map(cut, self.gates), strict=True)) if self.gates else [()] * len(spans)
        columns = zip(cut(self.q), k, cut(self.v, early), g, p, gates, strict=True)
        return [Parts(q=q, k=k_i, v=v, g=g_i, p=p_i, gates=own) for q, k_i, v, g_i, p_i, own in columns]

    def decay(self) -> Tensor | None:
        """Factors of S_BHKV at a single position: one where it is locked."""
        if self.g is None:
            return None
        g = self.g[..., None]
        return (g if self.opened is None else g * self.opened.state).exp()

    def on_columns(self, x: Tensor) -> Tensor:
        """A write or a read of a single position, [B, H, 1, V], zero where it is locked."""
        return x if self.opened is None or self.opened.columns is None else x * self.opened.columns

    def rows(self, n: int) -> Parts:
        """The part that meets the first n key rows."""
        k = self.k[..., :n]
        p = k if self.p is self.k else _maybe(self.p, lambda x: x[..., :n])
        return self._replace(q=self.q[..., :n], k=k, p=p)

    def within(self, opened: Opened) -> Parts:
        """For a pass of one position over a whole state. On the key axis q, k and p get their zeros here."""
        rows, k, p = opened.rows, self.k, self.p
        if rows is None:
            return self._replace(opened=opened)
        k = k * rows
        if p is not None:
            p = k if p is self.k else p * rows
        return self._replace(q=self.q * rows, k=k, p=p, opened=opened)

    def columns(self, n: int) -> Parts:
        """The part that writes the first n value columns."""
        return self._replace(v=self.v[..., :n])

    def heads(self, n: int) -> Parts:
        """The first n heads."""
        cut: Callable[[Tensor], Tensor] = lambda x: x[:, :n]  # noqa: E731
        k = cut(self.k)
        p = k if self.p is self.k else _maybe(self.p, cut)
        gates = tuple(map(cut, self.gates))
        return Parts(q=cut(self.q), k=k, p=p, v=cut(self.v), g=_maybe(self.g, cut), gates=gates)


def _maybe(x: Tensor | None, f: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if x is None else f(x)


@dataclass(frozen=True)
class Core:
    """An unmasked recurrence: y [B, H, T, V] and the state after pieces that tile the parts' positions."""

    run: Callable[[Parts, Tensor, Sequence[Piece]], MatrixOut]
    chunk_size: int
    anywhere: bool = True
    """Whether a piece of several counts (see `pieces`) may change its count inside a chunk, or only between two."""

    def whole(self, x: Parts, state: Tensor) -> MatrixOut:
        """On everything that is given."""
        length = x.q.shape[2]
        return self.run(x, state, () if length == 1 else cut(None, length, state, "key", self.chunk_size))


@dataclass(frozen=True, kw_only=True)
class Locked:
    """Factors [B, H, T, 1] of a coordinate that is only decayed, at the prediction and at the output, and at the end.

    None where it keeps its value (decay_locked=masked, or a rule without decay).
    """

    predict: Tensor | None = None
    output: Tensor | None = None
    end: Tensor | None = None

    def heads_from(self, n: int) -> Locked:
        cut: Callable[[Tensor], Tensor] = lambda x: x[:, n:]  # noqa: E731
        return Locked(predict=_maybe(self.predict, cut), output=_maybe(self.output, cut), end=_maybe(self.end, cut))


def _locked(g: Tensor | None, *, read: str, decay_locked: str, undecayed: bool) -> Locked:
    if g is None or decay_locked == "masked":
        return Locked()
    cum = g.cumsum(-1)
    before = cum - g  # the state before the position's own decay
    return Locked(
        predict=(before if undecayed else cum).exp()[..., None],
        output=(before if read == "pre" else cum).exp()[..., None],
        end=cum[:, :, -1:, None].exp(),
    )


def scan(
    x: Parts,
    active: Sequence[int] | None,
    state: Tensor,
    core: Core,
    *,
    axis: str,
    gate: str,
    read: str,
    decay_locked: str,
    undecayed: bool = False,
) -> MatrixOut:
    """Run `core` where the memory is open. Returns y_BTHV and the final state_BHKV.

    `undecayed`: the rule predicts from the state before its own decay, which matters to a decaying locked row.
    """
    dim, length = memory_axis_size(axis, state), x.q.shape[2]
    still = gate == "both" and (decay_locked == "masked" or x.g is None)  # what is locked stands still, unread
    if still and length == 1 and active is not None and active[0] < dim:
        y, state = _one_position(x, state, core, active[0], axis)
        return y.transpose(1, 2), state
    spans = list(segments(active, length, dim))
    opened = [counts(n, dim, gate) for *_, n in spans]
    if all(c.write == dim for c in opened):  # all is written: gates none and read, or a fully open memory
        return _seen(x, state, core, [(b - a, c.output) for (a, b, _), c in zip(spans, opened, strict=True)], axis)
    if still:
        y, state = core.run(x, state, _pieces(active, length, state, axis, core))
        return y.transpose(1, 2), state
    segment, outs = {"key": _key_segment, "value": _value_segment, "head": _head_segment}[axis], []
    factors = partial(_locked, read=read, decay_locked=decay_locked, undecayed=undecayed)
    for c, part in zip(opened, x.over(spans), strict=True):
        y, state = segment(part, state, c, core.whole, factors)
        outs.append(y)
    y = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return y.transpose(1, 2), state


def _one_position(x: Parts, state: Tensor, core: Core, n: int, axis: str) -> MatrixOut:
    """Everything is computed, with zeros as small factors: fewer calls than a slice, and calls are what decoding costs."""
    dim = AXIS_DIM[axis]
    opened = _opened(n, state.shape[dim], dim, state.device, state.dtype)
    return core.whole(x.within(opened), state)


def _seen(x: Parts, state: Tensor, core: Core, outputs: list[tuple[int, int]], axis: str) -> MatrixOut:
    """Everything is written, `outputs` says how many coordinates are read in how many positions."""
    size = memory_axis_size(axis, state)
    if all(n == size for _, n in outputs):
        y, state = core.whole(x, state)
        return y.transpose(1, 2), state
    lengths, counts_ = (torch.tensor(z, device=x.q.device) for z in zip(*outputs, strict=True))
    mask = torch.arange(size, device=x.q.device) < counts_.repeat_interleave(lengths)[:, None]
    if axis == "key":
        x = x._replace(q=x.q * mask)
    y, state = core.whole(x, state)
    if axis == "value":
        y = y * mask
    if axis == "head":
        y = y * mask.T[..., None]
    return y.transpose(1, 2), state


def _pieces(active: Sequence[int] | None, length: int, state: Tensor, axis: str, core: Core) -> list[Piece]:
    """Shared pieces where a locked coordinate holds nothing and nobody asks for its gradient, else one for each count."""
    size = core.chunk_size
    fits = active is not None and (core.anywhere or all(start % size == 0 for start, *_ in segments(active, length, 0)))
    if active is not None and fits and may_share(active, [state], axis):
        return share(active, state, axis, size)
    return cut(active, length, state, axis, size)


Factors = Callable[[Tensor | None], Locked]
Run = Callable[[Parts, Tensor], MatrixOut]


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else factor * x


def _key_segment(x: Parts, state: Tensor, c: Counts, core: Run, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[2]
    if w == full:
        return core(x, state)
    locked, factor = state[:, :, w:], factors(x.g)
    if x.p is not None and c.predict > w:  # gate write: the prediction also sees the locked rows
        x = x._replace(v=x.v - _times(x.p[..., w:] @ locked, factor.predict))
    y, open_rows = core(x.rows(w), state[:, :, :w])
    if c.output > w:
        y = y + _times(x.q[..., w:] @ locked, factor.output)
    return y, torch.cat([open_rows, _times(locked, factor.end)], 2)


def _value_segment(x: Parts, state: Tensor, c: Counts, core: Run, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[3]
    if w == full:
        return core(x, state)
    locked, factor = state[..., w:], factors(x.g)
    y, open_columns = core(x.columns(w), state[..., :w])
    seen = c.output > w
    y = torch.cat([y, _times(x.q @ locked, factor.output)], -1) if seen else torch.nn.functional.pad(y, (0, full - w))
    return y, torch.cat([open_columns, _times(locked, factor.end)], 3)


def _head_segment(x: Parts, state: Tensor, c: Counts, core: Run, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[1]
    if w == full:
        return core(x, state)
    y, open_heads = core(x.heads(w), state[:, :w])
    locked, factor = state[:, w:], factors(x.g).heads_from(w)
    seen, shape = c.output > w, (y.shape[0], full - w, *y.shape[2:])
    rest = _times(x.q[:, w:] @ locked, factor.output) if seen else y.new_zeros(shape)
    return torch.cat([y, rest], 1), torch.cat([open_heads, _times(locked, factor.end)], 1)
