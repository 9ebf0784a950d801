"""What linear and MLP Titans memories share: the state, the inner-chunk grid, the coefficient matrices.

Titans LMM (Behrouz et al., "Titans: Learning to Memorize at Test Time", Eq. 8-18): with surprise momentum S and memory M

    S_t = eta_t S_{t-1} - theta_t grad l(M_{t'}; k_t, v_t)      l = ||M(k) - v||^2 / 2, the factor 2 is inside theta
    M_t = (1 - alpha_t) M_{t-1} + S_t

t' is the start of the inner chunk of t (the paper's mini-batch b): the gradient is taken at the ANCHOR weights M_{t'}.
The grid of inner chunks is part of the model, so the state carries the anchor and the offset in the running chunk; a
pass that is cut anywhere continues exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from proteus_kernels.masks import segments
from proteus_kernels.pieces import between


@dataclass(frozen=True, kw_only=True)
class TitansState:
    """Weights, momentum and anchor (same shapes, tuples of [B, H, ., .]), and positions since the anchor."""

    weights: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]
    anchor: tuple[Tensor, ...]
    offset: int = 0
    constant: bool = False
    """Where these tensors were computed, what is locked came from constants: the gradient ends there (a leaf asks for its own)."""

    @staticmethod
    def start(weights: tuple[Tensor, ...]) -> TitansState:
        return TitansState(weights=weights, momentum=tuple(map(torch.zeros_like, weights)), anchor=weights)


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Closed form of one inner chunk: M_t = b_t M_0 + f_t S_0 - sum_i G_ti grad_i and S_t = m_t S_0 - sum_i N_ti grad_i.

    `keep`, `carry`, `mix` are those rows at the read index (t, or t-1 for read="pre"); `end_*` the last rows. [..., C].
    """

    keep: Tensor
    carry: Tensor
    mix: Tensor
    end_keep: Tensor
    end_carry: Tensor
    end_mix: Tensor
    end_momentum: Tensor
    end_surprise: Tensor


def coefficients(log_keep: Tensor, log_eta: Tensor, theta: Tensor, *, pre: bool) -> Coefficients:
    """Coefficient rows for chunks in the last axis, from log(1-alpha), log(eta) and theta [..., C]."""
    b, carry, mix, m, end_mix, end_surprise = _ClosedForm.apply(log_keep, log_eta, theta)
    if pre:
        rows = (
            _shift(b, 1.0),
            _shift(carry, 0.0),
            torch.cat([torch.zeros_like(mix[..., :1, :]), mix[..., :-1, :]], -2),
        )
    else:
        rows = (b, carry, mix)
    return Coefficients(
        keep=rows[0],
        carry=rows[1],
        mix=rows[2],
        end_keep=b[..., -1],
        end_carry=carry[..., -1],
        end_mix=end_mix,
        end_momentum=m[..., -1],
        end_surprise=end_surprise,
    )


class _ClosedForm(torch.autograd.Function):
    """b, f = B m, G = B N, m, and the last rows of G and N; B_ts, E_ts = prod of keep, eta in (s, t], N_ti = E_ti theta_i.

    By hand because autograd walks the C x C matrices about three times as often; the last rows are outputs of their own
    because the backward of a slice fills a whole matrix.
    """

    @staticmethod
    def forward(ctx: Any, log_keep: Tensor, log_eta: Tensor, theta: Tensor) -> tuple[Tensor, ...]:
        cum_keep, cum_eta = log_keep.cumsum(-1), log_eta.cumsum(-1)
        big_b, big_e, b, m = between(cum_keep, cum_keep, 0), between(cum_eta, cum_eta, 0), cum_keep.exp(), cum_eta.exp()
        surprise = big_e * theta[..., None, :]
        carry, mix = (big_b @ m[..., None]).squeeze(-1), big_b @ surprise
        ctx.save_for_backward(big_b, big_e, surprise, b, m, theta)
        return b, carry, mix, m, mix[..., -1, :].clone(), surprise[..., -1, :].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_b, d_carry, d_mix, d_m, d_end_mix, d_end_surprise = grads
        big_b, big_e, surprise, b, m, theta = ctx.saved_tensors
        d_mix = d_mix.clone()
        d_mix[..., -1, :] += d_end_mix
        d_surprise = big_b.mT @ d_mix
        d_surprise[..., -1, :] += d_end_surprise
        by_keep = (d_mix @ surprise.mT).addcmul_(d_carry[..., None], m[..., None, :]).mul_(big_b)
        by_eta = d_surprise.mul_(big_e)
        d_theta = by_eta.sum(-2)
        d_m = d_m + (d_carry[..., None, :] @ big_b).squeeze(-2)
        d_cum_keep = by_keep.sum(-1) - by_keep.sum(-2) + d_b * b
        d_cum_eta = (by_eta @ theta[..., None]).squeeze(-1) - d_theta * theta + d_m * m
        return _reversed_sum(d_cum_keep), _reversed_sum(d_cum_eta), d_theta


def _reversed_sum(x: Tensor) -> Tensor:
    """Sum of this and all later entries: the gradient of a cumulative sum."""
    return x.flip(-1).cumsum(-1).flip(-1)


def _shift(x: Tensor, first: float) -> Tensor:
    return torch.cat([torch.full_like(x[..., :1], first), x[..., :-1]], -1)


def pieces(
    active: Sequence[int] | None, length: int, dim: int, inner: int, offset: int
) -> Iterator[tuple[int, int, int, int]]:
    """(start, stop, size, active): runs of equal pieces that cross neither an unlock nor an inner-chunk boundary."""
    for start, stop, n in segments(active, length, dim):
        t = start
        while t < stop:
            into = (offset + t) % inner
            whole = (stop - t) // inner * inner
            if into == 0 and whole:
                yield t, t + whole, inner, n
                t += whole
            else:
                end = min(stop, t + inner - into)
                yield t, end, end - t, n
                t = end
