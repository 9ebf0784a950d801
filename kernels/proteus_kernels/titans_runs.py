"""From positions to runs of inner chunks: how the chunked forms of both Titans memories lay out their inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from proteus_kernels.titans_common import coefficients
from proteus_kernels.titans_dual_forward import Run
from proteus_kernels.titans_group import Factors

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


def factors_of(gates: Sequence[Tensor], size: int, block: int, *, pre: bool) -> Factors:
    """log(1 - alpha), log(eta), theta [B, H, T]: chunks of `size` in blocks of `block` positions."""
    log_keep, log_eta, theta = (by_chunk(g[..., None], size).squeeze(-1).unflatten(2, (-1, block)) for g in gates)
    c = coefficients(log_keep, log_eta, -theta, pre=pre)  # -theta: every product of a gradient is subtracted
    return Factors(
        carried=torch.stack([c.keep, c.carry], -1).flatten(2, 3),
        minus_mix=c.mix.flatten(2, 3).contiguous(),
        minus_ends=torch.stack([c.end_mix, c.end_surprise], -1).flatten(2, 3),
        ends=torch.stack([c.end_keep, c.end_carry, c.end_momentum], -1),
    )


def run_of(q: Tensor, k: Tensor, v: Tensor, gates: Sequence[Tensor], size: int, block: int, *, pre: bool) -> Run:
    """q, k, v [B, H, T, .] and gates as for `factors_of`."""
    q, k, minus_v = (by_chunk(x, size) for x in (q, k, -v))
    return Run(q=q, k=k, minus_v=minus_v, **vars(factors_of(gates, size, block, pre=pre)))
