"""SWLA mixer, sliding-window linear attention, over `proteus_kernels.linear`.

M_t = a_t M_{t-1} + sum_{i=t-c+1..t} b_i^(t) v_i k_i^T with c = `config.taps` (2 in the Proteus paper). The papers at hand
fix neither b nor a: here position t makes its c weights b = sigmoid(W_b x_t) and the decay of Gated DeltaNet.

A key is written again c - 1 times, each time with the mask of the writing position, so a key norm that looks at the mask
must look at THAT mask too. Keys therefore enter the kernel normalised over the whole axis, and what after_mask and
compensated change is a factor on each tap's weight (and on q).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proteus_kernels import dispatch
from proteus_kernels.linear import LinearState
from proteus_models.config import ModelConfig
from proteus_models.mixer import MatrixMixer

SWLAState = tuple[Tensor, LinearState]


class SWLAMixer(MatrixMixer):
    """x_BTD -> y_BTD. log decay = -exp(A) softplus(W_a x + dt) and c tap weights per head, the newest key's first."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        h = config.n_heads
        self.gates = nn.Linear(config.d_model, (1 + config.taps) * h)
        self.log_rate = nn.Parameter(torch.zeros(h))
        with torch.no_grad():  # decay starts near 1 (a half-life of about 5,000 tokens), every tap at one half
            self.gates.weight.mul_(0.1)
            self.gates.bias.zero_()
            self.gates.bias[:h].fill_(-9.0)

    def init_state(self, batch: int) -> SWLAState:
        memory = LinearState.start(self.matrix_start(batch), self.config.taps)
        return self.projections.tail(batch, self.log_rate), memory

    def memories(self, state: SWLAState) -> tuple[Tensor, ...]:
        return (state[1].memory_BHKV,)  # the window holds past inputs

    def mix(self, x_BTD: Tensor, state: SWLAState, active: list[int] | None, form: str) -> tuple[Tensor, SWLAState]:
        c, h = self.config, self.config.n_heads
        q, k, v, tail = self.projections(x_BTD, state[0], self._needed(active), form)
        self.observe(k, v, active)
        a, b = self.gates(x_BTD).split([h, c.taps * h], -1)
        weights = b.sigmoid().unflatten(-1, (h, c.taps))
        if active is not None and c.capacity.axis == "key" and c.capacity.key_norm != "before_mask":
            q, weights = self._renormalised(q, weights, state[1].window(k, v)[0], active)
        y, memory = dispatch.kernel("linear", form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, weights_BTHC=weights,
            log_decay_BTH=-self.log_rate.exp() * nn.functional.softplus(a),
            state=state[1], **self.choices(active, form),
        )  # fmt: skip
        return y, (tail, memory)

    def _needed(self, active: list[int] | None) -> list[int] | None:
        """How much of k and v each position must have: what is open when it is written last, all of it in the window.

        None: everything, as on the key axis, where the norm is over the whole key.
        """
        if active is None or self.config.capacity.axis == "key":
            return None
        ahead = self.config.taps - 1
        longer = [*active, *[self.config.axis_dim()] * ahead]
        return list(map(max, *(longer[i : i + len(active)] for i in range(ahead + 1)), active))

    def _renormalised(
        self, q_BTHK: Tensor, weights_BTHC: Tensor, keys: Tensor, active: list[int]
    ) -> tuple[Tensor, Tensor]:
        """q and the weights times what key_norm adds to the norm over the whole axis; `keys` begin c - 1 early."""
        cap, taps, length = self.config.capacity, self.config.taps, q_BTHK.shape[1]
        open_T = torch.tensor(active, device=q_BTHK.device, dtype=q_BTHK.dtype)
        if cap.gate in ("both", "read"):
            q_BTHK = q_BTHK * self._factor(q_BTHK, open_T)[..., None]
        if cap.gate == "both":
            taps_back = [keys[:, taps - 1 - j : taps - 1 - j + length] for j in range(taps)]
            weights_BTHC = weights_BTHC * torch.stack([self._factor(k, open_T) for k in taps_back], -1)
        return q_BTHK, weights_BTHC

    def _factor(self, x_BTHK: Tensor, open_T: Tensor) -> Tensor:
        """[B, T, H]: one when everything is open."""
        width, eps = x_BTHK.shape[-1], self.config.eps
        if self.config.capacity.key_norm == "compensated":
            return (width / open_T).sqrt()[:, None].expand(x_BTHK.shape[:3])
        squares = x_BTHK.square()
        inside = squares * (torch.arange(width, device=x_BTHK.device) < open_T[:, None, None])
        return ((squares.sum(-1) + eps) / (inside.sum(-1) + eps)).sqrt()
