"""What the task families share: the identity of an item, its checks, and items that are prose with planted pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import haystack as haystacks
from . import rng
from .errors import LengthBudgetError, TaskError
from .fit import Plan, fit
from .haystack import Haystack
from .item import Item, Needle, Question
from .supply import Supply, corpus_counts
from .tokenizers import Tokenizer, count

ANSWER_SLACK = 4
"""Tokens of answer budget past the gold: room for a full stop, and for a wrong longer number to show that it is longer."""


@dataclass(frozen=True)
class Draft:
    """The identity of an item without length and tokenizer: everything random is drawn from it.

    `name` is the task's `draws`: `id@version`, or what several tasks share whose items are paired.
    """

    name: str
    index: int
    data_seed: int
    split: str

    def seed(self, purpose: str) -> int:
        """The seed of one draw."""
        return rng.seed_of("proteus-tasks", self.name, self.split, self.data_seed, self.index, purpose)

    def order(self, purpose: str, n: int) -> list[int]:
        """A permutation of 0..n-1: the order of n raw draws."""
        return [int(i) for i in rng.raw(self.seed(purpose), n).argsort(kind="stable")]

    def pick(self, purpose: str, n: int) -> int:
        """One of 0..n-1."""
        return int(rng.below(self.seed(purpose), n, 1)[0])

    def depths(self, purpose: str, n: int) -> list[float]:
        """n depths in [0, 1), rising."""
        return sorted(rng.fractions(self.seed(purpose), n).tolist())


class Family:
    """Mixin of the tasks: argument checks, items in order, and the smallest length that holds them."""

    @property
    def id(self) -> str:
        raise NotImplementedError

    version: int
    takes_depth = False

    @property
    def draws(self) -> str:
        """What the random draws of an item follow from, beside its index: tasks and lengths that share it are paired."""
        return f"{self.id}@{self.version}"

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
        """Item `index` at `length` tokens; LengthBudgetError when that is too short, TaskError for a bad argument."""
        raise NotImplementedError

    def items(
        self,
        n: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
        **more: Any,
    ) -> Iterator[Item]:
        """Items 0..n-1; arguments as in `item`, with what a task takes beside them."""
        for index in range(n):
            yield self.item(index, length=length, tokenizer=tokenizer, data_seed=data_seed, split=split, depth=depth, **more)

    def minimum_length(
        self, n: int, *, tokenizer: Tokenizer, data_seed: int = 0, split: str = "test", **more: Any
    ) -> int:
        """The smallest length in tokens that holds every one of the items 0..n-1."""
        least = 0
        for index in range(n):
            try:
                self.item(index, length=1, tokenizer=tokenizer, data_seed=data_seed, split=split, **more)
            except LengthBudgetError as error:
                least = max(least, error.minimum)
        return least

    def draft(self, index: int, length: int, data_seed: int, split: str, depth: float | None) -> Draft:
        """The checked identity of an item. TaskError for a bad index, length, split or depth."""
        haystacks.check_split(split)
        if index < 0 or length < 1:
            raise TaskError(f"{self.id}: index {index} and length {length} must be at least 0 and 1")
        if depth is not None and not self.takes_depth:
            raise TaskError(f"{self.id} takes no depth")
        if depth is not None and not 0.0 <= depth <= 1.0:
            raise TaskError(f"{self.id}: depth {depth} is not in [0, 1]")
        return Draft(self.draws, index, data_seed, split)

    def row(self, index: int, order: Sequence[int]) -> int:
        """The row of a data set that item `index` is made of. TaskError beyond the last."""
        if index >= len(order):
            raise TaskError(f"{self.id}: {len(order)} items, item {index} is asked")
        return order[index]

    def item_id(self, draft: Draft, length: int, depth: float | None = None) -> str:
        """The name of an item: everything that it is a function of, but the tokenizer."""
        suffix = "" if depth is None else f"/depth{depth:g}"
        return f"{self.id}@{self.version}/{draft.split}/seed{draft.data_seed}/len{length}/{draft.index}{suffix}"

    def build(self, draft: Draft, length: int, **fields: Any) -> Item:
        """An item of this task; `depth` names the item, the rest are the item's own fields."""
        depth = fields.pop("depth", None)
        values = {"truncation": "none", "gold_survives": True, "needles": (), **fields}
        return Item(
            id=self.item_id(draft, length, depth),
            task=self.id,
            version=self.version,
            split=draft.split,
            length=length,
            **values,
        )


def ask(
    text: str, answer_prefix: str, golds: Sequence[str], tokenizer: Tokenizer, budget: int | None = None
) -> Question:
    """A question whose answer budget is the gold's tokens and some slack, or `budget`."""
    golds = tuple(golds)
    if budget is None:
        budget = count(tokenizer, " " + ", ".join(golds)) + ANSWER_SLACK
    return Question(text, answer_prefix, golds, budget)


def cost(questions: Sequence[Question]) -> tuple[tuple[str, int], ...]:
    """Text and answer budget of each question, as a plan wants them."""
    return tuple((q.text + q.answer_prefix, q.max_new_tokens) for q in questions)


@dataclass(frozen=True)
class Piece:
    """A planted sentence with the key and value for its record, at `depth` of the haystack."""

    key: str
    value: str
    text: str
    depth: float


@dataclass(frozen=True)
class Weave:
    """Haystack with planted pieces and questions. `pieces` in order of depth; `sep` joins pieces and units."""

    head: str
    pieces: tuple[Piece, ...]
    questions: tuple[Question, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    sep: str = " "
    least: int = 1


def prose(draft: Draft, tokenizer: Tokenizer, haystack: Haystack | None = None) -> tuple[Supply, str]:
    """A run of prose of the item's split from a random sentence on, or of another haystack; and its name."""
    source = haystack if haystack is not None else haystacks.sotu(draft.split)
    start = source.starts[draft.pick("start", len(source.starts))]
    return Supply(source.units, corpus_counts(source, tokenizer), start), source.name


def woven(
    task: Family,
    draft: Draft,
    weave: Weave,
    supply: Supply,
    source: str,
    length: int,
    tokenizer: Tokenizer,
    depth: float | None = None,
) -> Item:
    """The item with the most haystack that stays within `length`."""
    plan = Plan(
        task.id,
        length,
        tuple((piece.text, piece.depth) for piece in weave.pieces),
        cost(weave.questions),
        weave.head,
        weave.sep,
        weave.least,
    )
    layout = fit(plan, supply, tokenizer)
    needles = tuple(
        Needle(piece.key, piece.value, char, token, piece.depth)
        for piece, char, token in zip(weave.pieces, layout.char_offsets, layout.token_offsets, strict=True)
    )
    meta = {
        "variant": "strict", "data_seed": draft.data_seed, "index": draft.index, "tokenizer": tokenizer.fingerprint,
        "haystack": source, "haystack_start": supply.start, "haystack_units": layout.units,
        "counting": layout.counting, **weave.meta,
    }  # fmt: skip
    return task.build(
        draft,
        length,
        reached=layout.reached,
        context=layout.context,
        questions=weave.questions,
        needles=needles,
        meta=meta,
        depth=depth,
    )
