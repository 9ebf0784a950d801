"""FLOPs and bytes of the recurrences by formula, per token and head: what measured times are divided by.

A multiply-add is two FLOPs; C is the chunk (Titans: the inner chunk); 16-bit inputs, float32 gates. Products inside a chunk
count whole C x C matrices, those of two triangular ones a third. Every formula is a sum of products of K and V, so the
mean cost under a schedule is the cost at the mean number of open key rows or value columns; K and V may be fractions.

The delta family's are those of the public unfused kernels (one kernel a product), Titans' those of our kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """FLOPs, bytes moved when every kernel reads and writes its own tensors, and bytes that no kernel could avoid."""

    flops: float
    moved: float
    least: float


def delta(K: float, V: float, C: int) -> Cost:
    """Gated DeltaNet and Comba, forward."""
    return Cost(
        flops=6 * C * K + 4 * C * V + 6 * K * V + C * C / 3,
        moved=14 * K + 12 * V + 12 * C + 4 * K * V / C,
        least=4 * K + 4 * V + 8,
    )


def delta_backward(K: float, V: float, C: int) -> Cost:
    """W, U and the states are made again."""
    return Cost(
        flops=20 * C * K + 10 * C * V + 16 * K * V + 4 * C * C,
        moved=42 * K + 30 * V + 4 * C + 8 * K * V / C,
        least=8 * K + 6 * V + 16,
    )


def linear(K: float, V: float, C: int) -> Cost:
    """A Hebbian write (RetNet, one tap of SWLA), forward: no prediction, so no system to solve."""
    return Cost(flops=2 * C * K + 2 * C * V + 4 * K * V, moved=6 * K + 6 * V + 4 * K * V / C + 8, least=4 * K + 4 * V + 4)


def linear_backward(K: float, V: float, C: int) -> Cost:
    """The states are made again."""
    least = 8 * K + 6 * V + 8
    return Cost(
        flops=8 * C * K + 4 * C * V + 12 * K * V, moved=linear(K, V, C).moved + least + 8 * K * V / C, least=least
    )


def titans(K: float, V: float, C: int) -> Cost:
    """Linear Titans, forward: prediction, two reads and two writes of K x V, one product B N."""
    return Cost(
        flops=2 * C * K + 2 * C * V + 10 * K * V + C * C / 3,
        moved=6 * K + 8 * V + 8 * K * V / C + 72,
        least=4 * K + 4 * V + 12,
    )


def titans_backward(K: float, V: float, C: int) -> Cost:
    """States are kept, not made again; G is made twice."""
    return Cost(
        flops=8 * C * K + 4 * C * V + 20 * K * V + 4 * C * C / 3,
        moved=16 * K + 16 * V + 12 * K * V / C + 8 * C + 132,
        least=8 * K + 6 * V + 24,
    )


Formula = Callable[[float, float, int], Cost]
FORMULAS: dict[str, tuple[Formula, Formula]] = {
    "delta": (delta, delta_backward),
    "comba": (delta, delta_backward),
    "linear": (linear, linear_backward),
    "titans_linear": (titans, titans_backward),
}
"""Forward and backward by the op's name in `dispatch`."""
