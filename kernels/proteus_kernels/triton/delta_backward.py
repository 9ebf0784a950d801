"""The chunked delta rule, backward: four kernels after `solve` and `carry` of the forward pass have been run again.

With dY, the gradient dS' of the state that a chunk leaves, and F = T^T dD, per head and chunk

    dD0 = scale (Q K^T . exp(R_i - L_j))^T dY                                          `inner`, every chunk apart
    dD  = dD0 + e^{L_C - L} K dS',   F = T^T dD,   dV = beta F                         `carry_back`, from the last chunk
    dS  = e^{L_C} dS' + scale (e^R Q)^T dY - (beta e^P P)^T F                                        to the first
    M   = scale dY D^T . exp(R_i - L_j),   N = -tril(F D^T, -1) . exp(P_i - L_j)       `pairs`, every chunk apart
    dQ  = scale e^R dY S^T + M K                                                       `gradients`, every chunk and
    dK  = e^{L_C - L} D dS'^T + M^T Q + N^T beta P                                     key tile apart
    dP  = beta (N K - e^P F S^T)

-F D^T is dA: with D = T beta (V - e^P P S) the gradient of T drops out, so no product of three C x C matrices is left.
Each logarithm stands only inside exponentials, so its gradients are row sums of what is there already: dR = q . dq,
dL = -k . dk, dP = p . dp; those of L_C besides are e^{L_C} S . dS' and the sum of k . (e^{L_C - L} D dS'^T). The parts of
different key tiles are added by the host in a fixed order; nothing is atomic, so a gradient has the same bits every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from proteus_kernels.triton.tiles import (
    causal_decay,
    keep_locked,
    load_state,
    load_tile,
    log_decays,
    open_part,
    positions,
    scores,
    store_state,
    store_tile,
)


@triton.jit
def inner(
    q, k, g, table, dy, d_inner, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """d_inner [T, H, V]: what dY asks of D inside its own chunk. Grid (chunks, heads, V tiles)."""
    head = tl.program_id(1)
    columns = tl.program_id(2) * BV + tl.arange(0, BV)
    start, length, rows, open_columns = open_part(table, tl.program_id(0), head, K, V, AXIS)
    if tl.program_id(2) * BV < open_columns:
        at, exists = positions(start, length, head, H, C)
        cum, read, _predict, _end = log_decays(g, at, exists, C, DECAY, PRE, False)
        qk = scores(q, k, at, exists, K, rows, C, BK, DOT, PREC)
        qk = (scale * qk * causal_decay(read, cum, C, PRE)).to(DOT)
        d_y = load_tile(dy, at, exists, V, columns, open_columns, DOT)
        store_tile(d_inner, at, exists, V, columns, tl.dot(tl.trans(qk), d_y, input_precision=PREC))


@triton.jit
def carry_back(
    q, k, p, g, beta, inverse, table, first, dy, d_inner, d_final, d_states, f, dv, d_initial, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr, UNDECAYED: tl.constexpr, PREDICT: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """d_states [chunks, H, K, V] at the chunks' ends, f and dv [T, H, V], d_initial [N, H, K, V]. Grid (V tiles, H, N).

    Without a prediction dV is dD, and f is not written.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    state = ()
    for i in tl.static_range(NK):
        r = i * BK + tl.arange(0, BK)
        state += (load_state(d_final, sequence, head, H, K, V, r, K, columns, V, tl.float32),)
    begin = tl.load(first + sequence)
    stop = tl.load(first + sequence + 1)
    for step in range(0, stop - begin):
        chunk = stop - 1 - step
        start, length, rows, open_columns = open_part(table, chunk, head, K, V, AXIS)
        at, exists = positions(start, length, head, H, C)
        d_v = tl.zeros([C, BV], tl.float32)
        if tl.program_id(0) * BV < open_columns:
            cum, _read, predict, end = log_decays(g, at, exists, C, DECAY, False, UNDECAYED)
            from_state = tl.zeros([C, BV], tl.float32)
            for i in tl.static_range(NK):
                if i * BK < rows:
                    r = i * BK + tl.arange(0, BK)
                    seen = state[i].to(DOT)
                    store_state(d_states, chunk, head, H, K, V, r, rows, columns, open_columns, seen)
                    from_state += tl.dot(load_tile(k, at, exists, K, r, rows, DOT), seen, input_precision=PREC)
            d_d = load_tile(d_inner, at, exists, V, columns, open_columns, DOT).to(tl.float32)
            d_d += tl.exp(end - cum)[:, None] * from_state
            d_v = tl.where((columns < open_columns)[None, :], d_d, 0.0)
            to_predict = tl.zeros([C, BV], DOT)
            if PREDICT:
                b = tl.load(beta + at, mask=exists, other=0.0).to(tl.float32)
                solved = load_tile(inverse, at, exists, C, tl.arange(0, C), C, DOT)
                d_r = tl.dot(tl.trans(solved), d_v.to(DOT), input_precision=PREC)
                store_tile(f, at, exists, V, columns, d_r)
                d_v = b[:, None] * d_r
                to_predict = (-tl.exp(predict)[:, None] * d_v).to(DOT)
            read = log_decays(g, at, exists, C, DECAY, PRE, False)[1]
            d_y = load_tile(dy, at, exists, V, columns, open_columns, DOT).to(tl.float32)
            to_read = (scale * tl.exp(read)[:, None] * d_y).to(DOT)
            moved = ()
            for i in tl.static_range(NK):
                tile = state[i]
                if i * BK < rows:
                    r = i * BK + tl.arange(0, BK)
                    tile *= keep_locked(tl.exp(end), r, rows, columns, open_columns, AXIS)
                    q_tile = load_tile(q, at, exists, K, r, rows, DOT)
                    tile += tl.dot(tl.trans(q_tile), to_read, input_precision=PREC)
                    if PREDICT:
                        p_tile = load_tile(p, at, exists, K, r, rows, DOT)
                        tile += tl.dot(tl.trans(p_tile), to_predict, input_precision=PREC)
                moved += (tile,)
            state = moved
        store_tile(dv, at, exists, V, columns, d_v)
    for i in tl.static_range(NK):
        r = i * BK + tl.arange(0, BK)
        store_state(d_initial, sequence, head, H, K, V, r, K, columns, V, state[i])


