"""Variable tracking, strict form: chains of boxes, of which one chain holds the asked value.

Structure after RULER's vt (arXiv 2404.06654): a value is put under one name and passed on from name to name; every name that
holds it is asked. RULER plants one chain, so that naming every variable is right; here there are several, and naming all of
them scores 1 / chains.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import vocabulary
from .family import Family, Piece, Weave, ask, prose, woven
from .item import Item
from .tokenizers import Tokenizer

HEAD = "Keep track of the boxes in the text below.\n"


def first_sentence(name: str, value: str) -> str:
    """The sentence that puts a value into a box."""
    return f"The box {name} holds {value}."


def next_sentence(name: str, before: str) -> str:
    """The sentence that passes a value on."""
    return f"The box {name} holds what the box {before} holds."


@dataclass(frozen=True, kw_only=True)
class VtTask(Family):
    """`chains` chains of `hops` + 1 boxes; the first chain is asked, its value named."""

    variant: str
    chains: int
    hops: int
    version: int = 1

    @property
    def id(self) -> str:
        return f"ruler.{self.variant}"

    def item(
        self,
        index: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Item:
        draft = self.draft(index, length, data_seed, split, depth)
        size = self.hops + 1
        names = vocabulary.draw_words(draft.seed("names"), split, self.chains * size)
        values = vocabulary.draw_numbers(draft.seed("values"), split, self.chains)
        pieces = []
        for chain, value in enumerate(values):
            boxes = names[chain * size : (chain + 1) * size]
            for place, (box, at) in enumerate(zip(boxes, draft.depths(f"chain {chain}", size), strict=True)):
                text = next_sentence(box, boxes[place - 1]) if place else first_sentence(box, value)
                pieces.append(Piece(box, value, text, at))
        pieces.sort(key=lambda piece: piece.depth)
        asked = values[0]
        question = ask(
            f"\nQuestion: which {size} boxes hold {asked}?\nAnswer:",
            f" The boxes that hold {asked} are",
            names[:size],
            tokenizer,
        )
        meta = {"scorers": {"strict": "strict@1", "compat": "ruler-all@1"}, "chance": 1 / self.chains}
        supply, source = prose(draft, tokenizer)
        return woven(self, draft, Weave(HEAD, tuple(pieces), (question,), meta), supply, source, length, tokenizer)


VT_TASKS: tuple[VtTask, ...] = (
    VtTask(variant="vt", chains=4, hops=4),
    VtTask(variant="vt_2hop", chains=2, hops=2),
)
