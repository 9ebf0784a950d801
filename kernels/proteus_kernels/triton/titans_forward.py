"""Forward kernels of linear Titans: the states along time, then the outputs of all pieces at once.

Value columns never meet, so the sequential kernel has one program a tile of columns; it holds memory M and momentum S
of that tile in float32 and stops at every piece (`titans_gates`: b, f, m, G, N; _C a last row):

    E = K A - V        M' = b_C M + f_C S - K^T (G_C . E)        S' = m_C S - K^T (N_C . E)
    Y = scale (b . Q M + f . Q S - (Q K^T . G) E)

A is M at the start of the inner chunk: M itself, unless an unlock cuts the inner chunk (SPLIT carries A along).
Locked key rows are beyond the row tile KB or masked in it; a tile of columns and a head begin when they open.
Loads and saved states run to the end of a group of 16 coordinates (`near_tile`); what is carried is masked exactly.
"""

from __future__ import annotations

import triton
import triton.language as tl

from proteus_kernels.triton.tiles import (
    load_state,
    near_tile,
    open_part,
    positions,
    scores,
    state_at,
    store_state,
    store_tile,
)
from proteus_kernels.triton.titans_gates import load_ends, load_gate, mixing


@triton.jit
def first_open(opens, first, column, h, AXIS: tl.constexpr):
    """The piece from which on a tile of columns of head h has anything to do: `Plan.opens`."""
    start = tl.zeros([], tl.int32) + first
    if AXIS == "value":
        start = tl.load(opens + column)
    elif AXIS == "head":
        start = tl.load(opens + h)
    return start


@triton.jit
def piece_forward(
    m, s, a, k, v, rows, starts_m, starts_s, starts_a, error, p, start, length, n_rows, n_cols, N, h, H, i, j,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """M and S after piece p, from M, S and (SPLIT) A before it."""
    open_rows, open_columns = (i < n_rows)[:, None], (j < n_cols)[None, :]
    store_state(starts_m, p, h, H, K, V, i, n_rows, j, n_cols, m)
    store_state(starts_s, p, h, H, K, V, i, n_rows, j, n_cols, s)
    at, exists = positions(start, length, h, H, C)
    keys = near_tile(k, at, exists, K, i, n_rows, DOT)
    e = -near_tile(v, at, exists, V, j, n_cols, tl.float32)
    if SPLIT:
        store_state(starts_a, p, h, H, K, V, i, n_rows, j, n_cols, a)
        e = tl.dot(keys, tl.where(open_rows, a, 0.0).to(DOT), e, input_precision=PREC)
    else:
        e = tl.dot(keys, tl.where(open_rows, m, 0.0).to(DOT), e, input_precision=PREC)
    store_tile(error, at, exists, V, j, tl.where(open_columns, e, 0.0))
    plane, gates = H * N, rows + h * N
    end_b, end_f, end_m = load_ends(gates, plane, start + length - 1)
    by_mix = load_gate(gates + 3 * plane, start, length, C)[:, None] * e
    by_surprise = load_gate(gates + 4 * plane, start, length, C)[:, None] * e
    turned = tl.trans(keys)
    new_m = end_b * m + end_f * s - tl.dot(turned, by_mix.to(DOT), input_precision=PREC)
    new_s = end_m * s - tl.dot(turned, by_surprise.to(DOT), input_precision=PREC)
    live = open_rows & open_columns
    return tl.where(live, new_m, m), tl.where(live, new_s, s)


@triton.jit
def states_forward(
    k, v, rows, table, begins, opens, memory, momentum, anchor, starts_m, starts_s, starts_a, error, first, last, each, N,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KB: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Pieces first..last of the `each` of every batch row, on KB key rows; grid (tiles of V, H, B).

    The states [B, H, K, V] change in place; what each piece begins with goes to starts_* [pieces, H, K, V], its
    prediction error to `error` [N, H, V].
    """
    h, b = tl.program_id(1), tl.program_id(2)
    i, j = tl.arange(0, KB), tl.program_id(0) * BV + tl.arange(0, BV)
    inside = (i < K)[:, None] & (j < V)[None, :]
    own_m, own_s = state_at(memory, b, h, H, K, V, i, j), state_at(momentum, b, h, H, K, V, i, j)
    own_a = state_at(anchor, b, h, H, K, V, i, j)
    m = tl.load(own_m, mask=inside, other=0.0)
    s = tl.load(own_s, mask=inside, other=0.0)
    a = m
    if SPLIT:
        a = tl.load(own_a, mask=inside, other=0.0)
    for step in range(first_open(opens, first, tl.program_id(0) * BV, h, AXIS), last):
        p = b * each + step
        start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
        if SPLIT:
            a = tl.where(tl.load(begins + p) != 0, m, a)
        elif step == last - 1:
            tl.store(own_a, m, mask=inside)
        m, s = piece_forward(
            m, s, a, k, v, rows, starts_m, starts_s, starts_a, error, p, start, length, n_rows, n_cols, N, h, H, i, j,
            K, V, C, SPLIT, DOT, PREC,
        )  # fmt: skip
    tl.store(own_m, m, mask=inside)
    tl.store(own_s, s, mask=inside)
    if SPLIT:
        tl.store(own_a, a, mask=inside)


@triton.jit
def outputs_forward(
    q, k, rows, log_keep, log_eta, theta, table, starts_m, starts_s, error, y, scale, N,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """y [N, H, V], zero where it is locked; grid (pieces, H, tiles of V)."""
    p, h = tl.program_id(0), tl.program_id(1)
    start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
    j = tl.program_id(2) * BV + tl.arange(0, BV)
    at, exists = positions(start, length, h, H, C)
    out = tl.zeros((C, BV), tl.float32)
    if tl.program_id(2) * BV < n_cols:
        from_s = tl.zeros((C, BV), tl.float32)
        for begin in range(0, n_rows, BK):
            i = begin + tl.arange(0, BK)
            queries = near_tile(q, at, exists, K, i, n_rows, DOT)
            m = load_state(starts_m, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
            s = load_state(starts_s, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
            out = tl.dot(queries, m, out, input_precision=PREC)
            from_s = tl.dot(queries, s, from_s, input_precision=PREC)
        gates, plane = h * N, H * N
        out *= load_gate(rows + gates, start, length, C)[:, None]
        out += load_gate(rows + gates + plane, start, length, C)[:, None] * from_s
        mixed = mixing(log_keep + gates, log_eta + gates, theta + gates, start, length, C, PREC)
        mixed *= scores(q, k, at, exists, K, n_rows, C, BK, DOT, PREC)
        e = near_tile(error, at, exists, V, j, n_cols, DOT)
        out -= tl.dot(mixed.to(DOT), e, input_precision=PREC)
        out = tl.where((j < n_cols)[None, :], scale * out, 0.0)
    store_tile(y, at, exists, V, j, out)
