"""What all probe items share: facts at places of the context, some of them asked for.

A place is a fraction of the CONTEXT's tokens, not of the haystack's: with many facts the two differ, and two conditions that
are compared (with and without other facts) must hold a fact at the same position. Key, value and place of a fact depend on
neither length nor tokenizer. The wording is that of the needle tasks: a model that can answer those knows what it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .. import haystack as haystacks
from .. import niah_text, rng, vocabulary
from ..errors import TaskError
from ..fit import Plan, fit
from ..item import Item, Needle, Question
from ..niah import ANSWER_SLACK
from ..supply import Supply, corpus_counts
from ..tokenizers import Tokenizer, count, count_batch, special_tokens

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


@dataclass(frozen=True)
class Draft:
    """The identity of an item without length and tokenizer. `family` is shared by tasks whose items are paired."""

    family: str
    index: int
    data_seed: int
    split: str

    def seed(self, purpose: str) -> int:
        return rng.seed_of("proteus-tasks", self.family, self.split, self.data_seed, self.index, purpose)

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
    """What tells one probe from another: its id, and the facts of an item."""

    @property
    def id(self) -> str: ...

    @property
    def family(self) -> str: ...

    def facts(self, draft: Draft) -> list[Fact]: ...


@dataclass(frozen=True)
class ProbeTask:
    """The items of one sheet: a pure function of (id@version, length, tokenizer, data seed, split, index)."""

    sheet: Sheet
    version: int = 1

    @property
    def id(self) -> str:
        """The registry name, e.g. capacity.mqar_16."""
        return self.sheet.id

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
        haystacks.check_split(split)
        if index < 0 or length < 1:
            raise TaskError(f"{self.id}: index {index} and length {length} must be at least 0 and 1")
        if depth is not None:
            raise TaskError(f"{self.id}: a probe spreads its facts over the whole window and takes no depth")
        draft = Draft(f"{self.sheet.family}@{self.version}", index, data_seed, split)
        tokenizer = _Once(tokenizer)
        facts = sorted(self.sheet.facts(draft), key=lambda fact: fact.place)
        asked = sorted((fact for fact in facts if fact.asked is not None), key=lambda fact: fact.asked or 0)
        questions = tuple(_question(fact, tokenizer) for fact in asked)
        source = haystacks.sotu(split)
        start = source.starts[int(rng.below(draft.seed("start"), len(source.starts), 1)[0])]
        supply = Supply(source.units, corpus_counts(source, tokenizer), start)
        depths = _depths(facts, questions, length, tokenizer)
        plan = Plan(
            self.id,
            length,
            tuple((niah_text.needle_sentence(f.key, f.value), at) for f, at in zip(facts, depths, strict=True)),
            tuple((q.text + q.answer_prefix, q.max_new_tokens) for q in questions),
        )
        layout = fit(plan, supply, tokenizer)
        needles = tuple(
            Needle(fact.key, fact.value, char, token, at)
            for fact, char, token, at in zip(facts, layout.char_offsets, layout.token_offsets, depths, strict=True)
        )
        meta: dict[str, Any] = {
            "variant": niah_text.VARIANT, "data_seed": data_seed, "index": index, "tokenizer": tokenizer.fingerprint,
            "haystack": source.name, "haystack_start": start, "haystack_units": layout.units, "counting": layout.counting,
            "places": [fact.place for fact in facts], "roles": [fact.role for fact in facts],
            "asked": [facts.index(fact) for fact in asked], "stale": [fact.stale for fact in asked],
        }  # fmt: skip
        return Item(
            id=f"{self.id}@{self.version}/{split}/seed{data_seed}/len{length}/{index}",
            task=self.id,
            version=self.version,
            split=split,
            length=length,
            reached=layout.reached,
            context=layout.context,
            questions=questions,
            needles=needles,
            truncation="none",
            gold_survives=True,
            meta=meta,
        )

    def items(
        self,
        n: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Iterator[Item]:
        """Items 0..n-1; arguments as in `item`."""
        for index in range(n):
            yield self.item(
                index, length=length, tokenizer=tokenizer, data_seed=data_seed, split=split, depth=depth
            )


class _Once:
    """A tokenizer that counts each text of an item once: facts are counted to place them, and again to fit them."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner, self.fingerprint, self.special_tokens = inner, inner.fingerprint, special_tokens(inner)
        self.known: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        missing = [text for text in dict.fromkeys(texts) if text not in self.known]
        self.known.update(zip(missing, count_batch(self.inner, missing).tolist(), strict=True))
        return [self.known[text] for text in texts]


def _question(fact: Fact, tokenizer: Tokenizer) -> Question:
    golds = (fact.value,)
    budget = count(tokenizer, niah_text.gold_continuation(golds)) + ANSWER_SLACK
    return Question(niah_text.question(fact.key), niah_text.answer_prefix(fact.key), golds, budget)


def _depths(
    facts: Sequence[Fact], questions: Sequence[Question], length: int, tokenizer: Tokenizer
) -> list[float]:
    """Fractions of the haystack's tokens that put each fact at its place of the context, in ascending order.

    Context = length - the most costly question. What stands before a fact is the head, earlier facts and haystack.
    """
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
