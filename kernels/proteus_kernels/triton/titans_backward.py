"""Backward kernels of linear Titans. With dY times scale, and dM', dS' the gradients of what a piece ends with:

    dE = -(Q K^T . G)^T dY - G_C . K dM' - N_C . K dS'                          `local_backward`, then `states_backward`
    dM = b_C dM' + Q^T (b . dY) + K^T dE (this into dA)      dS = f_C dM' + m_C dS' + Q^T (f . dY)           dV = -dE
    dQ = b . dY M^T + f . dY S^T - (X . G) K        dK = dE A^T - (X . G)^T Q - G_C . E dM'^T - N_C . E dS'^T
    dG = -X . Q K^T    with X = dY E^T              `inputs_backward`, which also sums the gradients of b, f, m, G_C, N_C

Nothing is added by two programs, so the result is the same at every run.
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
from proteus_kernels.triton.titans_forward import first_open
from proteus_kernels.triton.titans_gates import load_ends, load_gate, mixing


@triton.jit
def local_backward(
    q, k, d_y, log_keep, log_eta, theta, table, d_v, scale, N,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """What reads inside the piece contribute to dV = -dE, zero where it is locked; grid (pieces, H, tiles of V)."""
    p, h = tl.program_id(0), tl.program_id(1)
    start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
    j = tl.program_id(2) * BV + tl.arange(0, BV)
    at, exists = positions(start, length, h, H, C)
    out = tl.zeros((C, BV), tl.float32)
    if tl.program_id(2) * BV < n_cols:
        gates = h * N
        mixed = mixing(log_keep + gates, log_eta + gates, theta + gates, start, length, C, PREC)
        mixed *= scale * scores(q, k, at, exists, K, n_rows, C, BK, DOT, PREC)
        d_out = near_tile(d_y, at, exists, V, j, n_cols, DOT)
        out = tl.dot(tl.trans(mixed.to(DOT)), d_out, input_precision=PREC)
        out = tl.where((j < n_cols)[None, :], out, 0.0)
    store_tile(d_v, at, exists, V, j, out)


@triton.jit
def piece_backward(
    dm, ds, da, q, k, d_y, rows, ends_m, ends_s, d_v, scale, p, start, length, n_rows, n_cols, N, h, H, i, j,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Gradients of M, S and A before piece p, from those after it."""
    open_rows, open_columns = (i < n_rows)[:, None], (j < n_cols)[None, :]
    store_state(ends_m, p, h, H, K, V, i, n_rows, j, n_cols, dm)
    store_state(ends_s, p, h, H, K, V, i, n_rows, j, n_cols, ds)
    at, exists = positions(start, length, h, H, C)
    keys = near_tile(k, at, exists, K, i, n_rows, DOT)
    plane, gates = H * N, rows + h * N
    from_m = tl.dot(keys, tl.where(open_rows, dm, 0.0).to(DOT), input_precision=PREC)
    from_s = tl.dot(keys, tl.where(open_rows, ds, 0.0).to(DOT), input_precision=PREC)
    minus_de = near_tile(d_v, at, exists, V, j, n_cols, tl.float32)
    minus_de += load_gate(gates + 3 * plane, start, length, C)[:, None] * from_m
    minus_de += load_gate(gates + 4 * plane, start, length, C)[:, None] * from_s
    store_tile(d_v, at, exists, V, j, tl.where(open_columns, minus_de, 0.0))
    end_b, end_f, end_m = load_ends(gates, plane, start + length - 1)
    d_out = scale * near_tile(d_y, at, exists, V, j, n_cols, tl.float32)
    by_b = (load_gate(gates, start, length, C)[:, None] * d_out).to(DOT)
    by_f = (load_gate(gates + plane, start, length, C)[:, None] * d_out).to(DOT)
    turned = tl.trans(near_tile(q, at, exists, K, i, n_rows, DOT))
    new_s = tl.dot(turned, by_f, end_f * dm + end_m * ds, input_precision=PREC)
    new_m = tl.dot(turned, by_b, end_b * dm, input_precision=PREC)
    new_a = da - tl.dot(tl.trans(keys), minus_de.to(DOT), input_precision=PREC)
    live = open_rows & open_columns
    return tl.where(live, new_m, dm), tl.where(live, new_s, ds), tl.where(live, new_a, da)


