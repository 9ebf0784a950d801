"""One decoder for every backbone, and its forkable recurrent state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from proteus_bench.errors import UsageError
from proteus_bench.registry import Registry
from proteus_bench.schedules import Capacity, CapacityError, DataDependent, Opening
from proteus_models.block import Block
from proteus_models.comba import CombaMixer
from proteus_models.config import ModelConfig
from proteus_models.deltanet import DeltaNetMixer
from proteus_models.gdn import GDNMixer
from proteus_models.hope import HopeAttentionMixer
from proteus_models.mixer import Mixer
from proteus_models.packing import Packing
from proteus_models.retnet import RetNetMixer
from proteus_models.swla import SWLAMixer
from proteus_models.titans import TitansLinearMixer, TitansMLPMixer
from proteus_models.titans_mac import TitansMACMixer
from proteus_models.titans_mag import TitansMAGMixer
from proteus_models.titans_mal import TitansMALMixer
from proteus_models.transformer import TransformerMixer

MIXERS: dict[str, type[Mixer]] = {
    "gdn": GDNMixer,
    "deltanet": DeltaNetMixer,
    "retnet": RetNetMixer,
    "comba": CombaMixer,
    "swla": SWLAMixer,
    "titans": TitansLinearMixer,
    "titans-mlp": TitansMLPMixer,
    "titans-mac": TitansMACMixer,
    "titans-mag": TitansMAGMixer,
    "titans-mal": TitansMALMixer,
    "transformer++": TransformerMixer,
    "hope-attention": HopeAttentionMixer,
}


def mixer_class(name: str) -> type[Mixer]:
    """The mixer of a backbone: ours, or the `mixer` of a plugin under `proteus_bench.models`.

    Raises UsageError for a name that nobody registers and for a plugin that brings no mixer.
    """
    if name in MIXERS:
        return MIXERS[name]
    mixer = getattr(Registry("models").get(name), "mixer", None)
    if not (isinstance(mixer, type) and issubclass(mixer, Mixer)):
        raise UsageError(f"the plugin of model {name} brings no mixer: a subclass of proteus_models.mixer.Mixer")
    return mixer


def map_tensors(tree: Any, f: Callable[[Tensor], Tensor], number: Callable[[int], int] = int) -> Any:
    """Apply f to every tensor of nested tuples and state dataclasses, and `number` to every whole number."""
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, int):
        return number(tree)
    if isinstance(tree, tuple):
        return tuple(map_tensors(x, f, number) for x in tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{x.name: map_tensors(getattr(tree, x.name), f, number) for x in fields(tree)})
    return tree


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(tree, note)
    return found


def join_rows(trees: list[Any], order: Tensor) -> Any:
    """One tree whose tensors are the trees' tensors, stacked by rows and put into `order`; the rest is the first tree's."""
    joined = iter([torch.cat(parts)[order] for parts in zip(*map(leaves, trees), strict=True)])
    return map_tensors(trees[0], lambda _: next(joined))


@dataclass(frozen=True, kw_only=True)
class DecoderState:
    """Every layer's state and the number of tokens consumed (the schedule's clock). Batch is axis 0 everywhere."""

    layers: tuple[Any, ...]
    position: int = 0
    openings: tuple[Opening, ...] = ()
    """Where a data-dependent schedule stands, one a batch row; empty for a schedule of time."""
    anchors: tuple[Any, ...] = ()
    """The layers' states where the schedule's present chunk began, if this state stands inside one."""

    def fork(self, n: int) -> DecoderState:
        """Each batch row n times, in order: the state after a context, once per question."""
        openings = tuple(o for o in self.openings for _ in range(n))
        return replace(self._map(lambda x: x.repeat_interleave(n, 0)), openings=openings)

    def select(self, rows: slice | list[int]) -> DecoderState:
        openings = self.openings[rows] if isinstance(rows, slice) else tuple(self.openings[i] for i in rows if self.openings)
        return replace(self._map(lambda x: x[rows]), openings=openings)

    def detach(self) -> DecoderState:
        return self._map(Tensor.detach)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole state, batch included."""
        return sum(x.numel() * x.element_size() for x in leaves((self.layers, self.anchors)))

    def _map(self, f: Callable[[Tensor], Tensor]) -> DecoderState:
        return replace(self, layers=map_tensors(self.layers, f), anchors=map_tensors(self.anchors, f))


def new_block(config: ModelConfig) -> Block:
    return Block(config, mixer_class(config.mixer)(config))


