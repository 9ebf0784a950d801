"""The chunked delta rule, forward: three kernels. With the notation of `proteus_kernels.wy`, per head and chunk

    T = (I + A)^{-1},  A = tril(beta (P K^T) exp(P_i - L_j), -1)                       `solve`, every chunk apart
    D = T beta (V - e^P P S),   S' = e^{L_C} S + (e^{L_C - L} K)^T D                   `carry`, one chunk after another
    Y = scale (e^R Q S + (Q K^T . exp(R_i - L_j)) D)                                   `output`, every chunk apart

so neither W = T beta e^P P nor U = T beta V is ever made: the carry multiplies by T instead, 2CV FLOPs a position for
the 2CK + 2CV and the memory traffic of making and reading both. A rule that predicts nothing has D = V and no `solve`.

Locked key rows take part in no product and their rows of S stand still in the carry's registers; a tile of locked value
columns and a locked head do nothing but write the zeros of Y. The state that each chunk starts from is stored, open rows
alone, in the type of the products; inside the carry it is fp32.
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
def unit_lower_inverse(a, C: tl.constexpr, PREC: tl.constexpr):
    """(I + a)^{-1} for strictly lower a [C, C].

    Blocks of 16 on the diagonal by forward substitution, row `step` of all blocks at once (their columns are disjoint, so
    one sum over rows serves all); then pairs of inverted blocks join, T <- T - T a_off T, until one is left.
    """
    i = tl.arange(0, C)[:, None]
    j = tl.arange(0, C)[None, :]
    own_block = i // 16 == j // 16
    inverse = tl.where(own_block, -a, 0.0)
    for step in range(1, 16):
        is_row = i % 16 == step
        row = tl.sum(tl.where(is_row, inverse, 0.0), 0)
        row += tl.sum(row[:, None] * inverse, 0)
        inverse = tl.where(is_row & own_block, row[None, :], inverse)
    inverse += tl.where(i == j, 1.0, 0.0)
    for level in tl.static_range(4):
        width = 16 << level
        if width < C:
            joined = (i // (2 * width) == j // (2 * width)) & (i // width != j // width)
            off = tl.dot(inverse, tl.where(joined, a, 0.0), input_precision=PREC)
            inverse -= tl.dot(off, inverse, input_precision=PREC)
    return inverse


@triton.jit
def solve(
    k, p, g, beta, table, inverse,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, UNDECAYED: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """inverse [T, H, C]: row i of each chunk's T. Grid (chunks, heads)."""
    head = tl.program_id(1)
    start, length, rows, _open_columns = open_part(table, tl.program_id(0), head, K, V, AXIS)
    if rows > 0:
        at, exists = positions(start, length, head, H, C)
        cum, _read, predict, _end = log_decays(g, at, exists, C, DECAY, False, UNDECAYED)
        b = tl.load(beta + at, mask=exists, other=0.0).to(tl.float32)
        a = scores(p, k, at, exists, K, rows, C, BK, DOT, PREC)
        a = a * b[:, None] * causal_decay(predict, cum, C, True)
        store_tile(inverse, at, exists, C, tl.arange(0, C), unit_lower_inverse(a, C, PREC))


@triton.jit
def carry(
    k, p, v, g, beta, inverse, initial, table, first, states, delta, final,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, UNDECAYED: tl.constexpr, PREDICT: tl.constexpr, FINAL: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """states [chunks, H, K, V] at the chunks' starts, delta D [T, H, V], final [N, H, K, V]. Grid (V tiles, H, N).

    The NK tiles of S are a tuple of registers, so a locked tile is jumped over whole.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    columns = tl.program_id(0) * BV + tl.arange(0, BV)
    state = ()
    for i in tl.static_range(NK):
        r = i * BK + tl.arange(0, BK)
        state += (load_state(initial, sequence, head, H, K, V, r, K, columns, V, tl.float32),)
    for chunk in range(tl.load(first + sequence), tl.load(first + sequence + 1)):
        start, length, rows, open_columns = open_part(table, chunk, head, K, V, AXIS)
        if tl.program_id(0) * BV < open_columns:
            at, exists = positions(start, length, head, H, C)
            cum, _read, predict, end = log_decays(g, at, exists, C, DECAY, False, UNDECAYED)
            d = load_tile(v, at, exists, V, columns, open_columns, DOT)
            predicted = tl.zeros([C, BV], tl.float32)
            for i in tl.static_range(NK):
                if i * BK < rows:
                    r = i * BK + tl.arange(0, BK)
                    seen = state[i].to(DOT)
                    store_state(states, chunk, head, H, K, V, r, rows, columns, open_columns, seen)
                    if PREDICT:
                        predicted += tl.dot(load_tile(p, at, exists, K, r, rows, DOT), seen, input_precision=PREC)
            if PREDICT:
                b = tl.load(beta + at, mask=exists, other=0.0).to(tl.float32)
                error = b[:, None] * (d.to(tl.float32) - tl.exp(predict)[:, None] * predicted)
                solved = load_tile(inverse, at, exists, C, tl.arange(0, C), C, DOT)
                error = tl.where((columns < open_columns)[None, :], error, 0.0).to(DOT)
                d = tl.dot(solved, error, input_precision=PREC).to(DOT)
                store_tile(delta, at, exists, V, columns, d)
            to_end = (tl.exp(end - cum)[:, None] * d.to(tl.float32)).to(DOT)
            moved = ()
            for i in tl.static_range(NK):
                tile = state[i]
                if i * BK < rows:
                    r = i * BK + tl.arange(0, BK)
                    k_tile = load_tile(k, at, exists, K, r, rows, DOT)
                    tile *= keep_locked(tl.exp(end), r, rows, columns, open_columns, AXIS)
                    tile += tl.dot(tl.trans(k_tile), to_end, input_precision=PREC)
                moved += (tile,)
            state = moved
    if FINAL:
        for i in tl.static_range(NK):
            r = i * BK + tl.arange(0, BK)
            store_state(final, sequence, head, H, K, V, r, K, columns, V, state[i])


@triton.jit
def output(
    q, k, delta, g, states, table, y, scale,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    AXIS: tl.constexpr, DECAY: tl.constexpr, PRE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, DOT: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """y [T, H, V]. Grid (chunks, heads, V tiles)."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.program_id(2) * BV + tl.arange(0, BV)
    start, length, rows, open_columns = open_part(table, chunk, head, K, V, AXIS)
    at, exists = positions(start, length, head, H, C)
    read_y = tl.zeros([C, BV], tl.float32)
    if tl.program_id(2) * BV < open_columns:
        cum, read, _predict, _end = log_decays(g, at, exists, C, DECAY, PRE, False)
        qk = tl.zeros([C, C], tl.float32)
        for begin in range(0, rows, BK):
            r = begin + tl.arange(0, BK)
            q_tile = load_tile(q, at, exists, K, r, rows, DOT)
            k_tile = load_tile(k, at, exists, K, r, rows, DOT)
            tile = load_state(states, chunk, head, H, K, V, r, rows, columns, open_columns, DOT)
            read_y += tl.dot(q_tile, tile, input_precision=PREC)
            qk += tl.dot(q_tile, tl.trans(k_tile), input_precision=PREC)
        d = load_tile(delta, at, exists, V, columns, open_columns, DOT)
        inner = (qk * causal_decay(read, cum, C, PRE)).to(DOT)
        read_y = scale * (tl.exp(read)[:, None] * read_y + tl.dot(inner, d, input_precision=PREC))
    store_tile(y, at, exists, V, columns, read_y)
