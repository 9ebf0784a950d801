"""The coefficients of one piece of linear Titans as kernels: `titans_common.coefficients` and its gradient.

A piece is at most C positions that cross neither an unlock nor an inner-chunk boundary. With L, E the running sums of
log(1 - alpha) and log(eta) inside it (t, s, i <= t):

    B_ts = exp(L_t - L_s)   N_si = exp(E_s - E_i) theta_i   G = B N   b = exp(L)   m = exp(E)   f = B m

G is made where it is used, one C x C product, and never stored. What a sequential kernel reads is stored as five
rows [5, H, B T]: b, f, m at every position, and the last rows of G and N of the piece. Gates are [H, B T] as well, so
that a program reads neighbours; pieces are rows of the table of `chunks`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def piece_of(table, p, h, N):
    """Where piece p of head h begins in a gate [H, N], and its positions."""
    return h * N + tl.load(table + 4 * p), tl.load(table + 4 * p + 1)


@triton.jit
def load_gate(gate, start, length, C: tl.constexpr):
    """One gate or row of coefficients over a piece, 0 behind its end. [C]."""
    t = tl.arange(0, C)
    return tl.load(gate + start + t, mask=t < length, other=0.0)


@triton.jit
def between(cum, C: tl.constexpr):
    """Product of the factors after s up to t, [t, s]; 0 above the diagonal. `cum` are sums of base-2 logarithms."""
    t = tl.arange(0, C)
    lower = t[:, None] >= t[None, :]
    return tl.where(lower, tl.exp2(tl.where(lower, cum[:, None] - cum[None, :], 0.0)), 0.0)


@triton.jit
def sums_of(gate, start, length, C: tl.constexpr):
    """Running sums of a log gate over a piece, base 2; constant behind its end."""
    return tl.cumsum(load_gate(gate, start, length, C) * LOG2E, 0)


@triton.jit
def mixing(log_keep, log_eta, theta, start, length, C: tl.constexpr, PREC: tl.constexpr):
    """G [t, i] of the piece at `start` of one head's gates, float32."""
    keep = between(sums_of(log_keep, start, length, C), C)
    surprise = between(sums_of(log_eta, start, length, C), C) * load_gate(theta, start, length, C)[None, :]
    return tl.dot(keep, surprise, input_precision=PREC)


@triton.jit
def load_ends(rows, plane, at):
    """b, f, m at the position `at` of `rows`, the last of a piece: scalars."""
    return tl.load(rows + at), tl.load(rows + plane + at), tl.load(rows + 2 * plane + at)


@triton.jit
def gates_forward(log_keep, log_eta, theta, table, rows, N, C: tl.constexpr):
    """The five rows of N = B T positions; grid (pieces, H)."""
    start, length = piece_of(table, tl.program_id(0), tl.program_id(1), N)
    t = tl.arange(0, C)
    real, last = t < length, t == length - 1
    cum_keep, cum_eta = sums_of(log_keep, start, length, C), sums_of(log_eta, start, length, C)
    m = tl.exp2(cum_eta)
    surprise = between(cum_eta, C) * load_gate(theta, start, length, C)[None, :]
    to_last = tl.exp2(tl.sum(tl.where(last, cum_keep, 0.0), 0) - cum_keep)  # the last row of B
    to_last = tl.where(real, to_last, 0.0)
    at, plane = rows + start + t, tl.num_programs(1) * N
    tl.store(at, tl.exp2(cum_keep), mask=real)
    tl.store(at + plane, tl.sum(between(cum_keep, C) * m[None, :], 1), mask=real)
    tl.store(at + 2 * plane, m, mask=real)
    tl.store(at + 3 * plane, tl.sum(to_last[:, None] * surprise, 0), mask=real)
    tl.store(at + 4 * plane, tl.sum(tl.where(last[:, None], surprise, 0.0), 0), mask=real)


@triton.jit
def gates_backward(
    log_keep, log_eta, theta, table, d_mix, d_rows, d_ends, d_log_keep, d_log_eta, d_theta, N,
    C: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Gradients of the three gates [H, N]; grid (pieces, H).

    d_mix [pieces, H, C, C] of G; d_rows [4, H, N] of b, f and the last rows of G and N; d_ends [pieces, H, 4] of the last
    b, f and m.
    """
    p, h, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    start, length = piece_of(table, p, h, N)
    plane, t = heads * N, tl.arange(0, C)
    real, last = t < length, t == length - 1
    ends, own = d_ends + (p * heads + h) * 4, d_mix + (p * heads + h) * C * C
    cum_keep, cum_eta = sums_of(log_keep, start, length, C), sums_of(log_eta, start, length, C)
    keep, eta, m = between(cum_keep, C), between(cum_eta, C), tl.exp2(cum_eta)
    rate = load_gate(theta, start, length, C)
    d_g = tl.load(own + t[:, None] * C + t[None, :])
    d_g += tl.where(last[:, None], load_gate(d_rows + 2 * plane, start, length, C)[None, :], 0.0)
    d_n = tl.dot(tl.trans(keep), d_g, input_precision=PREC)
    d_n += tl.where(last[:, None], load_gate(d_rows + 3 * plane, start, length, C)[None, :], 0.0)
    d_b = load_gate(d_rows, start, length, C) + tl.where(last, tl.load(ends), 0.0)
    d_f = load_gate(d_rows + plane, start, length, C) + tl.where(last, tl.load(ends + 1), 0.0)
    d_m = tl.sum(d_f[:, None] * keep, 0) + tl.where(last, tl.load(ends + 2), 0.0)
    by_keep = tl.dot(d_g, tl.trans(eta * rate[None, :]), input_precision=PREC)
    by_keep = (by_keep + d_f[:, None] * m[None, :]) * keep
    d_cum_keep = tl.sum(by_keep, 1) - tl.sum(by_keep, 0) + d_b * tl.exp2(cum_keep)
    by_eta = d_n * eta
    d_rate = tl.sum(by_eta, 0)
    d_cum_eta = tl.sum(by_eta * rate[None, :], 1) - d_rate * rate + d_m * m
    at = start + t
    tl.store(d_theta + at, d_rate, mask=real)
    tl.store(d_log_keep + at, tl.cumsum(tl.where(real, d_cum_keep, 0.0), 0, reverse=True), mask=real)
    tl.store(d_log_eta + at, tl.cumsum(tl.where(real, d_cum_eta, 0.0), 0, reverse=True), mask=real)