class DecoderLM(nn.Module):
    """Causal language model with a fixed-size recurrent state. ids_BT -> logits.

    The schedule's clock is `state.position`: continuing from a state continues the schedule.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._take(config)
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.stack = [new_block(config) for _ in range(config.n_layers)]
        self.blocks = nn.ModuleList(self.stack)
        self.norm = nn.RMSNorm(config.d_model, eps=1e-5)

    def set_capacity(self, capacity: Capacity) -> None:
        """Another capacity on the same weights. ValueError or CapacityError when the memory cannot have it."""
        self._take(replace(self.config, capacity=capacity))
        for block in self.stack:
            block.mixer.set_config(self.config)

    def _take(self, config: ModelConfig) -> None:
        _check(config)
        self.config = config
        self.along = evaluated(config).capacity
        """The capacity along positions; asked for at every call, so it is worked out once."""

    def init_state(self, batch: int) -> DecoderState:
        """The state before the first token."""
        schedule = self.along.schedule
        openings = (schedule.start(),) * batch if isinstance(schedule, DataDependent) else ()
        return DecoderState(layers=tuple(b.mixer.init_state(batch) for b in self.stack), openings=openings)

    def active(self, start: int, length: int) -> list[int] | None:
        """Open coordinates at positions start+1 .. start+length; None where all are open (the base model, bit for bit)."""
        if self.along.is_static:
            return None
        dim = self.config.axis_dim()
        if length == 1:  # decoding: arrays would cost more than the number
            found = [self.along.active_coords(self.along.schedule.active_blocks(start + 1), dim)]
        else:
            found = self.along.active_coords_range(start, length, dim).tolist()
        return None if min(found, default=0) == dim else found

    def hidden(
        self, ids_BT: Tensor, state: DecoderState | None = None, form: str = "auto", last_only: bool = False
    ) -> tuple[Tensor, DecoderState]:
        """Final-norm hidden states h_BTD and the state after the last token.

        `last_only` gives h_B1D of the last position: the last block's output, MLP and norm are then made for it alone.
        """
        if self.along.is_data_dependent:
            return self._watched(ids_BT, state or self.init_state(len(ids_BT)), form, last_only)
        # without a state every block makes its own: outside its call a sharded block has no whole parameters to make it from
        state = state or DecoderState(layers=(None,) * len(self.stack))
        active = self.active(state.position, ids_BT.shape[1])
        h, layers = self._through(ids_BT, state.layers, active, form, last_only)
        return h, replace(state, layers=layers, position=state.position + ids_BT.shape[1])

    def _through(
        self, ids_BT: Tensor, layers: tuple[Any, ...], active: list[int] | None, form: str, last_only: bool
    ) -> tuple[Tensor, tuple[Any, ...]]:
        x, after = self.embed(ids_BT), []
        for n, (block, layer) in enumerate(zip(self.stack, layers, strict=True), 1):
            x, layer = block(x, layer, active, form, last_only and n == len(self.stack))
            after.append(layer)
        return self.norm(x), tuple(after)

    def packed(self, ids_BT: Tensor, starts: list[list[int]]) -> Tensor:
        """h_BTD of rows of documents: memory and schedule restart at each start (0-based, sorted).

        Documents of about one length go through the mixers together; everything else is one pass over the rows.
        """
        packing = Packing.of(starts, ids_BT)
        if self.along.is_data_dependent:  # each document has its own clock
            return packing.each(ids_BT, lambda ids: self.hidden(ids)[0])
        x, active = self.embed(ids_BT), self.active(0, packing.longest)
        for block in self.stack:
            x, _ = block(x, None, active, "auto", packing=packing)
        return self.norm(x)

    def _watched(
        self, ids_BT: Tensor, state: DecoderState, form: str, last_only: bool
    ) -> tuple[Tensor, DecoderState]:
        """Chunk by chunk under a data-dependent schedule; all rows stand at one position, each with its own k."""
        schedule, outs, at = cast(DataDependent, self.config.capacity.schedule), [], 0
        while at < ids_BT.shape[1]:
            n = min(schedule.room(state.openings[0]), ids_BT.shape[1] - at)
            h, state = self._chunk(ids_BT[:, at : at + n], state, form, last_only)
            outs.append(h)
            at += n
        return (outs[-1] if last_only else torch.cat(outs, 1)), state

    def _chunk(
        self, ids_BT: Tensor, state: DecoderState, form: str, last_only: bool
    ) -> tuple[Tensor, DecoderState]:
        """Positions of one chunk of the schedule. Rows that have equally many blocks open go together."""
        schedule = cast(DataDependent, self.config.capacity.schedule)
        state = state if state.anchors else replace(state, anchors=state.layers)
        counts = sorted({o.k for o in state.openings})
        if len(counts) == 1:
            h, state = self._rows(ids_BT, state, counts[0], form, last_only)
        else:
            groups = [[row for row, own in enumerate(state.openings) if own.k == k] for k in counts]
            parts = [
                self._rows(ids_BT[rows], state.select(rows), k, form, last_only)
                for k, rows in zip(counts, groups, strict=True)
            ]
            back = torch.tensor([row for rows in groups for row in rows]).argsort()
            h = torch.cat([part for part, _ in parts])[back]
            openings = [o for _, part in parts for o in part.openings]
            layers, anchors = join_rows([(part.layers, part.anchors) for _, part in parts], back)
            openings = [openings[i] for i in back.tolist()]
            state = replace(state, layers=layers, anchors=anchors, openings=tuple(openings))
        position = state.position + ids_BT.shape[1]
        return h, replace(state, position=position, anchors=() if position % schedule.every == 0 else state.anchors)

    def _rows(
        self, ids_BT: Tensor, state: DecoderState, k: int, form: str, last_only: bool
    ) -> tuple[Tensor, DecoderState]:
        """Rows with k open blocks through all layers; their openings move on by the error that the layers saw."""
        cap, length = self.config.capacity, ids_BT.shape[1]
        for block, anchor in zip(self.stack, state.anchors, strict=True):
            block.mixer.watch(anchor)
        active = [cap.active_coords(k, self.config.axis_dim())] * length
        h, layers = self._through(ids_BT, state.layers, active, form, last_only)
        found = [pair for block in self.stack for pair in block.mixer.take_errors()]
        errors: list[float | None] = [None] * len(ids_BT)
        if found:
            total = torch.stack([positions * error_B.double() for positions, error_B in found]).sum(0)
            errors = (total / sum(positions for positions, _ in found)).tolist()
        schedule = cast(DataDependent, cap.schedule)
        openings = tuple(schedule.advance(o, length, e) for o, e in zip(state.openings, errors, strict=True))
        return h, replace(state, layers=layers, openings=openings)

    def logits(self, h: Tensor) -> Tensor:
        """Tied output matrix; call it on labelled positions only, it is the dearest product of a small model."""
        return nn.functional.linear(h, self.embed.weight)

    def prefill(self, ids_BT: Tensor, state: DecoderState | None = None) -> tuple[Tensor, DecoderState]:
        """Logits_BV at the last position only, and the state."""
        h, state = self.hidden(ids_BT, state, last_only=True)
        return self.logits(h[:, -1]), state

    def forward(
        self, ids_BT: Tensor, state: DecoderState | None = None, return_state: bool = False, form: str = "auto"
    ) -> Any:
        """logits_BTV, with the state after the last token when asked for."""
        h, state = self.hidden(ids_BT, state, form)
        return (self.logits(h), state) if return_state else self.logits(h)

    def documents(self, ids_BT: Tensor, starts: list[list[int]]) -> Tensor:
        """logits_BTV of packed rows. origin=document: memory and schedule restart at each start (0-based, sorted)."""
        return self(ids_BT) if self.config.capacity.origin == "window" else self.logits(self.packed(ids_BT, starts))


def evaluated(config: ModelConfig) -> ModelConfig:
    """What a model is along positions: where the schedule counts training steps, everything is open."""
    if mixer_class(config.mixer).clock == "context":
        return config
    return replace(config, capacity=Capacity.static(axis=config.capacity.axis, span=config.train_length))


def _check(config: ModelConfig) -> None:
    capacity, axes = config.capacity, mixer_class(config.mixer).axes_of(config)
    if not axes:
        if not capacity.is_static:
            raise CapacityError(f"{config.mixer} has no fixed state to open block by block: it takes no schedule")
        return
    if capacity.axis not in axes:
        raise ValueError(f"{config.mixer} has no {capacity.axis} axis; one of {', '.join(axes)}")
    if capacity.axis == "key" and capacity.gate == "write" and capacity.key_norm != "before_mask":
        raise ValueError("gate=write on the key axis reads with the whole key: key_norm must be before_mask")
    if mixer_class(config.mixer).clock != "context":
        if capacity.is_data_dependent:
            raise CapacityError(f"{config.mixer} counts optimizer steps: {capacity.schedule.label} has nothing to look at")
    elif not capacity.is_static:
        capacity.check_axis(config.axis_dim())
    mixer_class(config.mixer).check(config)
