"""Titans LMM mixers (Behrouz et al., arXiv 2501.00663, Eq. 8-18): a linear memory, and an MLP of one to four layers."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from proteus_kernels import dispatch, titans_mlp
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

    kernel: str

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gates = TitansGates(config)
        self.make_memory(config)

    def make_memory(self, config: ModelConfig) -> None:
        """The parameters of M_0."""
        raise NotImplementedError

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
        q, k, v, tail = self.projections(x_BTD, state[0], active, form)
        self.observe(k, v, active)
        log_keep, log_eta, theta = self.gates(x_BTD)
        y, memory = dispatch.kernel(self.kernel, form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, log_keep_BTH=log_keep, log_eta_BTH=log_eta, theta_BTH=theta,
            state=state[1], active=active, axis=cap.axis, gate=cap.gate, read=cap.read,
            decay_locked=cap.decay_locked, inner=c.inner,
        )  # fmt: skip
        return y, (tail, memory)


class TitansLinearMixer(TitansMixer):
    """M_BHKV, starting at zero or learned."""

    axes: ClassVar[tuple[str, ...]] = ("key", "value", "head")
    memory: ClassVar = "matrix"
    kernel = "titans_linear"

    def make_memory(self, config: ModelConfig) -> None:
        if config.capacity.m0 == "learned":
            self.m0 = self.learned_start(config.head_k, config.head_v, fan_in=config.head_k)

    def memory_start(self, batch: int) -> tuple[Tensor, ...]:
        c = self.config
        shape = (batch, c.n_heads, c.head_k, c.head_v)
        learned = c.capacity.m0 == "learned"
        return (self.m0.expand(shape) if learned else self.gates.linear.bias.new_zeros(shape),)


class TitansMLPMixer(TitansLinearMixer):
    """`memory_depth` layers of `memory_hidden` units, W_1 [B, H, N, K] .. W_L [B, H, V, N], learned at the start.

    One layer has no hidden units: it is the linear memory, and its axes are those of a matrix.
    """

    axes: ClassVar = ("hidden",)
    memory: ClassVar = "mlp"

    @classmethod
    def axes_of(cls, config: ModelConfig) -> tuple[str, ...]:
        return TitansLinearMixer.axes if config.memory_depth == 1 else cls.axes

    def make_memory(self, config: ModelConfig) -> None:
        if config.memory_depth == 1:
            super().make_memory(config)
            return
        if config.capacity.m0 != "learned":
            raise ValueError("an MLP memory needs m0=learned: from a zero start the gradients of all layers vanish")
        self.kernel = "titans_mlp"
        widths = [config.head_k, *[config.memory_hidden] * (config.memory_depth - 1), config.head_v]
        for i, (d_in, d_out) in enumerate(pairwise(widths), 1):
            setattr(self, f"w{i}", self.learned_start(d_out, d_in, fan_in=d_in))

    def memory_start(self, batch: int) -> tuple[Tensor, ...]:
        if self.config.memory_depth == 1:
            return super().memory_start(batch)
        layers = [getattr(self, f"w{i + 1}") for i in range(self.config.memory_depth)]
        return tuple(w.expand(batch, *w.shape) for w in layers)

    def predict(self, state: LMMState, k_BTHK: Tensor, n: int) -> Tensor:
        if self.config.memory_depth == 1:
            return super().predict(state, k_BTHK, n)
        x, (first, *between, last) = k_BTHK.transpose(1, 2), state[1].weights
        for layer in (first[:, :, :n], *(w[:, :, :n, :n] for w in between)):
            x = nn.functional.silu(x @ layer.mT)
        return (x @ last[..., :n].mT).transpose(1, 2)

    def locked(self, state: LMMState, n: int) -> list[Tensor]:
        depth = self.config.memory_depth
        if depth == 1:
            return super().locked(state, n)
        parts: list[Tensor] = []
        for i, x in enumerate(self.memories(state)):  # weights, then momenta, layer by layer
            layer = i % depth
            if layer < depth - 1:
                parts.append(x[:, :, n:])
            if layer:
                parts.append(x[..., n:] if layer == depth - 1 else x[:, :, :n, n:])
        return parts


def mean_active(config: ModelConfig) -> dict[str, float]:
    """How much of the scheduled memory is open over the span, on average: of its axis, and of its parameters.

    Schedules are compared by the first. The second differs for hidden units of three layers or more, where an open unit
    meets only open units: those parameters grow with the square. It is left out where the data decide.
    """
    capacity, depth = config.capacity, config.memory_depth
    found = {"axis": capacity.mean_active_fraction()}
    if capacity.axis != "hidden" or depth < 3 or not config.mixer.startswith("titans"):
        return found | {"parameters": found["axis"]}
    if capacity.is_data_dependent:
        return found
    n = config.memory_hidden
    units, times = np.unique(capacity.active_coords_range(0, capacity.span, n), return_counts=True)
    shape = {"hidden": n, "key": config.head_k, "value": config.head_v, "depth": depth}
    shares = [titans_mlp.parameter_fraction(int(u), **shape) for u in units]
    return found | {"parameters": float(np.average(shares, weights=times))}
