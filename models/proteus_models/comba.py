"""Comba mixer (Hu et al., arXiv 2506.02475) over `proteus_kernels.comba`: Gated DeltaNet with two feedback paths.

q and k are normalised here and p = b k is not normalised again: the norm would cancel b, the strength of the state
feedback. The output correction q - d p is made inside the kernel, after the norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proteus_kernels import dispatch
from proteus_models.config import ModelConfig
from proteus_models.gdn import GDNMixer, GDNState
from proteus_models.layers import GatedOutput


class SigmoidOutput(GatedOutput):
    """`GatedOutput` with a sigmoid in the place of SiLU."""

    activation = "sigmoid"


class CombaMixer(GDNMixer):
    """x_BTD -> y_BTD. Gated DeltaNet's decay and beta, feedback b = sigmoid(feedback) and correction d, one a head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.feedback = nn.Parameter(torch.ones(config.n_heads))  # b starts at 0.73
        self.correction = nn.Parameter(torch.full((config.n_heads,), config.correction))

    def make_output(self, config: ModelConfig) -> nn.Module:
        return SigmoidOutput(config)

    def mix(self, x_BTD: Tensor, state: GDNState, active: list[int] | None, form: str) -> tuple[Tensor, GDNState]:
        q, k, v, tail = self.projections(x_BTD, state[0], active, form)
        p = self.feedback.sigmoid()[:, None] * k
        self.observe(p, v, active)
        a, b = self.gates(x_BTD).chunk(2, -1)
        y, memory = dispatch.kernel("comba", form)(
            q_BTHK=q, k_BTHK=k, p_BTHK=p, v_BTHV=v,
            log_decay_BTH=-self.log_rate.exp() * nn.functional.softplus(a), beta_BTH=b.sigmoid(),
            correction_H=self.correction, state_BHKV=state[1], **self.choices(active, form),
        )  # fmt: skip
        return y, (tail, memory)
