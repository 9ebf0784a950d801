"""RetNet mixer (Sun et al., arXiv 2307.08621) over `proteus_kernels.linear`: one tap and a fixed decay per head.

gamma_h = 1 - 2^(-5-h) for h = 0, 1, ...: heads remember longer and longer, so on the head axis a schedule opens the short
memories first. q and k turn with the absolute position. Coordinates 2i and 2i+1 make a pair (INTERLEAVED): a prefix of
the key axis then holds whole pairs and q_t . k_s still depends on t - s alone. Pairs of i and i + K/2, as in the public
layer, would lose that under every prefix but the whole. A block that cuts a pair is refused.

No convolution, no key norm: what `key_norm` chooses does not exist here, and any choice but the literal one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proteus_bench.schedules import CapacityError
from proteus_kernels import dispatch
from proteus_kernels.linear import LinearState
from proteus_models import narrow
from proteus_models.config import ModelConfig
from proteus_models.layers import rotary, skipped
from proteus_models.mixer import MatrixMixer
from proteus_models.narrow_inputs import inputs


@dataclass(frozen=True, kw_only=True)
class RetNetState:
    """S_BHKV, and how many tokens came before: the position that the next one is turned to."""

    memory: Tensor
    position: int = 0


def rotate_pairs(x_BTHK: Tensor, start: int, base: float) -> Tensor:
    """Turn the pairs (x_{2i}, x_{2i+1}) at positions start .. start+T-1 by position * base^(-2i/K)."""
    cos, sin = rotary(x_BTHK, start, base)
    a, b = x_BTHK.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class RotaryProjections(nn.Module):
    """q and k, turned to their positions, and v of all heads through one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.sizes = [config.n_heads * n for n in (config.head_k, config.head_k, config.head_v)]
        self.linear = nn.Linear(config.d_model, sum(self.sizes), bias=False)

    def forward(
        self, x_BTD: Tensor, position: int, active: list[int] | None = None, form: str = "recurrent"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`form`, `active`: as in `layers.Projections`. A prefix of the key holds whole pairs, so nothing locked turns into it."""
        c = self.config
        if form == "recurrent" or not narrow.pays(x_BTD):
            q, k, v = (t.unflatten(-1, (c.n_heads, -1)) for t in self.linear(x_BTD).split(self.sizes, -1))
        else:
            (q, k, v), _ = inputs(
                x_BTD, self.linear.weight, None, None, widths=[c.head_k, c.head_k, c.head_v], heads=c.n_heads,
                skipped=skipped(c.capacity, normed=False), axis=c.capacity.axis, active=active,
                normed=[False] * 3,
            )  # fmt: skip
        return rotate_pairs(q, position, c.rope_base), rotate_pairs(k, position, c.rope_base), v


class RetNetMixer(MatrixMixer):
    """x_BTD -> y_BTD; RMSNorm per head and a SiLU gate behind the retention."""

    def make_projections(self, config: ModelConfig) -> nn.Module:
        return RotaryProjections(config)

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        cap = config.capacity
        if config.head_k % 2:
            raise ValueError(f"rotary positions turn pairs of key coordinates: head_k must be even, got {config.head_k}")
        if cap.is_static:
            return
        if cap.key_norm != "before_mask":
            raise CapacityError(f"retnet does not normalise its keys: key_norm={cap.key_norm} has no meaning")
        if cap.axis == "key" and cap.block_size(config.head_k) % 2:
            raise CapacityError(
                f"retnet turns pairs of key coordinates: {cap.blocks} blocks of a key of {config.head_k} cut a pair; "
                "take fewer blocks or another axis"
            )

    def init_state(self, batch: int) -> RetNetState:
        return RetNetState(memory=self.matrix_start(batch))

    def memories(self, state: RetNetState) -> tuple[Tensor, ...]:
        return (state.memory,)

    def log_decay(self, like: Tensor) -> Tensor:
        """log gamma_H in float64, then in the type of `like`."""
        heads = torch.arange(self.config.n_heads, dtype=torch.float64, device=like.device)
        return torch.log1p(-(2.0 ** (-5 - heads))).to(like.dtype)

    def mix(
        self, x_BTD: Tensor, state: RetNetState, active: list[int] | None, form: str
    ) -> tuple[Tensor, RetNetState]:
        q, k, v = self.projections(x_BTD, state.position, active, form)
        self.observe(k, v, active)
        y, end = dispatch.kernel("linear", form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, log_decay_BTH=self.log_decay(v).expand(*v.shape[:3]),
            state=LinearState(memory_BHKV=state.memory), **self.choices(active, form),
        )  # fmt: skip
        return y, RetNetState(memory=end.memory_BHKV, position=state.position + x_BTD.shape[1])
