"""Needle in a haystack: the eight RULER-shaped tasks in a strict form (own wording, unique keys and values, random places).

Structure after RULER (arXiv 2404.06654). Each item is a pure function of (task@version, length, tokenizer, data seed, split,
index, depth); length and tokenizer change only how much haystack there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import haystack as haystacks
from . import niah_text, rng, vocabulary
from .errors import TaskError
from .family import ANSWER_SLACK, Draft, Family, Piece, Weave, prose, woven
from .haystack import Haystack
from .item import Item, Question
from .supply import Counts, Supply
from .tokenizers import Tokenizer, count, count_batch
from .word_counts import SAMPLE, counts_alike

_DRAW: dict[str, Callable[[int, str, int], list[str]]] = {
    "word": vocabulary.draw_words,
    "pair": vocabulary.draw_pairs,
    "number": vocabulary.draw_numbers,
    "uuid": vocabulary.draw_uuids,
}


@dataclass(frozen=True, kw_only=True)
class NiahTask(Family):
    """`keys` needles' keys with `values` values each, `queries` keys asked; haystack: noise, prose or needles."""

    variant: str
    haystack: str
    key: str
    value: str
    keys: int = 1
    values: int = 1
    queries: int = 1
    version: int = 1
    takes_depth = True

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
        draft = self.draft(index, length, data_seed, split, depth)
        keys = self._draw(draft, "keys", self.key, self.keys)
        values = self._draw(draft, "values", self.value, self.keys * self.values)
        depths = rng.fractions(draft.seed("depths"), len(values)).tolist()
        if depth is not None:
            depths[0] = float(depth)
        pieces = [
            Piece(key, value, niah_text.needle_sentence(key, value), at)
            for key, value, at in zip((k for k in keys for _ in range(self.values)), values, depths, strict=True)
        ]
        pieces.sort(key=lambda piece: piece.depth)
        questions = tuple(self._question(key, pieces, tokenizer) for key in keys[: self.queries])
        meta = {"asked_depth": None if depth is None else float(depth)}
        weave = Weave(niah_text.context_head(), tuple(pieces), questions, meta)
        supply, source = self._supply(draft, length, tokenizer, haystack)
        return woven(self, draft, weave, supply, source, length, tokenizer, depth)

    def _question(self, key: str, pieces: Sequence[Piece], tokenizer: Tokenizer) -> Question:
        golds = tuple(piece.value for piece in pieces if piece.key == key)
        text = niah_text.question(key) if len(golds) == 1 else niah_text.question_all(key, len(golds))
        budget = count(tokenizer, niah_text.gold_continuation(golds)) + ANSWER_SLACK
        return Question(text, niah_text.answer_prefix(key), golds, budget)

    def _supply(
        self, draft: Draft, length: int, tokenizer: Tokenizer, haystack: Haystack | None
    ) -> tuple[Supply, str]:
        if self.haystack == "needles":
            return self._distractors(draft, length, tokenizer), "needles"
        return prose(draft, tokenizer, haystacks.noise() if self.haystack == "noise" else haystack)

    @staticmethod
    def _draw(draft: Draft, purpose: str, kind: str, n: int) -> list[str]:
        return _DRAW[kind](draft.seed(purpose), draft.split, n)

    def _distractors(self, draft: Draft, length: int, tokenizer: Tokenizer) -> Supply:
        """Needle sentences that are not asked for: the keys and values drawn after those of the asked needles."""
        most = vocabulary.pair_pool(draft.split) - self.keys if self.key == "pair" else length
        wanted, counts, needed = min(SAMPLE, most), None, 0
        while True:
            keys = self._draw(draft, "keys", self.key, self.keys + wanted)[self.keys :]
            values = self._draw(draft, "values", self.value, self.keys + wanted)[self.keys :]
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
