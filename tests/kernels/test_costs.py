"""The formulas give the values that the literature and the kernels' shapes give."""

from __future__ import annotations

import pytest

from proteus_kernels import costs, dispatch

BANDWIDTH, RATE = 4.3e12, 790e12  # H200: bytes and bf16 FLOPs a second
MILLION = 2**20  # token-heads: B = 8, T = 8192, H = 16


@pytest.mark.parametrize(
    ("k", "v", "forward", "backward", "moved", "least", "unfused_ms", "bound_ms", "backward_ms"),
    [
        (64, 64, 66.9, 204.8, 2688, 520, 0.66, 0.13, 1.31),
        (128, 128, 181.6, 524.3, 5120, 1032, 1.25, 0.25, 2.81),
        (256, 256, 558.4, 1556, 11520, 2056, 2.81, 0.74, 6.55),
        (256, 512, 1017, 2769, 18688, 3080, 4.56, 1.35, 10.4),
    ],
)
def test_the_delta_rule_at_chunk_64(
    k: int, v: int, forward: float, backward: float, moved: float, least: float,
    unfused_ms: float, bound_ms: float, backward_ms: float,
) -> None:  # fmt: skip
    """kFLOPs and bytes a token-head, milliseconds of 2^20 of them: unfused, bound of a fused kernel, unfused backward."""
    f, b = costs.delta(k, v, 64), costs.delta_backward(k, v, 64)
    assert (f.moved, f.least) == (moved, least)
    assert f.flops / 1e3 == pytest.approx(forward, rel=5e-4) and b.flops / 1e3 == pytest.approx(backward, rel=5e-4)
    assert 1e3 * MILLION * f.moved / BANDWIDTH == pytest.approx(unfused_ms, abs=0.01)
    assert 1e3 * MILLION * max(f.least / BANDWIDTH, f.flops / RATE) == pytest.approx(bound_ms, abs=0.01)
    assert 1e3 * MILLION * b.moved / BANDWIDTH == pytest.approx(backward_ms, abs=0.04)


def test_titans_counts_its_products() -> None:
    """K = 4, V = 8, C = 2: K A, Q M, Q S, two writes; Q K^T, (..) E; a third of C x C x C for B N."""
    products = [2 * 4 * 8] * 5 + [2 * 2 * 4, 2 * 2 * 8]
    assert costs.titans(4, 8, 2).flops == pytest.approx(sum(products) + 2 * 2 / 3)


@pytest.mark.parametrize("op", costs.FORMULAS)
def test_a_schedule_costs_its_mean(op: str) -> None:
    """Formulas are linear in K: the mean over 16 blocks is the cost at 17/32 of K, cheaper than static by the mean alone."""
    assert op in dispatch.OPS
    for formula in costs.FORMULAS[op]:
        mean = sum(formula(8 * n, 128, 64).flops for n in range(1, 17)) / 16
        assert mean == pytest.approx(formula(128 * 17 / 32, 128, 64).flops)
        assert formula(128, 128, 64).least < formula(128, 128, 64).moved
