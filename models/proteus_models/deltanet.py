"""DeltaNet mixer (Yang et al., arXiv 2406.06484) over `proteus_kernels.delta` without a decay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proteus_kernels import dispatch
from proteus_models.config import ModelConfig
from proteus_models.layers import GatedOutput
from proteus_models.mixer import MatrixMixer

DeltaNetState = tuple[Tensor, Tensor]  # convolution tail, S_BHKV


class NormedOutput(GatedOutput):
    """RMSNorm per head, output projection: DeltaNet gates nothing with the layer's input."""

    gated = False


class DeltaNetMixer(MatrixMixer):
    """x_BTD -> y_BTD. beta = sigmoid(W_b x) per head, and nothing is ever forgotten but by being overwritten."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.gates = nn.Linear(config.d_model, config.n_heads)
        with torch.no_grad():  # beta starts at one half, as in Gated DeltaNet
            self.gates.weight.mul_(0.1)
            self.gates.bias.zero_()

    def make_output(self, config: ModelConfig) -> nn.Module:
        return NormedOutput(config)

    def init_state(self, batch: int) -> DeltaNetState:
        return self.projections.tail(batch, self.gates.bias), self.matrix_start(batch)

    def mix(
        self, x_BTD: Tensor, state: DeltaNetState, active: list[int] | None, form: str
    ) -> tuple[Tensor, DeltaNetState]:
        q, k, v, tail = self.projections(x_BTD, state[0], active, form)
        self.observe(k, v, active)
        y, memory = dispatch.kernel("delta", form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, beta_BTH=self.gates(x_BTD).sigmoid(),
            state_BHKV=state[1], **self.choices(active, form),
        )  # fmt: skip
        return y, (tail, memory)
