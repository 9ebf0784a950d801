"""Needle in a haystack: the eight RULER-shaped tasks in a strict form (own wording, unique keys and values, random places).

Structure after RULER (arXiv 2404.06654). Each item is a pure function of (task@version, length, tokenizer, data seed, split,
index, depth); length and tokenizer change only how much haystack there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import haystack as haystacks
from . import niah_text, rng, vocabulary
from .errors import LengthBudgetError, TaskError
from .fit import Layout, Plan, fit
from .haystack import Haystack
from .item import Item, Needle, Question
from .supply import Counts, Supply, corpus_counts
from .tokenizers import Tokenizer, count, count_batch
from .word_counts import SAMPLE, counts_alike

ANSWER_SLACK = 4
"""Tokens of answer budget past the gold: room for a full stop, and for a wrong longer number to show that it is longer."""
_DRAW: dict[str, Callable[[int, str, int], list[str]]] = {
    "word": vocabulary.draw_words,
    "pair": vocabulary.draw_pairs,
    "number": vocabulary.draw_numbers,
    "uuid": vocabulary.draw_uuids,
}


@dataclass(frozen=True, kw_only=True)
class NiahTask:
    """`keys` needles' keys with `values` values each, `queries` keys asked; haystack: noise, prose or needles."""

    variant: str
    haystack: str
    key: str
    value: str
    keys: int = 1
    values: int = 1
    queries: int = 1
    version: int = 1

    @property
    def id(self) -> str:
        """The registry name, e.g. niah.single_2."""
        return f"niah.{self.variant}"

    def item(
        self,
        index: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
        haystack: Haystack | None = None,
    ) -> Item:
        """Item `index` at `length` tokens. `depth` in [0, 1] places the first asked needle, None draws it like the others.

        `haystack` replaces the prose (not noise or needles). Raises LengthBudgetError when `length` cannot hold one unit of
        haystack, TaskError for a bad argument.
        """
        self._check(index, length, split, depth)
        draft = _Draft(self, index, data_seed, split)
        keys = draft.draw("keys", self.key, self.keys)
        values = draft.draw("values", self.value, self.keys * self.values)
        depths = rng.fractions(draft.seed("depths"), len(values)).tolist()
        if depth is not None:
            depths[0] = float(depth)
        needles = [
            (keys[i // self.values], value, at) for i, (value, at) in enumerate(zip(values, depths, strict=True))
        ]
        needles.sort(key=lambda needle: needle[2])
        questions = tuple(self._question(key, needles, tokenizer) for key in keys[: self.queries])
        plan = Plan(
            self.id,
            length,
            tuple((niah_text.needle_sentence(key, value), at) for key, value, at in needles),
            tuple((q.text + q.answer_prefix, q.max_new_tokens) for q in questions),
        )
        supply, source = self._supply(draft, length, tokenizer, haystack)
        layout = fit(plan, supply, tokenizer)
        suffix = "" if depth is None else f"/depth{depth:g}"
        meta = {
            "variant": niah_text.VARIANT, "data_seed": data_seed, "index": index, "tokenizer": tokenizer.fingerprint,
            "asked_depth": None if depth is None else float(depth), "haystack": source, "haystack_start": supply.start,
            "haystack_units": layout.units, "counting": layout.counting,
        }  # fmt: skip
        return Item(
            id=f"{self.id}@{self.version}/{split}/seed{data_seed}/len{length}/{index}{suffix}",
            task=self.id,
            version=self.version,
            split=split,
            length=length,
            reached=layout.reached,
            context=layout.context,
            questions=questions,
            needles=_placed(needles, layout),
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
        haystack: Haystack | None = None,
    ) -> Iterator[Item]:
        """Items 0..n-1; arguments as in `item`."""
        for index in range(n):
            yield self.item(
                index,
                length=length,
                tokenizer=tokenizer,
                data_seed=data_seed,
                split=split,
                depth=depth,
                haystack=haystack,
            )

    def minimum_length(
        self, n: int, *, tokenizer: Tokenizer, data_seed: int = 0, split: str = "test", haystack: Haystack | None = None
    ) -> int:
        """The smallest length in tokens that holds every one of the items 0..n-1."""
        least = 0
        for index in range(n):
            try:
                self.item(index, length=1, tokenizer=tokenizer, data_seed=data_seed, split=split, haystack=haystack)
            except LengthBudgetError as error:
                least = max(least, error.minimum)
        return least

    def _check(self, index: int, length: int, split: str, depth: float | None) -> None:
        haystacks.check_split(split)
        if index < 0 or length < 1:
            raise TaskError(f"{self.id}: index {index} and length {length} must be at least 0 and 1")
        if depth is not None and not 0.0 <= depth <= 1.0:
            raise TaskError(f"{self.id}: depth {depth} is not in [0, 1]")

    def _question(self, key: str, needles: list[tuple[str, str, float]], tokenizer: Tokenizer) -> Question:
        golds = tuple(value for k, value, _ in needles if k == key)
        text = niah_text.question(key) if len(golds) == 1 else niah_text.question_all(key, len(golds))
        budget = count(tokenizer, niah_text.gold_continuation(golds)) + ANSWER_SLACK
        return Question(text, niah_text.answer_prefix(key), golds, budget)

    def _supply(
        self, draft: _Draft, length: int, tokenizer: Tokenizer, haystack: Haystack | None
    ) -> tuple[Supply, str]:
        if self.haystack == "needles":
            return self._distractors(draft, length, tokenizer), "needles"
        if self.haystack == "noise":
            source = haystacks.noise()
        else:
            source = haystack if haystack is not None else haystacks.sotu(draft.split)
        start = source.starts[int(rng.below(draft.seed("start"), len(source.starts), 1)[0])]
        return Supply(source.units, corpus_counts(source, tokenizer), start), source.name

    def _distractors(self, draft: _Draft, length: int, tokenizer: Tokenizer) -> Supply:
        """Needle sentences that are not asked for: the keys and values drawn after those of the asked needles."""
        most = vocabulary.pair_pool(draft.split) - self.keys if self.key == "pair" else length
        wanted, counts, needed = min(SAMPLE, most), None, 0
        while True:
            keys = draft.draw("keys", self.key, self.keys + wanted)[self.keys :]
            values = draft.draw("values", self.value, self.keys + wanted)[self.keys :]
            units = [niah_text.needle_sentence(key, value) for key, value in zip(keys, values, strict=True)]
            if counts is None:
                counts = _sentence_counts(units, keys, values, tokenizer)
                joined = count(tokenizer, " " + " ".join(units))
                # Where joining saves tokens, more units fit than their counts say; none may be used twice.
                needed = length if joined == counts.round else 2 * length
            else:
                counts = _sentence_counts(units, keys, values, tokenizer, counts)
            if counts.round > needed:
                return Supply(units, counts, 0)
            if wanted == most:
                raise TaskError(f"{self.id}: split '{draft.split}' has only {most} keys, too few for {length} tokens")
            # The mean so far tells how many are missing; some more, since the next ones may be shorter.
            wanted = min(most, wanted * needed * 104 // (counts.round * 100) + 8)


def _sentence_counts(
    units: list[str], keys: list[str], values: list[str], tokenizer: Tokenizer, before: Counts | None = None
) -> Counts:
    """Tokens of each needle sentence, behind a space; `before`: those of the first ones."""
    texts, known = [" " + unit for unit in units], None if before is None else before.per_unit
    if before is None or before.additive:
        words = [(f" {key} {value}.",) for key, value in zip(keys, values, strict=True)]
        alike = counts_alike(texts, words, tokenizer, known)
        if alike is not None:
            return Counts(alike, additive=True)
    return Counts(count_batch(tokenizer, texts), additive=None)


@dataclass(frozen=True)
class _Draft:
    """The identity of an item without length and tokenizer: everything random is drawn from it."""

    task: NiahTask
    index: int
    data_seed: int
    split: str

    def seed(self, purpose: str) -> int:
        name = f"{self.task.id}@{self.task.version}"
        return rng.seed_of("proteus-tasks", name, self.split, self.data_seed, self.index, purpose)

    def draw(self, purpose: str, kind: str, n: int) -> list[str]:
        return _DRAW[kind](self.seed(purpose), self.split, n)


def _placed(needles: list[tuple[str, str, float]], layout: Layout) -> tuple[Needle, ...]:
    return tuple(
        Needle(key, value, char, token, depth)
        for (key, value, depth), char, token in zip(needles, layout.char_offsets, layout.token_offsets, strict=True)
    )


VARIANTS: dict[str, NiahTask] = {
    task.variant: task
    for task in (
        NiahTask(variant="single_1", haystack="noise", key="word", value="number"),
        NiahTask(variant="single_2", haystack="prose", key="word", value="number"),
        NiahTask(variant="single_3", haystack="prose", key="word", value="uuid"),
        NiahTask(variant="multikey_1", haystack="prose", key="word", value="number", keys=4),
        NiahTask(variant="multikey_2", haystack="needles", key="pair", value="number"),
        NiahTask(variant="multikey_3", haystack="needles", key="uuid", value="uuid"),
        NiahTask(variant="multivalue", haystack="prose", key="word", value="number", values=4),
        NiahTask(variant="multiquery", haystack="prose", key="word", value="number", keys=4, queries=4),
    )
}