@triton.jit
def states_backward(
    q, k, d_y, rows, table, begins, opens, d_memory, d_momentum, d_anchor, ends_m, ends_s, d_v, scale, first, last, each, N,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, KB: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Pieces last..first of every batch row, on KB key rows; grid (tiles of V, H, B). The gradients of the states change
    in place, what each piece ends with goes to ends_* [pieces, H, K, V], and d_v becomes whole.
    """
    h, b = tl.program_id(1), tl.program_id(2)
    i, j = tl.arange(0, KB), tl.program_id(0) * BV + tl.arange(0, BV)
    inside = (i < K)[:, None] & (j < V)[None, :]
    own_m, own_s = state_at(d_memory, b, h, H, K, V, i, j), state_at(d_momentum, b, h, H, K, V, i, j)
    own_a = state_at(d_anchor, b, h, H, K, V, i, j)
    dm = tl.load(own_m, mask=inside, other=0.0)
    ds = tl.load(own_s, mask=inside, other=0.0)
    da = tl.load(own_a, mask=inside, other=0.0)
    for back in range(0, last - first_open(opens, first, tl.program_id(0) * BV, h, AXIS)):
        p = b * each + last - 1 - back
        start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
        dm, ds, da = piece_backward(
            dm, ds, da, q, k, d_y, rows, ends_m, ends_s, d_v, scale, p, start, length, n_rows, n_cols, N, h, H, i, j,
            K, V, C, DOT, PREC,
        )  # fmt: skip
        if SPLIT:
            begun = tl.load(begins + p) != 0
            dm = tl.where(begun, dm + da, dm)
            da = tl.where(begun, 0.0, da)
        else:
            dm += da
            da = tl.zeros((KB, BV), tl.float32)
    tl.store(own_m, dm, mask=inside)
    tl.store(own_s, ds, mask=inside)
    tl.store(own_a, da, mask=inside)


@triton.jit
def inputs_backward(
    q, k, d_y, d_v, error, rows, log_keep, log_eta, theta, table, starts_m, starts_s, starts_a, ends_m, ends_s,
    d_q, d_k, d_mix, d_rows, d_ends, scale, N,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    AXIS: tl.constexpr, SPLIT: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Gradients of q and k [N, H, K], and of the coefficients as `gates_backward` takes them; grid (pieces, H)."""
    p, h, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    start, length, n_rows, n_cols = open_part(table, p, h, K, V, AXIS)
    at, exists = positions(start, length, h, H, C)
    t = tl.arange(0, C)
    gates, plane = h * N, H * N
    x = tl.zeros((C, C), tl.float32)
    for left in range(0, n_cols, BV):
        j = left + tl.arange(0, BV)
        d_out = near_tile(d_y, at, exists, V, j, n_cols, DOT)
        e = near_tile(error, at, exists, V, j, n_cols, DOT)
        x = tl.dot(d_out, tl.trans(e), x, input_precision=PREC)
    x *= scale
    mixed = (x * mixing(log_keep + gates, log_eta + gates, theta + gates, start, length, C, PREC)).to(DOT)
    x = -x * scores(q, k, at, exists, K, n_rows, C, BK, DOT, PREC)
    tl.store(d_mix + ((p.to(tl.int64) * heads + h) * C + t[:, None]) * C + t[None, :], x)
    b = scale * load_gate(rows + gates, start, length, C)
    f = scale * load_gate(rows + gates + plane, start, length, C)
    g_last = load_gate(rows + gates + 3 * plane, start, length, C)
    n_last = load_gate(rows + gates + 4 * plane, start, length, C)
    d_b, d_f = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    d_g, d_n = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
    end_b = tl.zeros((BK,), tl.float32)
    end_f = tl.zeros((BK,), tl.float32)
    end_m = tl.zeros((BK,), tl.float32)
    for begin in range(0, K, BK):
        i = begin + tl.arange(0, BK)
        dq = tl.zeros((C, BK), tl.float32)
        dk = tl.zeros((C, BK), tl.float32)
        if begin < n_rows:
            by_m = tl.zeros((C, BK), tl.float32)
            by_s = tl.zeros((C, BK), tl.float32)
            to_m = tl.zeros((C, BK), tl.float32)
            to_s = tl.zeros((C, BK), tl.float32)
            for left in range(0, n_cols, BV):
                j = left + tl.arange(0, BV)
                m = load_state(starts_m, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
                s = load_state(starts_s, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
                a = m
                if SPLIT:
                    a = load_state(starts_a, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
                dm = load_state(ends_m, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
                ds = load_state(ends_s, p, h, H, K, V, i, n_rows, j, n_cols, DOT)
                d_out = near_tile(d_y, at, exists, V, j, n_cols, DOT)
                end_b += tl.sum(m.to(tl.float32) * dm.to(tl.float32), 1)
                end_f += tl.sum(s.to(tl.float32) * dm.to(tl.float32), 1)
                end_m += tl.sum(s.to(tl.float32) * ds.to(tl.float32), 1)
                e = near_tile(error, at, exists, V, j, n_cols, DOT)
                minus_de = near_tile(d_v, at, exists, V, j, n_cols, DOT)
                by_m = tl.dot(d_out, tl.trans(m), by_m, input_precision=PREC)
                by_s = tl.dot(d_out, tl.trans(s), by_s, input_precision=PREC)
                to_m = tl.dot(e, tl.trans(dm), to_m, input_precision=PREC)
                to_s = tl.dot(e, tl.trans(ds), to_s, input_precision=PREC)
                dk = tl.dot(minus_de, tl.trans(a), dk, input_precision=PREC)
            queries = near_tile(q, at, exists, K, i, n_rows, DOT)
            keys = near_tile(k, at, exists, K, i, n_rows, DOT)
            d_b += tl.sum(queries.to(tl.float32) * by_m, 1)
            d_f += tl.sum(queries.to(tl.float32) * by_s, 1)
            d_g -= tl.sum(keys.to(tl.float32) * to_m, 1)
            d_n -= tl.sum(keys.to(tl.float32) * to_s, 1)
            dq = b[:, None] * by_m + f[:, None] * by_s - tl.dot(mixed, keys, input_precision=PREC)
            dk += g_last[:, None] * to_m + n_last[:, None] * to_s
            dk = -tl.dot(tl.trans(mixed), queries, dk, input_precision=PREC)
        open_rows = (i < n_rows)[None, :]
        store_tile(d_q, at, exists, K, i, tl.where(open_rows, dq, 0.0))
        store_tile(d_k, at, exists, K, i, tl.where(open_rows, dk, 0.0))
    own = d_rows + gates + start + t
    tl.store(own, scale * d_b, mask=exists)
    tl.store(own + plane, scale * d_f, mask=exists)
    tl.store(own + 2 * plane, d_g, mask=exists)
    tl.store(own + 3 * plane, d_n, mask=exists)
    ends = d_ends + (p.to(tl.int64) * heads + h) * 4
    tl.store(ends, tl.sum(end_b, 0))
    tl.store(ends + 1, tl.sum(end_f, 0))
    tl.store(ends + 2, tl.sum(end_m, 0))
