"""Titans LMM mixers (Behrouz et al., arXiv 2501.00663, Eq. 8-18): a linear and a two-layer MLP memory."""

from __future__ import annotations

import math
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor, nn

from proteus_kernels import titans_linear, titans_mlp
from proteus_kernels.titans_common import TitansState
from proteus_models.config import ModelConfig
from proteus_models.mixer import Mixer

LMMState = tuple[Tensor, TitansState]
THETA_START = 0.05
"""theta before training. One inner chunk takes all its gradients at one place: 32 similar keys at 0.5 overshoot and oscillate."""


class TitansGates(nn.Module):
    """log(1 - alpha), log(eta) and theta per token and head, all data-dependent."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        h = config.n_heads
        self.theta_max = config.theta_max
        self.linear = nn.Linear(config.d_model, 3 * h)
        with torch.no_grad():
            self.linear.weight.mul_(0.1)
            self.linear.bias[:h].fill_(9.0)  # forgetting starts near 0
            self.linear.bias[h : 2 * h].fill_(-2.0)  # momentum starts small
            start = min(THETA_START / config.theta_max, 0.5)
            self.linear.bias[2 * h :].fill_(math.log(start / (1 - start)))

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep, eta, theta = self.linear(x_BTD).chunk(3, -1)
        log = nn.functional.logsigmoid
        return log(keep), log(eta), self.theta_max * theta.sigmoid()


class TitansMixer(Mixer):
    """x_BTD -> y_BTD; weights, momentum and anchor of the memory are the state. Subclasses name kernel and memory."""

    kernel: ClassVar[ModuleType]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gates = TitansGates(config)

    def memory_start(self, batch: int) -> tuple[Tensor, ...]:
        """M_0, one copy per row of the batch."""
        raise NotImplementedError

    def init_state(self, batch: int) -> LMMState:
        tail = self.projections.tail(batch, self.gates.linear.bias)
        return tail, TitansState.start(self.memory_start(batch))

    def memories(self, state: LMMState) -> tuple[Tensor, ...]:
        return (*state[1].weights, *state[1].momentum)

    def mix(self, x_BTD: Tensor, state: LMMState, active: list[int] | None, form: str) -> tuple[Tensor, LMMState]:
        c, cap = self.config, self.config.capacity
        q, k, v, tail = self.projections(x_BTD, state[0], active)
        self.observe(k, v, active)
        log_keep, log_eta, theta = self.gates(x_BTD)
        y, memory = getattr(self.kernel, form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, log_keep_BTH=log_keep, log_eta_BTH=log_eta, theta_BTH=theta,
            state=state[1], active=active, axis=cap.axis, gate=cap.gate, read=cap.read,
            decay_locked=cap.decay_locked, inner=c.inner,
        )  # fmt: skip
        return y, (tail, memory)


class TitansLinearMixer(TitansMixer):
    """M_BHKV, starting at zero or learned."""

    axes: ClassVar = ("key", "value", "head")
    memory: ClassVar = "matrix"
    kernel: ClassVar = titans_linear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.capacity.m0 == "learned":
            self.m0 = self.learned_start(config.head_k, config.head_v, fan_in=config.head_k)

    def memory_start(self, batch: int) -> tuple[Tensor, ...]:
        c = self.config
        shape = (batch, c.n_heads, c.head_k, c.head_v)
        learned = c.capacity.m0 == "learned"
        return (self.m0.expand(shape) if learned else self.gates.linear.bias.new_zeros(shape),)


class TitansMLPMixer(TitansMixer):
    """W1_BHNK and W2_BHVN, always learned at the start: a zero start has zero gradient."""

    axes: ClassVar = ("hidden",)
    memory: ClassVar = "mlp"
    kernel: ClassVar = titans_mlp

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.capacity.m0 != "learned":
            raise ValueError("an MLP memory needs m0=learned: from a zero start both layers' gradients vanish")
        n = config.memory_hidden
        self.w1 = self.learned_start(n, config.head_k, fan_in=config.head_k)
        self.w2 = self.learned_start(config.head_v, n, fan_in=n)

    def memory_start(self, batch: int) -> tuple[Tensor, ...]:
        return tuple(w.expand(batch, *w.shape) for w in (self.w1, self.w2))

    def predict(self, state: LMMState, k_BTHK: Tensor, n: int) -> Tensor:
        w1, w2 = state[1].weights
        hidden = nn.functional.silu(k_BTHK.transpose(1, 2) @ w1[:, :, :n].mT)
        return (hidden @ w2[..., :n].mT).transpose(1, 2)

    def locked(self, state: LMMState, n: int) -> list[Tensor]:
        dims = (2, 3, 2, 3)  # W1 has a unit a row, W2 a unit a column; then their momenta
        return [x.narrow(dim, n, x.shape[dim] - n) for x, dim in zip(self.memories(state), dims, strict=True)]
