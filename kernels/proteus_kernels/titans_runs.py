"""From positions to runs of inner chunks: how the chunked forms of both Titans memories lay out their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from proteus_kernels.titans_common import coefficients
from proteus_kernels.titans_dual_forward import Run

Span = tuple[int, int, int, int]
BLOCK = 32
"""Positions of a block of the dual form at least, where the head is narrower; measured, see `block_length`."""


def block_length(size: int, width: int) -> int:
    """Positions per block of a chunk of `size`: a divisor of it, about as many as the head is wide.

    A block costs its length times (position x position) products and one more state: K = 32 runs fastest at 32, K = 128
    undivided. A size without a divisor from 16 up is not divided.
    """
    fitting = [c for c in range(16, max(BLOCK, width) + 1) if size % c == 0]
    return max(fitting, default=size)


def stretches(spans: list[Span], inner: int) -> Iterator[list[Span]]:
    """Neighbours of whole inner chunks, whose inputs are made together; every other piece alone."""
    whole: list[Span] = []
    for span in spans:
        if span[2] == inner:
            whole.append(span)
            continue
        if whole:
            yield whole
        yield [span]
        whole = []
    if whole:
        yield whole


def by_chunk(x: Tensor, size: int) -> Tensor:
    """[B, H, T, D] -> [n, B H, size, D]"""
    return x.unflatten(2, (-1, size)).permute(2, 0, 1, 3, 4).flatten(1, 2).contiguous()


def by_position(y: Tensor, heads: tuple[int, int]) -> Tensor:
    """[n, B H, size, D] -> [B, T, H, D], heads = (B, H)."""
    return y.unflatten(1, heads).permute(1, 0, 3, 2, 4).flatten(1, 2)


@dataclass(frozen=True)
class Factors:
    """What m blocks of c positions take from their gates: carried = (b, f) [m, G, c, 2], mix = G [m, G, c, c], end_rows =
    (G_c, N_c) [m, G, c, 2] and ends = (b_c, f_c, m_c) [m, G, 3]."""

    carried: Tensor
    mix: Tensor
    end_rows: Tensor
    ends: Tensor


def factors_of(gates: Sequence[Tensor], block: int, *, pre: bool) -> Factors:
    """log(1 - alpha), log(eta), theta [B, H, T] in blocks of `block` positions."""
    return _factors([by_chunk(g[..., None], block).squeeze(-1) for g in gates], pre)


def _factors(gates: Sequence[Tensor], pre: bool) -> Factors:
    """Of gates [..., c], with the first dimensions of those."""
    c = coefficients(*gates, pre=pre)
    return Factors(
        carried=torch.stack([c.keep, c.carry], -1),
        mix=c.mix,
        end_rows=torch.stack([c.end_mix, c.end_surprise], -1),
        ends=torch.stack([c.end_keep, c.end_carry, c.end_momentum], -1),
    )


def run_of(q: Tensor, k: Tensor, v: Tensor, gates: Sequence[Tensor], size: int, block: int, *, pre: bool) -> Run:
    """q, k, v [B, H, T, .] and gates as above: chunks of `size` in blocks of `block` positions."""
    log_keep, log_eta, theta = (by_chunk(g[..., None], size).squeeze(-1).unflatten(2, (-1, block)) for g in gates)
    f = _factors([log_keep, log_eta, -theta], pre)  # -theta: every product of a gradient is subtracted
    return Run(
        q=by_chunk(q, size),
        k=by_chunk(k, size),
        minus_v=by_chunk(-v, size),
        carried=f.carried.flatten(2, 3),
        minus_mix=f.mix.flatten(2, 3).contiguous(),
        minus_ends=f.end_rows.flatten(2, 3),
        ends=f.ends,
    )
