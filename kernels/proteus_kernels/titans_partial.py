"""The layers of an MLP Titans memory between pieces, and the pieces that predict with more units than they write.

`gate="write"`: the prediction and the read see every unit, only the first w units of each hidden layer are written. The
gradient then depends on locked weights too, so a chunk works on whole layers and writes the open part. It is the plain
autograd form, one chunk at a time; the other gates have `titans_dual`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proteus_kernels.titans_common import TitansState
from proteus_kernels.titans_dual_forward import Run

silu = torch.nn.functional.silu


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Weights and momentum side by side, X = [W | S] of [B H, rows, 2 cols], and the anchors [B H, rows, cols].

    The last layer is transposed, so the hidden units are the rows of every layer, and the columns of those between.
    """

    states: tuple[Tensor, ...]
    anchors: tuple[Tensor, ...]
    heads: tuple[int, int]

    @staticmethod
    def of(state: TitansState) -> Layers:
        w, s, a = (_units_as_rows(x) for x in (state.weights, state.momentum, state.anchor))
        states = tuple(torch.cat(pair, -1).flatten(0, 1) for pair in zip(w, s, strict=True))
        b, h = w[0].shape[:2]
        return Layers(states=states, anchors=tuple(x.flatten(0, 1) for x in a), heads=(b, h))

    def state(self, offset: int) -> TitansState:
        halves = zip(*(x.chunk(2, -1) for x in self.states), strict=True)
        w, s, a = (_units_as_rows([x.unflatten(0, self.heads) for x in part]) for part in (*halves, self.anchors))
        return TitansState(weights=w, momentum=s, anchor=a, offset=offset)

    def opened(self, units: int) -> tuple[list[Tensor], list[Tensor]]:
        """The parts of states and anchors that belong to the first `units` hidden units."""
        last = len(self.states) - 1
        states = [_open(x, units, 2 if 0 < i < last else 0) for i, x in enumerate(self.states)]
        anchors = [_open(x, units, 1 if 0 < i < last else 0) for i, x in enumerate(self.anchors)]
        return states, anchors

    def after(
        self, states: Sequence[Tensor], begun: Sequence[Tensor], units: int, decay: Tensor | None, size: int, fresh: bool
    ) -> Layers:
        """The layers behind a piece whose open part became `states`; `begun` are open weights at its last chunk's start.

        decay [B, H, T]: log(1 - alpha), which locked weights follow in the unmasked variant; None leaves them.
        """
        end = start = None
        if decay is not None:
            end = decay.sum(-1).exp().view(-1, 1, 1)
            start = decay[..., :-size].sum(-1).exp().view(-1, 1, 1)
        old = [_decayed(x, end, x.shape[-1] // 2) for x in self.states]
        anchors = self.anchors
        if fresh:
            anchors = tuple(x.chunk(2, -1)[0] for x in self.states)
            if begun:
                anchors = self._with([_decayed(x, start, x.shape[-1]) for x in anchors], begun, units, 1)
        return Layers(states=self._with(old, states, units, 2), anchors=anchors, heads=self.heads)

    def _with(self, old: Sequence[Tensor], opened: Sequence[Tensor], units: int, parts: int) -> tuple[Tensor, ...]:
        last = len(old) - 1
        pairs = enumerate(zip(old, opened, strict=True))
        return tuple(_put(x, new, units, parts if 0 < i < last else 0) for i, (x, new) in pairs)


def _units_as_rows(layers: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (*layers[:-1], layers[-1].mT)


def _open(x: Tensor, units: int, parts: int) -> Tensor:
    """Rows of the open units; columns too in `parts` column blocks of a layer between (0: all columns)."""
    if units == x.shape[1]:
        return x
    rows = x[:, :units]
    return rows.unflatten(-1, (parts, -1))[..., :units].flatten(-2) if parts else rows


def _put(x: Tensor, opened: Tensor, units: int, parts: int) -> Tensor:
    """x with its open part replaced."""
    if units == x.shape[1]:
        return opened
    if parts:
        beside = x[:, :units].unflatten(-1, (parts, -1))[..., units:]
        opened = torch.cat([opened.unflatten(-1, (parts, -1)), beside], -1).flatten(-2)
    return torch.cat([opened, x[:, units:]], 1)


def _decayed(x: Tensor, factor: Tensor | None, cols: int) -> Tensor:
    """The weights of x, its first `cols` columns, times the factor."""
    return x if factor is None else torch.cat([x[..., :cols] * factor, x[..., cols:]], -1)


def piece(
    run: Run, decay: Tensor | None, layers: Layers, units: int, fresh: bool, pre: bool
) -> tuple[Tensor, Layers]:
    """Inner chunks of one block each that write `units` units and see all: y [n, G, C, V]."""
    n, _, size, _ = run.q.shape
    decays = [None] * n if decay is None else decay.unflatten(2, (-1, size)).unbind(2)
    outs = []
    for i, parts in enumerate(zip(*(x.unbind(0) for x in vars(run).values()), strict=True)):
        chunk = Run(**dict(zip(vars(run), parts, strict=True)))
        anchors = [x.chunk(2, -1)[0] for x in layers.states] if fresh else layers.anchors
        y, states = _chunk(chunk, _fade(decays[i], pre), layers, anchors, units)
        layers = layers.after(states, (), units, decays[i], size, fresh)
        outs.append(y)
    return torch.stack(outs), layers


def _chunk(
    run: Run, fade: Tensor | None, layers: Layers, anchors: Sequence[Tensor], units: int
) -> tuple[Tensor, list[Tensor]]:
    """y [G, C, V] and the open parts of the states after one chunk; the run's tensors without their first dimension."""
    xs, deltas = _gradients(run.k, run.minus_v, _units_as_rows(anchors))
    keep, carry = run.carried[..., None].unbind(2)
    end_rows, ends = run.minus_ends[..., None].unbind(2), run.ends[..., None].unbind(-2)
    last, r, states = len(anchors) - 1, run.q, []
    for i, (opened, whole) in enumerate(zip(layers.opened(units)[0], layers.states, strict=True)):
        w, s = opened.chunk(2, -1)
        between = 1 if 0 < i < last else 0
        full = whole.chunk(2, -1)[0]
        locked = _put(full, torch.zeros_like(w), units, between)
        delta, x, mine = deltas[i], xs[i], r
        if i < last:
            delta = delta[..., :units]
        if i:
            x, mine = x[..., :units], mine[..., :units]
        wide, narrow = (x, delta) if i == last else (delta, x)
        w_map, s_map, locked_map = (m if i == last else m.mT for m in (w, s, locked))
        u = keep * (mine @ w_map) + carry * (mine @ s_map) + ((mine @ x.mT) * run.minus_mix) @ delta
        rest = r @ locked_map
        r = torch.nn.functional.pad(u, (0, rest.shape[-1] - u.shape[-1])) + (rest if fade is None else fade * rest)
        r = r if i == last else silu(r)
        steps = [wide.mT @ (rows * narrow) for rows in end_rows]
        states.append(torch.cat([ends[0] * w + ends[1] * s + steps[0], ends[2] * s + steps[1]], -1))
    return r, states


def _gradients(k: Tensor, minus_v: Tensor, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """x_{l-1} and delta_l of every layer at the anchors [G, d_out, d_in]."""
    xs, zs = [k], []
    for a in maps[:-1]:
        zs.append(xs[-1] @ a.mT)
        xs.append(silu(zs[-1]))
    deltas = [xs[-1] @ maps[-1].mT + minus_v]
    for z, a in zip(reversed(zs), reversed(maps), strict=False):
        s = z.sigmoid()
        deltas.insert(0, s * (1 + z * (1 - s)) * (deltas[0] @ a))
    return xs, deltas


def _fade(decay: Tensor | None, pre: bool) -> Tensor | None:
    """What is left of locked weights at each read of a chunk, [G, C, 1], from log(1 - alpha) [B, H, C]."""
    if decay is None:
        return None
    cum = decay.cumsum(-1)
    return (cum - decay if pre else cum).exp().flatten(0, 1)[..., None]
