"""A decoder's memory as the probes see it (`proteus_bench.probes.memory`): states in, NumPy tensors out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from proteus_bench.schedules.capacity import Gate
from proteus_kernels.matrix import AXIS_DIM
from proteus_models.decoder import DecoderLM, DecoderState
from proteus_models.titans import TitansMixer

OPEN_BLOCKS = 16
"""Into how many blocks a memory without a schedule is cut for display."""
PREFILL_TOKENS = 4096


@dataclass(frozen=True)
class _Part:
    """One memory tensor of a layer, and the dimension that a schedule opens."""

    layer: int
    name: str
    values: np.ndarray
    axis: int
    heads: int | None = 1


def expose(model: DecoderLM) -> ExposedDecoder | None:
    """The memory of a decoder, None for one without a fixed state (attention alone)."""
    has_memory = model.stack[0].mixer.memories(model.init_state(1).layers[0])
    return ExposedDecoder(model) if has_memory else None


class ExposedDecoder:
    """The memory protocol over a DecoderLM that has a fixed state."""

    def __init__(self, model: DecoderLM) -> None:
        self.model = model
        capacity = model.config.capacity
        opened = model.along.is_static
        size = model.config.axis_dim()
        self.blocks = min(OPEN_BLOCKS, size) if opened else capacity.blocks
        monotone = not opened and capacity.schedule.monotone
        self.unlocks: tuple[int, ...] = capacity.schedule.unlock_times() if monotone else (1,) * self.blocks

    def start(self, rows: int) -> DecoderState:
        return self.model.init_state(rows).detach()

    @torch.inference_mode()
    def feed(self, state: DecoderState, ids: np.ndarray) -> DecoderState:
        step = max(1, PREFILL_TOKENS // len(ids))
        for start in range(0, ids.shape[1], step):
            _, state = self.model.prefill(_ids(ids[:, start : start + step]), state)
        return state

    def select(self, state: DecoderState, rows: Sequence[int]) -> DecoderState:
        return state.select(list(rows))

    def tensors(self, state: DecoderState) -> list[_Part]:
        axis = self.model.config.capacity.axis
        return [
            _Part(n, name, tensor.detach().double().numpy(), dim)
            for n, (block, layer) in enumerate(zip(self.model.stack, state.layers, strict=True))
            for name, tensor, dim in _memory(block.mixer, layer, axis)
        ]

    @torch.inference_mode()
    def keys(self, state: DecoderState, ids: np.ndarray) -> list[np.ndarray]:
        """What the projections hand to each layer's memory as keys, before any mask of the kernel."""
        with _recorded([_lmm(block.mixer) for block in self.model.stack]) as found:
            self.model.prefill(_ids(ids), state)
        return [torch.cat(keys, 1).double().numpy() for keys in found]

    @torch.inference_mode()
    def read(self, state: DecoderState, layer: int, keys: np.ndarray) -> np.ndarray:
        mixer = self.model.stack[layer].mixer
        weights = [t.double() for _, t, _ in _memory(mixer, state.layers[layer], self.model.config.capacity.axis)]
        k = torch.from_numpy(keys)
        if len(weights) == 1:
            return torch.einsum("bnhk,bhkv->bnhv", k, weights[0]).numpy()
        hidden = nn.functional.silu(torch.einsum("bnhk,bhmk->bnhm", k, weights[0]))
        return torch.einsum("bnhm,bhvm->bnhv", hidden, weights[1]).numpy()

    @torch.inference_mode()
    def gated_logits(self, gate: str, ids: np.ndarray, carried: bool) -> np.ndarray:
        """The span is shortened so that a short text crosses every unlock. The carried state is that of the open memory
        after the same ids in reverse, with the clock back at the start: what is locked then is not empty."""
        config, other = self.model.config, cast(Gate, gate)
        span = max(config.capacity.blocks, ids.shape[1] // 2 // config.capacity.blocks * config.capacity.blocks)
        small = replace(config, capacity=replace(config.capacity.with_span(span), gate=other), chunk=8, inner=8)
        copy = _copy(self.model, small)
        state = copy.init_state(len(ids))
        if carried:
            opened = replace(small, capacity=replace(small.capacity, gate="none"))
            _, state = _copy(self.model, opened).prefill(_ids(ids[:, ::-1]), state)
            state = replace(state, position=0)
        return copy(_ids(ids), state=state).numpy()


def _ids(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64))


def _copy(model: DecoderLM, config: Any) -> DecoderLM:
    copy = DecoderLM(config).double()
    copy.load_state_dict({name: tensor.double() for name, tensor in model.state_dict().items()})
    return copy.eval()


def _lmm(mixer: Any) -> Any:
    """The memory module: the mixer itself, or the neural memory beside an attention."""
    return getattr(mixer, "lmm", mixer)


def _memory(mixer: Any, layer: Any, axis: str) -> Iterator[tuple[str, Tensor, int]]:
    """(name, tensor, dimension of the axis) of what reads see; the momentum of Titans is left out."""
    found = mixer.memories(layer)
    if isinstance(_lmm(mixer), TitansMixer):
        found = found[: len(found) // 2]
    if axis == "hidden":  # W1 has a unit a row, W2 a unit a column
        yield from zip(("W1", "W2"), found, (2, 3), strict=True)
    else:
        yield "M", found[0], AXIS_DIM[axis]


@contextmanager
def _recorded(mixers: Sequence[Any]) -> Iterator[list[list[Tensor]]]:
    """Keys of every call of each mixer's projections, while the context lasts."""
    found: list[list[Tensor]] = [[] for _ in mixers]
    hooks = [
        mixer.projections.register_forward_hook(lambda _m, _a, out, kept=kept: kept.append(out[1]))
        for mixer, kept in zip(mixers, found, strict=True)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
