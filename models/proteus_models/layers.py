"""Pieces that every mixer uses: norms, the short causal convolution, the projections to q, k, v."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proteus_bench.schedules import Capacity
from proteus_models import narrow
from proteus_models.config import ModelConfig
from proteus_models.narrow_inputs import inputs
from proteus_models.narrow_output import ACTIVATIONS, read_out


def l2_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis."""
    if x.dim() == 4 and narrow.pays(x):
        return narrow.unit(x, eps)
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def rotary(x_BTHK: Tensor, start: int | Tensor, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [T, 1, K / 2], of the angles position * base^(-2i/K) at positions start .. start+T-1.

    `start` may be the positions themselves, [T].
    """
    half = x_BTHK.shape[-1] // 2
    # float64: at position 10^6 a float32 angle is off by 0.06
    if isinstance(start, int):
        positions = torch.arange(start, start + x_BTHK.shape[1], dtype=torch.float64, device=x_BTHK.device)
    else:
        positions = start.double()
    rates = base ** (-torch.arange(half, dtype=torch.float64, device=x_BTHK.device) / half)
    angles = positions[:, None, None] * rates
    return angles.cos().to(x_BTHK.dtype), angles.sin().to(x_BTHK.dtype)


class ShortConv(nn.Module):
    """Depthwise causal convolution with SiLU, as shifted products (a CPU conv1d's backward is about 10x slower).

    x_BTD and the last width-1 inputs before it, tail_BWD; returns the output and the new tail.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dim))
        nn.init.constant_(self.weight[-1], 1.0)
        nn.init.normal_(self.weight[:-1], std=0.3)

    def forward(self, x_BTD: Tensor, tail_BWD: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.cat([tail_BWD, x_BTD], 1)
        width, length = self.weight.shape[0], x_BTD.shape[1]
        y = padded[:, :length] * self.weight[0]
        for i in range(1, width):
            y = torch.addcmul(y, padded[:, i : i + length], self.weight[i])
        return nn.functional.silu(y), padded[:, length:]


def key_norm(x_BTHK: Tensor, active: list[int] | None, how: str, eps: float) -> Tensor:
    """Normalise q or k under the three readings of the paper: L2 before the mask, after it, or compensated.

    `active` holds the open key coordinates per position; the kernel masks again, which changes nothing.
    """
    if active is None or how == "before_mask":
        return l2_normalise(x_BTHK, eps)
    dim = x_BTHK.shape[-1]
    n = torch.tensor(active, device=x_BTHK.device)[:, None, None]
    mask = torch.arange(dim, device=x_BTHK.device) < n
    if how == "after_mask":
        return l2_normalise(x_BTHK * mask, eps)
    return l2_normalise(x_BTHK, eps) * mask * (dim / n).sqrt().to(x_BTHK.dtype)


class Projections(nn.Module):
    """q, k, v of all heads through one matrix and one short convolution; q and k normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        h = config.n_heads
        self.sizes = [h * config.head_k, h * config.head_k, h * config.head_v]
        self.linear = nn.Linear(config.d_model, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), config.conv_width)

    def tail(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, self.config.conv_width - 1, sum(self.sizes))

    def forward(
        self, x_BTD: Tensor, tail: Tensor, active: list[int] | None, form: str = "recurrent", raw: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The definition (`form` recurrent) projects everything, the others leave out what is locked where that pays.

        raw: q and k are not normalised.
        """
        c, cap = self.config, self.config.capacity
        on_key = active if cap.axis == "key" else None
        reads, writes = on_key if cap.gate in ("both", "read") else None, on_key if cap.gate == "both" else None
        if form == "recurrent" or not narrow.pays(x_BTD):
            mixed, tail = self.conv(self.linear(x_BTD), tail)
            q, k, v = (t.unflatten(-1, (c.n_heads, -1)) for t in mixed.split(self.sizes, -1))
            if raw:
                return q, k, v, tail
            return key_norm(q, reads, cap.key_norm, c.eps), key_norm(k, writes, cap.key_norm, c.eps), v, tail
        whole = [not raw and (on is None or cap.key_norm == "before_mask") for on in (reads, writes)]  # no mask in the norm
        (q, k, v), tail = inputs(
            x_BTD, self.linear.weight, self.conv.weight, tail, widths=[c.head_k, c.head_k, c.head_v], heads=c.n_heads,
            skipped=skipped(cap, normed=True), axis=cap.axis, active=active, normed=[*whole, False], eps=c.eps,
        )  # fmt: skip
        if raw:
            return q, k, v, tail
        q = q if whole[0] else key_norm(q, reads, cap.key_norm, c.eps)
        k = k if whole[1] else key_norm(k, writes, cap.key_norm, c.eps)
        return q, k, v, tail


def skipped(capacity: Capacity, *, normed: bool) -> list[bool]:
    """Whether the projections to q, k, v need not make locked coordinates: those that nobody reads, predicts or writes with.

    A norm over the whole key (normed, unless key_norm=after_mask) needs all of it. Comba also reads with k.
    """
    reads, writes = capacity.gate in ("both", "read"), capacity.gate in ("both", "write")
    if capacity.axis == "key":
        free = not normed or capacity.key_norm == "after_mask"
        return [free and reads, free and capacity.gate == "both", False]
    if capacity.axis == "head":
        return [reads, reads and writes, writes]
    return [False, False, writes and capacity.axis == "value"]


class GatedOutput(nn.Module):
    """RMSNorm per head, gate from the layer's input, output projection."""

    activation = "silu"
    gated = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.n_heads * config.head_v
        self.norm = nn.RMSNorm(config.head_v, eps=1e-5)
        self.gate = nn.Linear(config.d_model, width, bias=False) if self.gated else None
        self.out = nn.Linear(width, config.d_model, bias=False)

    def forward(self, y_BTHV: Tensor, x_BTD: Tensor, active: list[int] | None = None, axis: str = "value") -> Tensor:
        """`active` (the count along `axis`, value or head) where y is zero beyond it: the rest may be left out."""
        if narrow.pays(x_BTD):
            dim = y_BTHV.shape[3 if axis == "value" else 2]
            cut = narrow.runs(active, dim, (1 + self.gated) * self.out.weight.numel()) or narrow.whole(y_BTHV.shape[1], dim)
            weight = None if self.gate is None else self.gate.weight
            return read_out(y_BTHV, x_BTD, self.norm, weight, self.activation, self.out.weight, cut, axis)
        y = self.norm(y_BTHV).flatten(2)
        return self.out(y if self.gate is None else y * ACTIVATIONS[self.activation][0](self.gate(x_BTD)))
