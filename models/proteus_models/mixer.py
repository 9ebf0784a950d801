"""What a backbone's sequence mixer is to the decoder."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from proteus_kernels.matrix import AXIS_DIM, prefix_mask
from proteus_models.config import ModelConfig
from proteus_models.layers import GatedOutput, Projections


class Mixer(nn.Module):
    """x_BTD -> y_BTD with a state that belongs to one layer: projections, a recurrence of `proteus_kernels`, an output.

    A subclass names the memory `axes` that a schedule may cut (default first) and its `memory` kind (matrix or mlp).
    """

    axes: ClassVar[tuple[str, ...]]
    memory: ClassVar[str]
    clock: ClassVar[str] = "context"
    """What a schedule counts: positions (context), or optimizer steps (training: a trained model is then fully open)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.projections: Any = self.make_projections(config)
        self.output = self.make_output(config)
        self.errors: list[tuple[int, Tensor]] = []
        self.anchor: Any = None

    def make_projections(self, config: ModelConfig) -> nn.Module:
        """x_BTD -> the recurrence's inputs; it has a `config` of its own."""
        return Projections(config)

    def make_output(self, config: ModelConfig) -> nn.Module:
        """(y_BTHV, x_BTD) -> y_BTD."""
        return GatedOutput(config)

    @classmethod
    def axes_of(cls, config: ModelConfig) -> tuple[str, ...]:
        """The axes of this configuration, where they depend on it."""
        return cls.axes

    @classmethod
    def check(cls, config: ModelConfig) -> None:
        """Refuse (ValueError) what this backbone cannot be, beyond what the decoder knows of axes and blocks."""

    def set_config(self, config: ModelConfig) -> None:
        """Another capacity on the same weights."""
        self.config = self.projections.config = config

    def init_state(self, batch: int) -> Any:
        """The state before the first token: a tuple (convolution tail, memory state), batch first."""
        raise NotImplementedError

    def forward(
        self, x_BTD: Tensor, state: Any, active: list[int] | None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, Any]:
        """`form` names the kernel's backend, see `proteus_kernels.dispatch`. `last_only`: y of the last position."""
        y, state = self.mix(x_BTD, state, active, form)
        if last_only:
            return self.output(y[:, -1:], x_BTD[:, -1:]), state
        return self.output(y, x_BTD, *self.silent(active, form)), state

    def silent(self, active: list[int] | None, form: str) -> tuple[Any, ...]:
        """For the output: (active, axis) where locked coordinates of y are zero. The definition computes with them."""
        cap = self.config.capacity
        known = isinstance(self.output, GatedOutput) and form != "recurrent"
        return (active, cap.axis) if known and cap.gate in ("both", "read") and cap.axis in ("value", "head") else ()

    def mix(self, x_BTD: Tensor, state: Any, active: list[int] | None, form: str) -> tuple[Tensor, Any]:
        """The recurrence: the memory's reads y_BTHV and the new state."""
        raise NotImplementedError

    def predict(self, state: Any, k_BTHK: Tensor, n: int) -> Tensor:
        """What the memory, as it stands and with n open coordinates, answers to keys: [B, T, H, V]."""
        return masked_recall(self.memories(state)[0], k_BTHK, self.config.capacity.axis, n)

    def observe(self, k_BTHK: Tensor, v_BTHV: Tensor, active: list[int] | None) -> None:
        """Leave the relative error of the memory in `anchor` on these pairs for a data-dependent schedule.

        `errors` receives (positions, error_B); see `proteus_bench.schedules.adaptive`. A mixer's `mix` calls this with what
        it is about to write.
        """
        if active is None or self.anchor is None:
            return
        with torch.no_grad():
            n, axis = active[0], self.config.capacity.axis
            miss, size = v_BTHV - self.predict(self.anchor, k_BTHK, n), v_BTHV
            if axis == "value":
                miss, size = miss[..., :n], size[..., :n]
            if axis == "head":
                miss, size = miss[:, :, :n], size[:, :, :n]
            error = miss.norm(dim=-1) / size.norm(dim=-1).clamp_min(torch.finfo(size.dtype).tiny)
            self.errors.append((k_BTHK.shape[1], error.mean((1, 2))))

    def watch(self, state: Any) -> None:
        """From now on `observe` predicts with the memory of this layer's state; None: it is not called for."""
        self.anchor, self.errors = state, []

    def take_errors(self) -> list[tuple[int, Tensor]]:
        """What `observe` has left since `watch`, which ends here."""
        errors = self.errors
        self.watch(None)
        return errors

    def memories(self, state: Any) -> tuple[Tensor, ...]:
        """The tensors of a layer's state that a lock protects: memory, momentum, normaliser; no past inputs."""
        return (state[1],)

    def locked(self, state: Any, n: int) -> list[Tensor]:
        """Views of the locked coordinates of every memory tensor when n coordinates of the axis are open."""
        dim = AXIS_DIM[self.config.capacity.axis]
        return [x.narrow(dim, n, x.shape[dim] - n) for x in self.memories(state)]

    def learned_start(self, *shape: int, fan_in: int) -> nn.Parameter:
        """A learned M_0 for all heads, [H, *shape]."""
        return nn.Parameter(torch.randn(self.config.n_heads, *shape) * fan_in**-0.5)


def masked_recall(memory_BHKV: Tensor, k_BTHK: Tensor, axis: str, n: int) -> Tensor:
    """(g.S)^T k for a matrix memory, g the first n coordinates of `axis`; zero where it is locked. [B, T, H, V]"""
    return (k_BTHK.transpose(1, 2) @ (memory_BHKV * prefix_mask(n, axis, memory_BHKV))).transpose(1, 2)


class MatrixMixer(Mixer):
    """A mixer whose memory is one matrix a head, S_BHKV, starting at zero or learned."""

    axes = ("key", "value", "head")
    memory = "matrix"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.capacity.m0 == "learned":
            self.m0 = self.learned_start(config.head_k, config.head_v, fan_in=config.head_k)

    def matrix_start(self, batch: int) -> Tensor:
        """S_BHKV before the first token, in the parameters' type."""
        c = self.config
        shape = (batch, c.n_heads, c.head_k, c.head_v)
        like = next(self.projections.parameters())
        return self.m0.expand(shape) if c.capacity.m0 == "learned" else like.new_zeros(shape)

    def choices(self, active: list[int] | None, form: str) -> dict[str, Any]:
        """The arguments that every matrix kernel takes beside its inputs."""
        c, cap = self.config, self.config.capacity
        masks = {"axis": cap.axis, "gate": cap.gate, "read": cap.read, "decay_locked": cap.decay_locked}
        return {"active": active, **masks} | ({} if form == "recurrent" else {"chunk_size": c.chunk})
