"""One block of the decoder: a mixer, then a chain of MLPs."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from proteus_models.config import ModelConfig
from proteus_models.mixer import Mixer
from proteus_models.packing import Packing


class SwiGLU(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class Level(nn.Module):
    """One more MLP in a block's chain, with its own norm and residual."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.mlp = SwiGLU(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Block(nn.Module):
    """Mixer, MLP and further levels with their norms and residuals: what is sharded and recomputed as one."""

    def __init__(self, config: ModelConfig, mixer: Mixer) -> None:
        super().__init__()
        self.norm_mixer = nn.RMSNorm(config.d_model, eps=1e-5)
        self.mixer = mixer
        self.norm_mlp = nn.RMSNorm(config.d_model, eps=1e-5)
        first, *rest = config.chain_hidden or (config.mlp_hidden,)
        self.mlp = SwiGLU(config.d_model, first)
        self.levels = nn.ModuleList(Level(config.d_model, hidden) for hidden in rest)
        self.recompute = False
        """Keep the block's input alone, and make the activations again in the backward."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """As `_run`. It lies inside the module's call, so that sharding (FSDP2) gathers the weights around it."""
        if self.recompute and torch.is_grad_enabled():
            return cast(tuple[Tensor, Any], checkpoint(self._run, *args, use_reentrant=False, **kwargs))
        return self._run(*args, **kwargs)

    def _run(
        self, x: Tensor, state: Any, active: list[int] | None, form: str, last_only: bool = False,
        packing: Packing | None = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """`state` None: the state before the first token. `packing`: rows of documents, each with a memory of its own."""
        if packing is not None:
            y = packing.apply(self.norm_mixer(x), partial(self._fresh, active, form))
        else:
            state = self.mixer.init_state(len(x)) if state is None else state
            y, state = self.mixer(self.norm_mixer(x), state, active, form, last_only)
        x = (x[:, -1:] if last_only else x) + y
        x = x + self.mlp(self.norm_mlp(x))
        for level in self.levels:
            x = level(x)
        return x, state

    def _fresh(self, active: list[int] | None, form: str, x_BTD: Tensor) -> Tensor:
        """The mixer on rows that begin here."""
        active = None if active is None else active[: x_BTD.shape[1]]
        return self.mixer(x_BTD, self.mixer.init_state(len(x_BTD)), active, form)[0]
