"""A new backbone in one file: Hebbian fast weights, S_t = S_{t-1} + k_t v_t^T, y_t = S_t^T q_t, cut along the value axis.

Registered by one line in pyproject.toml, here or in a package of your own:

    [project.entry-points."proteus_bench.models"]
    hebb = "new_backbone:backbone"

Then `check`, `train`, `run` and every suite know `hebb` and `hebb+proteus`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proteus_kernels.masks import counts
from proteus_models.config import ModelConfig
from proteus_models.mixer import MatrixMixer
from proteus_models.zoo import Backbone


class HebbMixer(MatrixMixer):
    """x_BTD -> y_BTD; the state is (convolution tail, S_BHKV)."""

    axes = ("value",)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.rate = torch.nn.Parameter(torch.full((config.n_heads, 1), 0.1))

    def init_state(self, batch: int) -> tuple[Tensor, Tensor]:
        return self.projections.tail(batch, self.rate), self.matrix_start(batch)

    def mix(self, x_BTD: Tensor, state: tuple, active: list[int] | None, form: str) -> tuple[Tensor, tuple]:
        q, k, v, tail = self.projections(x_BTD, state[0], active)
        self.observe(k, v, active)
        written, read = self._masks(active, v)
        run = self.recurrent if form == "recurrent" else self.chunk
        y, memory = run(q, k, v * self.rate * written, state[1], read)
        return y, (tail, memory)

    def _masks(self, active: list[int] | None, v_BTHV: Tensor) -> tuple[Tensor, Tensor]:
        """Open columns for writing and for reading at each position, [T, 1, V]."""
        dim, gate = v_BTHV.shape[-1], self.config.capacity.gate
        open_T = [counts(n, dim, gate) for n in (active or [dim] * v_BTHV.shape[1])]
        ends = torch.tensor([[c.write, c.output] for c in open_T])[:, :, None, None]
        masks = (torch.arange(dim) < ends).to(v_BTHV.dtype)
        return masks[:, 0], masks[:, 1]

    def recurrent(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        out = []
        for t in range(q.shape[1]):
            memory = memory + k[:, t, :, :, None] * v[:, t, :, None]
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory) * read[t])
        return torch.stack(out, 1), memory

    def chunk(self, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        y = q @ memory + (q @ k.mT).tril() @ v
        return y.transpose(1, 2) * read, memory + k.mT @ v


backbone = Backbone(name="hebb", axes=("value",), memory="matrix", title="Hebbian fast weights", mixer=HebbMixer)
