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

import torch
from torch import Tensor

from proteus_kernels.masks import segments


@dataclass(frozen=True, kw_only=True)
class TitansState:
    """Weights, momentum and anchor (same shapes, tuples of [B, H, ., .]), and positions since the anchor."""

    weights: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]
    anchor: tuple[Tensor, ...]
    offset: int = 0

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
    size = theta.shape[-1]
    causal = torch.ones(size, size, dtype=torch.bool, device=theta.device).tril()

    def products(log: Tensor) -> tuple[Tensor, Tensor]:
        cum = log.cumsum(-1)
        between = (cum[..., :, None] - cum[..., None, :]).masked_fill(~causal, -torch.inf).exp()
        return cum.exp(), between

    b, big_b = products(log_keep)
    m, between = products(log_eta)
    surprise = between * theta[..., None, :]
    carry = (big_b @ m[..., None]).squeeze(-1)
    mix = big_b @ surprise
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
        end_mix=mix[..., -1, :],
        end_momentum=m[..., -1],
        end_surprise=surprise[..., -1, :],
    )


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
