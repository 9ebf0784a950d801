"""Decayed linear attention with a window of c writes a position: RetNet (c = 1) and SWLA.

Shapes as in `delta`. Per head and step, with tap weights b_{t,j} of position t (None: one tap of weight 1):

    S' = where(w, a_t S, S) + w . sum_{j=0..c-1} b_{t,j} k_{t-j} v_{t-j}^T      y = scale (r . S')^T q_t

RetNet (arXiv 2307.08621): c = 1 and a fixed a per head. SWLA, the sliding-window linear attention that the Proteus paper
uses with c = 2: M_t = a_t M_{t-1} + sum_{i=t-c+1..t} b_i^(t) v_i k_i^T. Every write of position t, an older key's too,
goes through the mask of time t: keys are shifted first and masked then. The other order would write an older key with
the mask it had on arrival, wrong at every unlock and for good.

The weights belong to the writing position t, so the window that a state carries is the last c - 1 keys and values.
The chunked form is one pass for every c. A pair (k_i, v_i) reaches the state that y_t reads with the coefficient

    G_{t,i} = sum_j exp(L_t - L_{i+j}) b_{i+j,j}       over writing positions s = i + j <= t inside the chunk

so Y = (e^L Q) S + (Q K^T . G) V with keys and values that begin c - 1 positions before the chunk. No division by a_t.
G sees no mask, so it is made once for all segments whose chunks have one size, and every mask is a slice of q, k, v, S.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad

from proteus_kernels.masks import counts, cut_time, segments
from proteus_kernels.matrix import Core, MatrixOut, Parts, memory_axis_size, prefix_mask, scan


@dataclass(frozen=True, kw_only=True)
class LinearState:
    """The memory S_BHKV and the last c - 1 keys and values, oldest first and unmasked (None when c = 1)."""

    memory_BHKV: Tensor
    keys_BWHK: Tensor | None = None
    values_BWHV: Tensor | None = None

    @staticmethod
    def start(memory_BHKV: Tensor, taps: int = 1) -> LinearState:
        """No past writes: the window's keys and values are zero."""
        if taps == 1:
            return LinearState(memory_BHKV=memory_BHKV)
        batch, heads, key, value = memory_BHKV.shape
        new = memory_BHKV.new_zeros
        keys, values = new(batch, taps - 1, heads, key), new(batch, taps - 1, heads, value)
        return LinearState(memory_BHKV=memory_BHKV, keys_BWHK=keys, values_BWHV=values)

    def window(self, k_BTHK: Tensor, v_BTHV: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the window before them."""
        if self.keys_BWHK is None or self.values_BWHV is None:
            return k_BTHK, v_BTHV
        return torch.cat([self.keys_BWHK, k_BTHK], 1), torch.cat([self.values_BWHV, v_BTHV], 1)


def _taps(weights: Tensor | None, state: LinearState) -> int:
    taps = 1 if weights is None else weights.shape[-1]
    held = 0 if state.keys_BWHK is None else state.keys_BWHK.shape[1]
    if held != taps - 1:
        raise ValueError(f"{taps} taps need the last {taps - 1} keys and values in the state, it holds {held}")
    return taps


def _end(memory: Tensor, keys: Tensor, values: Tensor, taps: int) -> LinearState:
    if taps == 1:
        return LinearState(memory_BHKV=memory)
    return LinearState(memory_BHKV=memory, keys_BWHK=keys[:, 1 - taps :], values_BWHV=values[:, 1 - taps :])


def recurrent(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    weights_BTHC: Tensor | None = None,
    state: LinearState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
) -> tuple[Tensor, LinearState]:
    """The definition, one position at a time. Returns y_BTHV and the state."""
    taps, memory, scale, outs = _taps(weights_BTHC, state), state.memory_BHKV, q_BTHK.shape[-1] ** -0.5, []
    keys, values = state.window(k_BTHK, v_BTHV)
    dim = memory_axis_size(axis, memory)
    for t in range(q_BTHK.shape[1]):
        c = counts(active[t] if active is not None else dim, dim, gate)
        w, r = (prefix_mask(n, axis, memory) for n in (c.write, c.output))
        increment = torch.zeros_like(memory)
        for j in range(taps):
            i = t + taps - 1 - j  # position t - j in the extended sequence
            outer = keys[:, i, :, :, None] * values[:, i, :, None, :]
            increment = increment + (outer if weights_BTHC is None else weights_BTHC[:, t, :, j, None, None] * outer)
        before, decayed = memory, memory * log_decay_BTH[:, t].exp()[..., None, None]
        if decay_locked == "masked":
            decayed = torch.where(w, decayed, before)
        memory = decayed + w * increment
        outs.append(scale * torch.einsum("bhkv,bhk->bhv", (before if read == "pre" else memory) * r, q_BTHK[:, t]))
    return torch.stack(outs, 1), _end(memory, keys, values, taps)


def chunk(
    *,
    q_BTHK: Tensor,
    k_BTHK: Tensor,
    v_BTHV: Tensor,
    log_decay_BTH: Tensor,
    weights_BTHC: Tensor | None = None,
    state: LinearState,
    active: Sequence[int] | None = None,
    axis: str = "key",
    gate: str = "both",
    read: str = "post",
    decay_locked: str = "masked",
    chunk_size: int = 64,
) -> tuple[Tensor, LinearState]:
    """The chunked form of `recurrent`: same arguments, same result, matrix products over `chunk_size` positions."""
    taps, length = _taps(weights_BTHC, state), q_BTHK.shape[1]
    keys, values = state.window(k_BTHK, v_BTHV)
    pieces = list(_pieces(segments(active, length, memory_axis_size(axis, state.memory_BHKV)), chunk_size))
    q_BTHK = q_BTHK * q_BTHK.shape[-1] ** -0.5
    given = [x.transpose(1, 2) for x in (q_BTHK, k_BTHK, v_BTHV, log_decay_BTH, weights_BTHC) if x is not None]
    if length == 1:
        parts: Iterator[Parts] = iter([_step_parts(given, keys, values)])
        core: Core = partial(_one_step, pre=read == "pre")
    else:
        window = keys[:, : taps - 1].transpose(1, 2), values[:, : taps - 1].transpose(1, 2)
        parts, core = _parts(pieces, given, window, taps, read == "pre"), _chunks
    y, memory = scan(
        zip((n for *_, n in pieces), parts, strict=True),
        state.memory_BHKV, core, axis=axis, gate=gate, read=read, decay_locked=decay_locked,
    )  # fmt: skip
    return y, _end(memory, keys, values, taps)


def _step_parts(given: list[Tensor], keys_BTHK: Tensor, values_BTHV: Tensor) -> Parts:
    """One position: its c keys and weighted values."""
    q, _, _, g, *weights = given
    v = values_BTHV.transpose(1, 2)
    for w in weights:
        v = v * w.flip(-1).transpose(-1, -2)
    return Parts(q=q, k=keys_BTHK.transpose(1, 2), v=v, g=g)


def _one_step(x: Parts, state: Tensor, *, pre: bool) -> MatrixOut:
    assert x.g is not None
    after = state * x.g.exp()[..., None] + x.k.transpose(-1, -2) @ x.v
    return x.q @ (state if pre else after), after


Piece = tuple[int, int, int, int]  # start, stop, chunk size, open coordinates


def _pieces(spans: Iterator[tuple[int, int, int]], chunk_size: int) -> Iterator[Piece]:
    """Each segment as whole chunks and one shorter chunk."""
    for start, stop, n in spans:
        whole = start + (stop - start) // chunk_size * chunk_size
        if whole > start:
            yield start, whole, chunk_size, n
        if stop > whole:
            yield whole, stop, stop - whole, n


def _parts(
    pieces: list[Piece], given: list[Tensor], window: tuple[Tensor, Tensor], taps: int, pre: bool
) -> Iterator[Parts]:
    """Each piece's inputs. Keys and values are whole: shifted here, and cut by a mask only later."""
    groups = [list(run) for _, run in groupby(pieces, key=lambda piece: piece[2])]
    bounds = [(run[0][0], run[-1][1]) for run in groups]
    keys, values = window
    for run, (q, k, v, g, *weights) in zip(groups, cut_time(bounds, *given), strict=True):
        if taps > 1:
            k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            keys, values = k[:, :, 1 - taps :], v[:, :, 1 - taps :]
        size = run[0][2]
        chunks = [(stop - start) // size for start, stop, *_ in run]
        chunked = (_windows(k, size, taps), _windows(v, size, taps), *_coefficients(g, weights, size, taps, pre))
        shifted = [(start - run[0][0], stop - run[0][0]) for start, stop, *_ in run]
        per_chunk = zip(*(x.split(chunks, 2) for x in chunked), strict=True)
        for (q_s, g_s), (k_s, v_s, *gates) in zip(cut_time(shifted, q, g), per_chunk, strict=True):
            yield Parts(q=q_s, k=k_s, v=v_s, g=g_s, gates=tuple(gates))


def _windows(x: Tensor, size: int, taps: int) -> Tensor:
    """[B, H, taps - 1 + T, .] -> [B, H, T / size, taps - 1 + size, .]."""
    if taps == 1:
        return x.unflatten(2, (-1, size))
    return x.unfold(2, size + taps - 1, size).transpose(-1, -2)


def _coefficients(
    g: Tensor, weights: list[Tensor], size: int, taps: int, pre: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """G, the last row of it (for the state at the end), e^L at the reads and at the end, for chunks in axis 2."""
    g = g.unflatten(2, (-1, size))
    per_tap = [w.unflatten(2, (-1, size)).unbind(-1) for w in weights]
    cum = g.cumsum(-1)
    read_cum = cum - g if pre else cum
    reads = torch.ones(size, size, dtype=torch.bool, device=g.device).tril(-1 if pre else 0)
    gam = (read_cum[..., :, None] - cum[..., None, :]).masked_fill(~reads, -torch.inf).exp()
    to_end = (cum[..., -1:] - cum).exp()
    if per_tap:
        gam, to_end = _banded(gam, [w[..., None, :] for w in per_tap[0]]), _banded(to_end, list(per_tap[0]))
    return gam, to_end, read_cum.exp(), cum[..., -1].exp()


def _banded(coefficient: Tensor, weights: list[Tensor]) -> Tensor:
    """sum_j coefficient[..., s] b_{s,j} at column s - j of the extended keys: [..., C] -> [..., C + taps - 1]."""
    last = len(weights) - 1
    return reduce(torch.add, (pad(coefficient * w, (last - j, j)) for j, w in enumerate(weights)))


def _chunks(x: Parts, state: Tensor) -> MatrixOut:
    """The unmasked recurrence over one piece: q [B, H, T, K] scaled, the rest by chunks."""
    coefficients, to_end, at_read, at_end = x.gates
    q, kt = x.q.unflatten(2, (-1, at_read.shape[-1])), x.k.transpose(-1, -2)
    writes = (kt * to_end[..., None, :]) @ x.v
    states = []
    for write, decay in zip(writes.unbind(2), at_end[..., None, None].unbind(2), strict=True):
        states.append(state)
        state = decay * state + write
    y = (q * at_read[..., None]) @ torch.stack(states, 2) + ((q @ kt) * coefficients) @ x.v
    return y.flatten(2, 3), state
