"""What every matrix memory S_BHKV shares: its axes, prefix masks, and the cut of a masked pass into unmasked slices.

Where the number of open coordinates is constant, the open part of a gated matrix recurrence is the ordinary recurrence
on a SLICE of the state, because rows, columns and heads meet only through sums over open key rows. So a chunked form
cuts time where the count changes, runs its unmasked core on the slice, and leaves the locked part alone: it is neither
loaded nor multiplied. A gate that opens more for reading than for writing adds the locked part's constant (or merely
decaying) contribution. The count may rise or fall from one segment to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from proteus_kernels.masks import Counts, counts

AXIS_DIM = {"head": 1, "key": 2, "value": 3}
MatrixOut = tuple[Tensor, Tensor]


def memory_axis_size(axis: str, state_BHKV: Tensor) -> int:
    """Size of the scheduled axis of S_BHKV."""
    if axis not in AXIS_DIM:
        raise ValueError(f"a matrix memory has no axis {axis!r}; one of key, value, head")
    return state_BHKV.shape[AXIS_DIM[axis]]


def prefix_mask(n: int, axis: str, state_BHKV: Tensor) -> Tensor:
    """True on the first n coordinates of the axis; broadcasts against S_BHKV."""
    dim = AXIS_DIM[axis]
    shape = [1, 1, 1, 1]
    shape[dim] = state_BHKV.shape[dim]
    return (torch.arange(state_BHKV.shape[dim], device=state_BHKV.device) < n).view(shape)


@dataclass(frozen=True, kw_only=True)
class Parts:
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

    def rows(self, n: int) -> Parts:
        """The part that meets the first n key rows."""
        k = self.k[..., :n]
        p = k if self.p is self.k else _maybe(self.p, lambda x: x[..., :n])
        return replace(self, q=self.q[..., :n], k=k, p=p)

    def columns(self, n: int) -> Parts:
        """The part that writes the first n value columns."""
        return replace(self, v=self.v[..., :n])

    def heads(self, n: int) -> Parts:
        """The first n heads."""
        cut: Callable[[Tensor], Tensor] = lambda x: x[:, :n]  # noqa: E731
        k = cut(self.k)
        p = k if self.p is self.k else _maybe(self.p, cut)
        gates = tuple(map(cut, self.gates))
        return Parts(q=cut(self.q), k=k, p=p, v=cut(self.v), g=_maybe(self.g, cut), gates=gates)


def _maybe(x: Tensor | None, f: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if x is None else f(x)


Core = Callable[[Parts, Tensor], MatrixOut]  # an unmasked recurrence over one segment


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
    segments: Iterable[tuple[int, Parts]],
    state: Tensor,
    core: Core,
    *,
    axis: str,
    gate: str,
    read: str,
    decay_locked: str,
    undecayed: bool = False,
) -> MatrixOut:
    """Run `core` over (open coordinates, inputs) of consecutive segments. Returns y_BTHV and the final state_BHKV.

    `undecayed`: the rule predicts from the state before its own decay, which matters to a decaying locked row.
    """
    dim, outs = memory_axis_size(axis, state), []
    segment = {"key": _key_segment, "value": _value_segment, "head": _head_segment}[axis]
    factors = partial(_locked, read=read, decay_locked=decay_locked, undecayed=undecayed)
    for n, parts in segments:
        y, state = segment(parts, state, counts(n, dim, gate), core, factors)
        outs.append(y)
    y = outs[0] if len(outs) == 1 else torch.cat(outs, 2)
    return y.transpose(1, 2), state


Factors = Callable[[Tensor | None], Locked]


def _times(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else factor * x


def _key_segment(x: Parts, state: Tensor, c: Counts, core: Core, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[2]
    if w == full:  # every row is written: gates none and read, or a fully open memory
        seen = x.q if c.output == full else x.q * (torch.arange(full, device=x.q.device) < c.output)
        return core(replace(x, q=seen), state)
    locked, factor = state[:, :, w:], factors(x.g)
    if x.p is not None and c.predict > w:  # gate write: the prediction also sees the locked rows
        x = replace(x, v=x.v - _times(x.p[..., w:] @ locked, factor.predict))
    y, open_rows = core(x.rows(w), state[:, :, :w])
    if c.output > w:
        y = y + _times(x.q[..., w:] @ locked, factor.output)
    return y, torch.cat([open_rows, _times(locked, factor.end)], 2)


def _value_segment(x: Parts, state: Tensor, c: Counts, core: Core, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[3]
    if w == full:
        y, state = core(x, state)
        return (y if c.output == full else y * (torch.arange(full, device=y.device) < c.output)), state
    locked, factor = state[..., w:], factors(x.g)
    y, open_columns = core(x.columns(w), state[..., :w])
    seen = c.output > w
    y = torch.cat([y, _times(x.q @ locked, factor.output)], -1) if seen else torch.nn.functional.pad(y, (0, full - w))
    return y, torch.cat([open_columns, _times(locked, factor.end)], 3)


def _head_segment(x: Parts, state: Tensor, c: Counts, core: Core, factors: Factors) -> MatrixOut:
    w, full = c.write, state.shape[1]
    if w == full:
        y, state = core(x, state)
        if c.output < full:
            y = torch.cat([y[:, : c.output], torch.zeros_like(y[:, c.output :])], 1)
        return y, state
    y, open_heads = core(x.heads(w), state[:, :w])
    locked, factor = state[:, w:], factors(x.g).heads_from(w)
    seen, shape = c.output > w, (y.shape[0], full - w, *y.shape[2:])
    rest = _times(x.q[:, w:] @ locked, factor.output) if seen else y.new_zeros(shape)
    return torch.cat([y, rest], 1), torch.cat([open_heads, _times(locked, factor.end)], 1)
