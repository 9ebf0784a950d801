"""Gated DeltaNet mixer (Yang et al., arXiv 2412.06464) over `proteus_kernels.delta`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proteus_kernels import dispatch
from proteus_models.config import ModelConfig
from proteus_models.mixer import MatrixMixer

GDNState = tuple[Tensor, Tensor]  # convolution tail, S_BHKV in fp32 (or fp64 in an fp64 model)


class GDNMixer(MatrixMixer):
    """x_BTD -> y_BTD. log decay = -exp(A) softplus(W_a x + dt), beta = sigmoid(W_b x), per head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        h = config.n_heads
        self.gates = nn.Linear(config.d_model, 2 * h)
        self.log_rate = nn.Parameter(torch.zeros(h))
        with torch.no_grad():  # decay starts near 1 (a half-life of about 5,000 tokens) and beta at one half
            self.gates.weight.mul_(0.1)
            self.gates.bias[:h].fill_(-9.0)
            self.gates.bias[h:].zero_()

    def init_state(self, batch: int) -> GDNState:
        return self.projections.tail(batch, self.log_rate), self.matrix_start(batch)

    def mix(self, x_BTD: Tensor, state: GDNState, active: list[int] | None, form: str) -> tuple[Tensor, GDNState]:
        q, k, v, tail = self.projections(x_BTD, state[0], active, form)
        self.observe(k, v, active)
        a, b = self.gates(x_BTD).chunk(2, -1)
        y, memory = dispatch.kernel("delta", form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v,
            log_decay_BTH=-self.log_rate.exp() * nn.functional.softplus(a), beta_BTH=b.sigmoid(),
            state_BHKV=state[1], **self.choices(active, form),
        )  # fmt: skip
        return y, (tail, memory)
