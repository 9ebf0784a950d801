"""A decoder's state as rows of float32, one row a sequence and layer: what a server with continuous batching keeps.

A server hands over the new tokens of many sequences in one flat tensor. Each sequence stands at its own position, which
is the schedule's clock, and owns one slot of every layer's pages. `StatePages.advance` reads the slots, runs the
decoder itself (no second implementation) and writes the slots. Sequences go through together when they are equally long
and the model does the same arithmetic at their positions; rows never mix.

A slot holds the tensors of the layer's state one after another, then its whole numbers (the place in an inner chunk, the
position of a window) as 32-bit integers under the same bits. So any mixer can be served whose state has a fixed size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from proteus_models.decoder import DecoderLM, DecoderState, leaves, map_tensors, mixer_class

Numbers = tuple[tuple[int, ...], ...]  # the whole numbers of one sequence's state, layer by layer


@dataclass(frozen=True, kw_only=True)
class Row:
    """One sequence of a step: its `length` new tokens begin at `start` of the flat ids, `position` tokens came before."""

    start: int
    length: int
    position: int
    slot: int


class StatePages:
    """Reads, moves on and writes the slots of one decoder in float32.

    ValueError: a schedule that the data decide (its state is no tensor), a state that grows with the context.
    """

    def __init__(self, model: DecoderLM) -> None:
        name = model.config.mixer
        if model.along.is_data_dependent:
            raise ValueError(f"{model.along.schedule.label} is decided by the data: it cannot be served from pages")
        if mixer_class(name).memory == "none":
            raise ValueError(f"the state of {name} grows with the context: it cannot be served from pages of one size")
        self.model = model
        self.like = model.init_state(1).layers[0]
        self.width = pack(self.like).shape[1]

    def advance(self, ids_N: Tensor, rows: Sequence[Row], pages: Sequence[Tensor]) -> Tensor:
        """h_ND of the new tokens (0 where no row stands); `pages[layer]` [slots, width] are moved on in place.

        A row at position 0 starts anew whatever its slot holds.
        """
        fresh = [row.slot for row in rows if row.position == 0]
        if fresh:
            for page, layer in zip(pages, self.model.init_state(1).layers, strict=True):
                page[fresh] = pack(layer)
        h_ND = self.model.embed.weight.new_zeros(len(ids_N), self.model.config.d_model)
        for numbers, group in self._groups(rows, pages):
            slots, length = [row.slot for row in group], group[0].length
            layers = tuple(unpack(page[slots], self.like, own) for page, own in zip(pages, numbers, strict=True))
            places = torch.tensor([row.start for row in group], device=ids_N.device)[:, None]
            places = places + torch.arange(length, device=ids_N.device)
            state = DecoderState(layers=layers, position=group[0].position)
            h_BTD, state = self.model.hidden(ids_N[places], state, "recurrent" if length == 1 else "auto")
            h_ND[places] = h_BTD
            for page, layer in zip(pages, state.layers, strict=True):
                page[slots] = pack(layer)
        return h_ND

    def _groups(self, rows: Sequence[Row], pages: Sequence[Tensor]) -> list[tuple[Numbers, list[Row]]]:
        """Rows that the model can take as one batch, with the whole numbers that their states share. Single tokens at
        different positions are alike when as much is open and the numbers agree; longer pieces only at one position."""
        groups: dict[Any, list[Row]] = defaultdict(list)
        for row, numbers in zip(rows, whole_numbers([page[[r.slot for r in rows]] for page in pages], self.like), strict=True):
            at = row.position if row.length > 1 else tuple(self.model.active(row.position, 1) or ())
            groups[row.length, at, numbers].append(row)
        return [(numbers, group) for (_, _, numbers), group in groups.items()]


def pack(state: Any) -> Tensor:
    """A layer's state with batch B as [B, width] float32."""
    tensors = leaves(state)
    batch, device = len(tensors[0]), tensors[0].device
    numbers = torch.tensor([_numbers(state)], dtype=torch.int32, device=device).view(torch.float32)
    return torch.cat([*(x.flatten(1).float() for x in tensors), numbers.expand(batch, -1)], 1)


def unpack(rows_BW: Tensor, like: Any, numbers: Sequence[int]) -> Any:
    """The state that `pack` took apart; `like` has its structure and shapes, all rows have these whole numbers."""
    parts, left = iter(rows_BW.split([*(x[0].numel() for x in leaves(like)), len(numbers)], 1)), iter(numbers)
    return map_tensors(like, lambda x: next(parts).reshape(-1, *x.shape[1:]), lambda _: next(left))


def whole_numbers(layers: Sequence[Tensor], like: Any) -> list[Numbers]:
    """The whole numbers of every row of [B, width]: a tuple a row, in it a tuple a layer. They are read from the device once."""
    n = len(_numbers(like))
    if n == 0:
        return [((),) * len(layers)] * len(layers[0])
    found_BLN = torch.stack([rows[:, -n:] for rows in layers], 1).view(torch.int32).tolist()
    return [tuple(map(tuple, row)) for row in found_BLN]


def _numbers(state: Any) -> list[int]:
    found: list[int] = []

    def note(value: int) -> int:
        found.append(value)
        return value

    map_tensors(state, lambda x: x, note)
    return found
