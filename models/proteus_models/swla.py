"""SWLA mixer, sliding-window linear attention, over `proteus_kernels.linear`.

M_t = a_t M_{t-1} + sum_{i=t-c+1..t} b_i^(t) v_i k_i^T with c = `config.taps` (2 in the Proteus paper). The papers at hand
fix neither b nor a: here position t makes its c weights b = sigmoid(W_b x_t) and the decay of Gated DeltaNet.

A key is written again c - 1 times, each time with the mask of the writing position, so a key norm that looks at the mask
must look at THAT mask too. Its part that depends on the mask is therefore a factor on each tap's weight (and on q): keys enter
the kernel normalised over the whole axis, or, under after_mask, as they are, and then nobody needs their locked coordinates.
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
        cap = c.capacity
        on_key = cap.axis == "key" and cap.key_norm != "before_mask" and not cap.is_static
        # what the window holds may not depend on what is open now
        raw = on_key and cap.key_norm == "after_mask" and cap.gate == "both"
        q, k, v, tail = self.projections(x_BTD, state[0], self._needed(active, raw), form, raw)
        a, b = self.gates(x_BTD).split([h, c.taps * h], -1)
        weights = b.sigmoid().unflatten(-1, (h, c.taps))
        written = k
        if raw or (on_key and active is not None):
            q, weights, own = self._renormalised(q, weights, state[1].window(k, v)[0], active, raw)
            written = k * own[..., None] if raw and self.anchor is not None else k
        self.observe(written, v, active)
        y, memory = dispatch.kernel("linear", form)(
            q_BTHK=q, k_BTHK=k, v_BTHV=v, weights_BTHC=weights,
            log_decay_BTH=-self.log_rate.exp() * nn.functional.softplus(a),
            state=state[1], **self.choices(active, form),
        )  # fmt: skip
        return y, (tail, memory)

    def _needed(self, active: list[int] | None, raw: bool) -> list[int] | None:
        """How much of q, k and v each position must have: what is open when it is written last, all of it in the window.

        None: everything, as for norms over the whole key.
        """
        if active is None or (self.config.capacity.axis == "key" and not raw):
            return None
        ahead = self.config.taps - 1
        longer = [*active, *[self.config.axis_dim()] * ahead]
        return list(map(max, *(longer[i : i + len(active)] for i in range(ahead + 1)), active))

    def _renormalised(
        self, q_BTHK: Tensor, weights_BTHC: Tensor, keys: Tensor, active: list[int] | None, raw: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q and the weights times the norm's part that depends on the mask, and that factor of each position's own key [B, T, H].

        `keys` begin c - 1 early; raw: they and q are not normalised at all.
        """
        taps, length, width = self.config.taps, q_BTHK.shape[1], q_BTHK.shape[-1]
        open_T = torch.tensor(active or [width] * length, device=q_BTHK.device)
        mask = (torch.arange(width, device=q_BTHK.device) < open_T[:, None, None]).to(q_BTHK.dtype)
        q_BTHK = q_BTHK * self._factor(q_BTHK.square(), mask, raw)[..., None]
        if self.config.capacity.gate == "read":
            return q_BTHK, weights_BTHC, weights_BTHC.new_ones(())
        squares = keys.square()
        factors = [self._factor(squares[:, taps - 1 - j : taps - 1 - j + length], mask, raw) for j in range(taps)]
        return q_BTHK, weights_BTHC * torch.stack(factors, -1), factors[0]

    def _factor(self, squares_BTHK: Tensor, mask_T1K: Tensor, raw: bool) -> Tensor:
        """[B, T, H]: without `raw` one where everything is open."""
        eps = self.config.eps
        if self.config.capacity.key_norm == "compensated":
            return mask_T1K.mean(-1).rsqrt().expand(squares_BTHK.shape[:3])
        inside = (squares_BTHK * mask_T1K).sum(-1) + eps
        return inside.rsqrt() if raw else ((squares_BTHK.sum(-1) + eps) / inside).sqrt()
