"""What every kernel of the delta family does first: read its row of the chunk table, its gates and its tiles.

Inside a kernel T positions are flat (see `chunks`), tensors are [T, H, D], and a tile holds the chunk's C positions of one
head. A tile is zero at positions behind the chunk's end and at coordinates that are locked: they are not loaded.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def open_part(table, chunk, head, K: tl.constexpr, V: tl.constexpr, AXIS: tl.constexpr):
    """First position, positions, open key rows, open value columns of this head; a locked head has none of either."""
    start = tl.load(table + 4 * chunk)
    length = tl.load(table + 4 * chunk + 1)
    n = tl.load(table + 4 * chunk + 2)
    rows = K + 0 * n
    columns = V + 0 * n
    if AXIS == "key":
        rows = n
    elif AXIS == "value":
        columns = n
    else:
        rows = tl.where(head < n, rows, 0)
        columns = tl.where(head < n, columns, 0)
    return start, length, rows, columns


@triton.jit
def positions(start, length, head, H: tl.constexpr, C: tl.constexpr):
    """Where the chunk's positions lie in a [T, H] tensor, and which of the C exist."""
    r = tl.arange(0, C)
    return (start + r).to(tl.int64) * H + head, r < length


@triton.jit
def near_tile(x, at, exists, D: tl.constexpr, columns, limit, DOT: tl.constexpr):
    """As `load_tile`, but whole groups of 16 columns: what lies between `limit` and the end of its group is anything.

    For products that meet zeros there. The compiler knows nothing of where an exact mask ends and would load element by
    element; 16 columns in 16 bits are one sector of memory, so no more is read either way.
    """
    near = (limit + 15) // 16 * 16
    mask = exists[:, None] & (columns < near)[None, :] & (columns < D)[None, :]
    return tl.load(x + at[:, None] * D + columns[None, :], mask=mask, other=0.0).to(DOT)


@triton.jit
def load_tile(x, at, exists, D: tl.constexpr, columns, limit, DOT: tl.constexpr):
    """[C, columns] of a [T, H, D] tensor, as operands of a product; zero from column `limit` on."""
    return tl.where((columns < limit)[None, :], near_tile(x, at, exists, D, columns, limit, DOT), 0.0)


@triton.jit
def store_tile(x, at, exists, D: tl.constexpr, columns, value):
    mask = exists[:, None] & (columns < D)[None, :]
    tl.store(x + at[:, None] * D + columns[None, :], value.to(x.dtype.element_ty), mask=mask)


@triton.jit
def state_at(x, index, head, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, rows, columns):
    """Pointers to a tile of entry `index` of a [*, H, K, V] tensor."""
    base = ((tl.zeros([], tl.int64) + index) * H + head) * K  # a loop variable is a plain int to the interpreter
    return x + (base + rows[:, None]) * V + columns[None, :]


@triton.jit
def load_state(
    x, index, head, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, r, rows, columns, limit, DOT: tl.constexpr
):
    """A tile of a [*, H, K, V] tensor that is zero from row `rows` and column `limit` on; whole groups as in `near_tile`."""
    near = (r < rows)[:, None] & (columns < (limit + 15) // 16 * 16)[None, :] & (columns < V)[None, :]
    tile = tl.load(state_at(x, index, head, H, K, V, r, columns), mask=near, other=0.0).to(DOT)
    return tl.where((columns < limit)[None, :], tile, 0.0)


@triton.jit
def store_state(x, index, head, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, r, rows, columns, limit, tile):
    """What `load_state` reads."""
    near = (r < rows)[:, None] & (columns < (limit + 15) // 16 * 16)[None, :] & (columns < V)[None, :]
    tl.store(state_at(x, index, head, H, K, V, r, columns), tile.to(x.dtype.element_ty), mask=near)


@triton.jit
def log_decays(g, at, exists, C: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr, UNDECAYED: tl.constexpr):
    """Cumulative log decay [C] of the chunk as the writes, the reads and the predictions see it, and its last value."""
    own = tl.zeros([C], tl.float32)
    if DECAY:
        own = tl.load(g + at, mask=exists, other=0.0).to(tl.float32)
    cum = tl.cumsum(own, 0)
    read = cum - own if PRE else cum
    predict = cum - own if UNDECAYED else cum
    return cum, read, predict, tl.sum(own, 0)


@triton.jit
def keep_locked(factor, r, rows, columns, open_columns, AXIS: tl.constexpr):
    """The factor for open coordinates of a state tile and one for locked ones, along the axis that has any."""
    if AXIS == "key":
        out = tl.where(r < rows, factor, 1.0)[:, None]
    elif AXIS == "value":
        out = tl.where(columns < open_columns, factor, 1.0)[None, :]
    else:
        out = factor
    return out


@triton.jit
def causal_decay(reads, writes, C: tl.constexpr, STRICT: tl.constexpr):
    """exp(reads_i - writes_j) where position i sees what j wrote, zero elsewhere."""
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None, :]
    seen = i > j if STRICT else i >= j
    return tl.exp(tl.where(seen, reads[:, None] - writes[None, :], float("-inf")))


@triton.jit
def scores(q, k, at, exists, K: tl.constexpr, rows, C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr):
    """q k^T [C, C] over the open key rows."""
    out = tl.zeros([C, C], tl.float32)
    for first in range(0, rows, BK):
        columns = first + tl.arange(0, BK)
        q_tile = load_tile(q, at, exists, K, columns, rows, DOT)
        k_tile = load_tile(k, at, exists, K, columns, rows, DOT)
        out += tl.dot(q_tile, tl.trans(k_tile), input_precision=PREC)
    return out
