"""`past_key_values` of our decoder in transformers: recurrent state and schedule position of every row."""

from __future__ import annotations

from torch import Tensor
from transformers import Cache

from proteus_models.decoder import DecoderState

Group = tuple[list[int], DecoderState]  # rows of the batch that stand at one position, and their state


class ProteusCache(Cache):
    """The state after the columns seen so far. Rows at different positions (padding) are different groups.

    `get_seq_length` counts columns, pads included, as generate expects; `positions` are the schedule's clocks.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, groups: list[Group] | None = None, columns: int = 0) -> None:
        super().__init__(layers=[])
        self.groups: list[Group] = groups or []
        self.columns = columns

    @property
    def batch_size(self) -> int:
        return sum(len(rows) for rows, _ in self.groups)

    @property
    def positions(self) -> list[int]:
        """Real tokens consumed, per row: the schedule's t."""
        at = {row: state.position for rows, state in self.groups for row in rows}
        return [at[row] for row in range(self.batch_size)]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._take(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        self._take(indices.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._take([row for row in range(self.batch_size) for _ in range(repeats)])

    def detach(self) -> ProteusCache:
        """The same state without its graph (truncated backpropagation through time)."""
        return ProteusCache([(list(rows), state.detach()) for rows, state in self.groups], self.columns)

    def reset(self) -> None:
        self.groups, self.columns = [], 0

    def crop(self, tokens_to_remove: int) -> None:
        raise ValueError("a recurrent state cannot forget its last tokens: assisted decoding does not work with it")

    def _take(self, sources: list[int]) -> None:
        """Row n becomes what row sources[n] was."""
        groups: list[Group] = []
        for rows, state in self.groups:
            place = {row: i for i, row in enumerate(rows)}
            taken = [(n, place[row]) for n, row in enumerate(sources) if row in place]
            if taken:
                groups.append(([n for n, _ in taken], state.select([i for _, i in taken])))
        self.groups = groups
