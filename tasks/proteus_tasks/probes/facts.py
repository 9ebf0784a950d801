"""What all probe items share: facts at places of the context, some of them asked for.

A place is a fraction of the CONTEXT's tokens, not of the haystack's: with many facts the two differ, and two conditions that
are compared (with and without other facts) must hold a fact at the same position. Key, value and place of a fact depend on
neither length nor tokenizer. The wording is that of the needle tasks: a model that can answer those knows what it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .. import family, niah_text, rng, vocabulary
from ..family import Family, Piece, Weave
from ..item import Item, Question
from ..tokenizers import Tokenizer, count_batch, special_tokens
from ..word_counts import SAMPLE, counts_alike, splits_at_spaces

BLOCKS = 16
"""Insertion blocks: equal parts of the context's tokens, by which recall is scored."""


@dataclass(frozen=True)
class Fact:
    """`value` under `key` at `place` in [0, 1). `role` names the set it belongs to (A, B, new, old, ...).

    `asked`: its order among the questions, None for a fact that is only there. `stale`: the value it replaces.
    """

    key: str
    value: str
    place: float
    role: str
    asked: int | None = None
    stale: str | None = None


class Draft(family.Draft):
    """The identity of an item; `name` is shared by tasks whose items are paired."""

    def pairs(self, name: str, keys: int, values: int) -> tuple[list[str], list[str]]:
        """Keys and values, each unique; the first ones do not depend on how many are drawn."""
        return (
            vocabulary.draw_words(self.seed(f"{name}keys"), self.split, keys),
            vocabulary.draw_numbers(self.seed(f"{name}values"), self.split, values),
        )

    def spread(self, name: str, n: int, low: float, high: float) -> list[float]:
        """n places in [low, high), one drawn inside each of n equal parts, in order."""
        jitter = rng.fractions(self.seed(f"{name}places"), n).tolist()
        return [low + (high - low) * (i + u) / n for i, u in enumerate(jitter)]


class Sheet(Protocol):
    """What tells one probe from another: its id, and the facts of an item. Items of one `family` are paired."""

    @property
    def id(self) -> str: ...

    @property
    def family(self) -> str: ...

    def facts(self, draft: Draft) -> list[Fact]: ...


@dataclass(frozen=True)
class ProbeTask(Family):
    """The items of one sheet: a pure function of (id@version, length, tokenizer, data seed, split, index).

    A probe spreads its facts over the whole window, so it takes no depth.
    """

    sheet: Sheet
    version: int = 1

    @property
    def id(self) -> str:
        """The registry name, e.g. capacity.mqar_16."""
        return self.sheet.id

    @property
    def draws(self) -> str:
        """The family of the sheet: its tasks share keys, values and places."""
        return f"{self.sheet.family}@{self.version}"

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
        """Item `index` at `length` tokens. LengthBudgetError when the facts do not fit, TaskError for a bad argument."""
        draft = Draft(**vars(self.draft(index, length, data_seed, split, depth)))
        counter = _Once(tokenizer)
        facts = sorted(self.sheet.facts(draft), key=lambda fact: fact.place)
        asked = sorted((fact for fact in facts if fact.asked is not None), key=lambda fact: fact.asked or 0)
        questions = tuple(_question(fact, counter) for fact in asked)
        depths = _depths(facts, questions, length, counter)
        place = {id(fact): i for i, fact in enumerate(facts)}
        pieces = tuple(
            Piece(fact.key, fact.value, niah_text.needle_sentence(fact.key, fact.value), at)
            for fact, at in zip(facts, depths, strict=True)
        )
        meta = {
            "places": [fact.place for fact in facts], "roles": [fact.role for fact in facts],
            "asked": [place[id(fact)] for fact in asked], "stale": [fact.stale for fact in asked],
        }  # fmt: skip
        supply, source = family.prose(draft, tokenizer)
        weave = Weave(niah_text.context_head(), pieces, questions, meta)
        return family.woven(self, draft, weave, supply, source, length, counter)


class _Once:
    """A tokenizer that counts each text of an item once: facts are counted to place them, and again to fit them."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner, self.fingerprint, self.special_tokens = inner, inner.fingerprint, special_tokens(inner)
        self.splits_at_spaces = splits_at_spaces(inner)
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)

    def learn(self, facts: Sequence[Fact]) -> None:
        """Count the sentences of many facts, by their keys and values alone where that is sure."""
        texts = [" " + niah_text.needle_sentence(fact.key, fact.value) for fact in facts]
        if len(texts) > SAMPLE:
            counts = counts_alike(texts, [(f" {fact.key}", f" {fact.value}.") for fact in facts], self.inner)
            self.known.update(() if counts is None else zip(texts, counts.tolist(), strict=True))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        missing = [text for text in dict.fromkeys(texts) if text not in self.known]
        self.known.update(zip(missing, count_batch(self.inner, missing).tolist(), strict=True))
        return [self.known[text] for text in texts]


def _question(fact: Fact, tokenizer: Tokenizer) -> Question:
    return family.ask(niah_text.question(fact.key), niah_text.answer_prefix(fact.key), (fact.value,), tokenizer)


def _depths(
    facts: Sequence[Fact], questions: Sequence[Question], length: int, tokenizer: _Once
) -> list[float]:
    """Fractions of the haystack's tokens that put each fact at its place of the context, in ascending order.

    Context = length - the most costly question. What stands before a fact is the head, earlier facts and haystack.
    """
    tokenizer.learn(facts)
    texts = [" " + niah_text.needle_sentence(fact.key, fact.value) for fact in facts]
    texts += [niah_text.context_head(), *(q.text + q.answer_prefix for q in questions)]
    sizes = count_batch(tokenizer, texts).tolist()
    needles, head, asked = sizes[: len(facts)], sizes[len(facts)], sizes[len(facts) + 1 :]
    tail = max(size + q.max_new_tokens for size, q in zip(asked, questions, strict=True)) + special_tokens(tokenizer)
    context = length - tail
    hay = max(1, context - head - sum(needles))
    depths, before, last = [], head, 0.0
    for fact, size in zip(facts, needles, strict=True):
        last = min(1.0, max(last, (fact.place * context - before) / hay))
        depths.append(last)
        before += size
    return depths