@triton.jit
def pairs(
    v, g, delta, f, table, dy, d_read, d_predict, dbeta, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr, UNDECAYED: tl.constexpr, PREDICT: tl.constexpr,
    C: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """What position i asks of k_j: d_read for its output, d_predict for its prediction over beta, both [T, H, C].

    Grid (chunks, heads). dbeta [0, T, H] receives the part of v.
    """
    head = tl.program_id(1)
    start, length, rows, open_columns = open_part(table, tl.program_id(0), head, K, V, AXIS)
    at, exists = positions(start, length, head, H, C)
    cum, read, predict, _end = log_decays(g, at, exists, C, DECAY, PRE, UNDECAYED)
    dy_d = tl.zeros([C, C], tl.float32)
    f_d = tl.zeros([C, C], tl.float32)
    d_beta = tl.zeros([C], tl.float32)
    for begin in range(0, open_columns, BV):
        columns = begin + tl.arange(0, BV)
        d_y = load_tile(dy, at, exists, V, columns, open_columns, DOT)
        d = load_tile(delta, at, exists, V, columns, open_columns, DOT)
        dy_d += tl.dot(d_y, tl.trans(d), input_precision=PREC)
        if PREDICT:
            f_tile = load_tile(f, at, exists, V, columns, open_columns, DOT)
            f_d += tl.dot(f_tile, tl.trans(d), input_precision=PREC)
            v_tile = load_tile(v, at, exists, V, columns, open_columns, DOT).to(tl.float32)
            d_beta += tl.sum(f_tile.to(tl.float32) * v_tile, 1)
    if rows > 0:
        store_tile(d_read, at, exists, C, tl.arange(0, C), scale * dy_d * causal_decay(read, cum, C, PRE))
        if PREDICT:
            store_tile(d_predict, at, exists, C, tl.arange(0, C), -f_d * causal_decay(predict, cum, C, True))
    if PREDICT:
        tl.store(dbeta + at, d_beta, mask=exists)


@triton.jit
def gradients(
    q, k, p, g, beta, delta, f, d_read, d_predict, states, d_states, table, dy, dq, dk, dp, dg, dbeta, scale, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr, UNDECAYED: tl.constexpr, PREDICT: tl.constexpr,
    SAME: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """dq, dk, dp [T, H, K], dg [key tiles, T, H] and dbeta [1 + key tiles, T, H] in parts. Grid (chunks, heads, key tiles).

    SAME: p is k, so dp is added to dk and not written.
    """
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    r = tl.program_id(2) * BK + tl.arange(0, BK)
    start, length, rows, open_columns = open_part(table, chunk, head, K, V, AXIS)
    at, exists = positions(start, length, head, H, C)
    part = tl.program_id(2).to(tl.int64) * T * H + at
    d_q = tl.zeros([C, BK], tl.float32)
    d_k = tl.zeros([C, BK], tl.float32)
    d_p = tl.zeros([C, BK], tl.float32)
    d_g = tl.zeros([C], tl.float32)
    per_beta = tl.zeros([C], tl.float32)
    if tl.program_id(2) * BK < rows:
        cum, read, predict, end = log_decays(g, at, exists, C, DECAY, PRE, UNDECAYED)
        at_end = tl.zeros([BK], tl.float32)
        for begin in range(0, open_columns, BV):
            columns = begin + tl.arange(0, BV)
            d_y = load_tile(dy, at, exists, V, columns, open_columns, DOT)
            d = load_tile(delta, at, exists, V, columns, open_columns, DOT)
            s = load_state(states, chunk, head, H, K, V, r, rows, columns, open_columns, DOT)
            d_s = load_state(d_states, chunk, head, H, K, V, r, rows, columns, open_columns, DOT)
            d_q += tl.dot(d_y, tl.trans(s), input_precision=PREC)
            d_k += tl.dot(d, tl.trans(d_s), input_precision=PREC)
            if DECAY:
                at_end += tl.sum(s.to(tl.float32) * d_s.to(tl.float32), 1)
            if PREDICT:
                f_tile = load_tile(f, at, exists, V, columns, open_columns, DOT)
                d_p += tl.dot(f_tile, tl.trans(s), input_precision=PREC)
        q_tile = load_tile(q, at, exists, K, r, rows, DOT)
        k_tile = load_tile(k, at, exists, K, r, rows, DOT)
        k_wide = k_tile.to(tl.float32)
        asked = load_tile(d_read, at, exists, C, tl.arange(0, C), C, DOT)
        d_q = scale * tl.exp(read)[:, None] * d_q + tl.dot(asked, k_tile, input_precision=PREC)
        d_k = tl.exp(end - cum)[:, None] * d_k
        if DECAY:
            all_ends = tl.exp(end) * tl.sum(at_end, 0) + tl.sum(k_wide * d_k)
            d_g += tl.where(tl.arange(0, C) == length - 1, all_ends, 0.0)
        d_k += tl.dot(tl.trans(asked), q_tile, input_precision=PREC)
        d_predicted = tl.zeros([C], tl.float32)
        if PREDICT:
            b = tl.load(beta + at, mask=exists, other=0.0).to(tl.float32)
            p_tile = load_tile(p, at, exists, K, r, rows, DOT)
            asked = load_tile(d_predict, at, exists, C, tl.arange(0, C), C, DOT)
            d_p = tl.dot(asked, k_tile, input_precision=PREC) - tl.exp(predict)[:, None] * d_p
            of_beta = (b[:, None] * p_tile.to(tl.float32)).to(DOT)
            d_k += tl.dot(tl.trans(asked), of_beta, input_precision=PREC)
            per_beta = tl.sum(p_tile.to(tl.float32) * d_p, 1)
            d_predicted = b * per_beta
            d_p = b[:, None] * d_p
        if DECAY:
            d_reads = tl.sum(q_tile.to(tl.float32) * d_q, 1)
            d_g += d_reads + d_predicted - tl.sum(k_wide * d_k, 1)
            d_g = tl.cumsum(d_g, 0, reverse=True)
            if UNDECAYED:
                d_g -= d_predicted
            if PRE:
                d_g -= d_reads
        if SAME:
            d_k += d_p
    store_tile(dq, at, exists, K, r, d_q)
    store_tile(dk, at, exists, K, r, d_k)
    if PREDICT:
        tl.store(dbeta + T * H + part, per_beta, mask=exists)
        if not SAME:
            store_tile(dp, at, exists, K, r, d_p)
    if DECAY:
        tl.store(dg + part, d_g, mask=exists)
