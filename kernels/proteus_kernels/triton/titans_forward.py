"""Forward kernels of linear Titans: the states along time, then the outputs of all pieces at once.

Value columns never meet, so the sequential kernel has one program a tile of columns; it holds memory M and momentum S
of that tile in float32 and stops at every piece (`titans_gates`: b, f, m, G, N; _C a last row):

    E = K A - V        M' = b_C M + f_C S - K^T (G_C . E)        S' = m_C S - K^T (N_C . E)
    Y = scale (b . Q M + f . Q S - (Q K^T . G) E)

A is M at the start of the inner chunk: M itself, unless an unlock cuts the inner chunk (SPLIT carries A along).
Locked key rows are beyond the row tile KB or masked in it; locked columns and heads end the work of a piece at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from proteus_kernels.triton.aot import Case
from proteus_kernels.triton.tiles import load_tile, open_part, positions, scores, state_at, store_tile
from proteus_kernels.triton.titans_gates import load_ends, load_gate, mixing


@triton.jit
def states_forward(
    k, v, rows, table, begins, memory, momentum, anchor, starts_m, starts_s, starts_a, error, first, last, each, N, H,
    K: tl.constexpr, V: tl.constexpr, KB: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Pieces first..last of the `each` of every batch row, on KB key rows; grid (tiles of V, H, B).

    The states [B, H, K, V] change in place; what each piece begins with goes to starts_* [pieces, H, K, V], its
    prediction error to `error` [N, H, V].
    """
    h, b = tl.program_id(1), tl.program_id(2)
    i, j = tl.arange(0, KB), tl.program_id(0) * BV + tl.arange(0, BV)
    inside = (i < K)[:, None] & (j < V)[None, :]
    plane, own = H * N, state_at(memory, b, h, H, K, V, i, j)
    own_s = state_at(momentum, b, h, H, K, V, i, j)
    own_a = state_at(anchor, b, h, H, K, V, i, j)
    m = tl.load(own, mask=inside, other=0.0)
    s = tl.load(own_s, mask=inside, other=0.0)
    if SPLIT:
        a = tl.load(own_a, mask=inside, other=0.0)
    for step in range(first, last):
        p = b * each + step
        start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
        if SPLIT:
            a = tl.where(tl.load(begins + p) != 0, m, a)
        elif step == last - 1:
            tl.store(own_a, m, mask=inside)
        if tl.program_id(0) * BV < n_cols:
            live = (i < n_rows)[:, None] & (j < n_cols)[None, :]
            tl.store(state_at(starts_m, p, h, H, K, V, i, j), m.to(starts_m.dtype.element_ty), mask=live)
            tl.store(state_at(starts_s, p, h, H, K, V, i, j), s.to(starts_s.dtype.element_ty), mask=live)
            at, exists = positions(start, length, h, H, C)
            keys = load_tile(k, at, exists, K, i, n_rows, DOT)
            e = -load_tile(v, at, exists, V, j, n_cols, tl.float32)
            if SPLIT:
                tl.store(state_at(starts_a, p, h, H, K, V, i, j), a.to(starts_a.dtype.element_ty), mask=live)
                e = tl.dot(keys, a.to(DOT), e, input_precision=PREC)
            else:
                e = tl.dot(keys, m.to(DOT), e, input_precision=PREC)
            store_tile(error, at, exists, V, j, e)
            end_b, end_f, end_m = load_ends(rows + h * N, plane, start + length - 1)
            by_mix = load_gate(rows + h * N + 3 * plane, start, length, C)[:, None] * e
            by_surprise = load_gate(rows + h * N + 4 * plane, start, length, C)[:, None] * e
            turned = tl.trans(keys)
            new_m = end_b * m + end_f * s - tl.dot(turned, by_mix.to(DOT), input_precision=PREC)
            new_s = end_m * s - tl.dot(turned, by_surprise.to(DOT), input_precision=PREC)
            m = tl.where(live, new_m, m)
            s = tl.where(live, new_s, s)
    tl.store(own, m, mask=inside)
    tl.store(own_s, s, mask=inside)
    if SPLIT:
        tl.store(own_a, a, mask=inside)


@triton.jit
def outputs_forward(
    q, k, rows, log_keep, log_eta, theta, table, starts_m, starts_s, error, y, scale, N, H,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
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
            queries = load_tile(q, at, exists, K, i, n_rows, DOT)
            live = (i < n_rows)[:, None] & (j < n_cols)[None, :]
            m = tl.load(state_at(starts_m, p, h, H, K, V, i, j), mask=live, other=0.0).to(DOT)
            s = tl.load(state_at(starts_s, p, h, H, K, V, i, j), mask=live, other=0.0).to(DOT)
            out = tl.dot(queries, m, out, input_precision=PREC)
            from_s = tl.dot(queries, s, from_s, input_precision=PREC)
        gates, plane = h * N, H * N
        out *= load_gate(rows + gates, start, length, C)[:, None]
        out += load_gate(rows + gates + plane, start, length, C)[:, None] * from_s
        mixed = mixing(log_keep + gates, log_eta + gates, theta + gates, start, length, C, PREC)
        mixed *= scores(q, k, at, exists, K, n_rows, C, BK, DOT, PREC)
        e = load_tile(error, at, exists, V, j, n_cols, DOT)
        out -= tl.dot(mixed.to(DOT), e, input_precision=PREC)
    store_tile(y, at, exists, V, j, scale * out)
