"""Common words and frequent words, strict form: a list of words, of which the most frequent ones are asked.

Structure after RULER's cwe and fwe (arXiv 2404.06654): ten common words above a floor of equally rare ones; and made-up words
whose frequency falls like 1 / rank^2. Here every word of the list stands once before any word stands twice, so that the order
of first appearance says nothing: naming the first ones scores (asked / different words), the recorded chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from . import rng, vocabulary
from .errors import LengthBudgetError
from .family import Draft, Family, ask
from .item import Item, Question
from .tokenizers import Tokenizer, count, count_batch, special_tokens

HEAD = "Count how often each word stands in the list below.\nList:"
COMMON = 10
_CONSONANTS, _VOWELS = "bdfghjklmnprstvwz", "aeiou"
_SYLLABLES = tuple(c + v for c in _CONSONANTS for v in _VOWELS)
_FREQUENT = 3
_LEAST_SLOTS = {"cwe": 55, "fwe": 40}
_TAIL = np.pi**2 / 6 - 1  # sum of 1 / rank^2 from rank 2 on: rank 1 is left out, as RULER blanks it


def draw_made_up(seed: int, split: str, n: int) -> list[str]:
    """n distinct made-up words of three syllables. Splits are disjoint, by the residue of the word's number."""
    size = len(_SYLLABLES)

    def candidates(m: int) -> np.ndarray:
        numbers = rng.below(seed, size**3, m)
        return numbers[vocabulary.in_split(numbers, split)]

    drawn = rng.distinct(candidates, n, 4 * n + 16).tolist()
    return [_SYLLABLES[i // size**2] + _SYLLABLES[i // size % size] + _SYLLABLES[i % size] for i in drawn]


def cwe_counts(slots: int, pool: int) -> np.ndarray:
    """How often each word stands in a list of `slots`: ten common ones first, then as many others as there are."""
    floor = max(1, slots // 400)
    common = 5 * floor if slots >= 100 else 4
    rest = slots - COMMON * common
    others = min(pool - COMMON, rest)
    each, more = divmod(rest, others)
    return np.concatenate((np.full(COMMON, common), np.full(more, each + 1), np.full(others - more, each)))


def fwe_counts(slots: int) -> np.ndarray:
    """How often each word stands in a list of `slots`, falling like 1 / (rank + 1)^2, then words that stand once."""
    ranks = np.arange(1, slots + 1, dtype=np.float64)
    counts = (slots / (_TAIL * (ranks + 1) ** 2)).astype(np.int64)
    counts = counts[counts >= 2]
    return np.concatenate((counts, np.ones(slots - int(counts.sum()), dtype=np.int64)))


@dataclass(frozen=True, kw_only=True)
class WordsTask(Family):
    """`kind` cwe (the ten common words of our vocabulary) or fwe (the three most frequent made-up words)."""

    kind: str
    version: int = 1

    @property
    def id(self) -> str:
        return f"ruler.{self.kind}"

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
        asked = COMMON if self.kind == "cwe" else _FREQUENT
        words, counts_of = self._words(draft, length)
        text = f"\nQuestion: which {asked} words stand most often in the list?\nAnswer:"
        prefix = f" The {asked} most frequent words are"
        # cwe's golds are equally frequent, and fwe's stand in order of frequency: neither order depends on the length.
        question = ask(text, prefix, words[:asked], tokenizer)
        listing = _Listing(draft, words, counts_of, tokenizer, question)
        slots = listing.fit(self.id, length, _LEAST_SLOTS[self.kind])
        counts = counts_of(slots)
        meta = {
            "variant": "strict", "data_seed": data_seed, "index": index, "tokenizer": tokenizer.fingerprint,
            "scorers": {"strict": "strict@1", "compat": "ruler-all@1"}, "words": slots, "different": len(counts),
            "counts": [int(c) for c in counts[:asked]], "next_count": int(counts[asked]),
            "chance": asked / len(counts), "counting": listing.counting,
        }  # fmt: skip
        return self.build(
            draft,
            length,
            reached=listing.total(slots),
            context=listing.context(slots),
            questions=(question,),
            meta=meta,
        )

    def _words(self, draft: Draft, length: int) -> tuple[list[str], Callable[[int], np.ndarray]]:
        if self.kind == "cwe":
            pool = len(vocabulary.words(draft.split))
            return vocabulary.draw_words(draft.seed("words"), draft.split, pool), lambda n: cwe_counts(n, pool)
        # A list never has more slots than tokens, and its different words grow like the root of the slots.
        most = len(fwe_counts(max(length, _LEAST_SLOTS["fwe"])))
        return draw_made_up(draft.seed("words"), draft.split, most), fwe_counts


class _Listing:
    """The list at any number of slots, with its tokens as sums of parts; whole counts where the parts do not add up."""

    def __init__(
        self,
        draft: Draft,
        words: list[str],
        counts_of: Callable[[int], np.ndarray],
        tokenizer: Tokenizer,
        question: Question,
    ) -> None:
        self.draft, self.words, self.counts_of, self.tokenizer = draft, words, counts_of, tokenizer
        self.question = question
        self.sizes = count_batch(tokenizer, [" " + word for word in words])
        self.asked = question.text + question.answer_prefix
        self.tail = count(tokenizer, self.asked) + question.max_new_tokens + special_tokens(tokenizer)
        self.head = count(tokenizer, HEAD)
        self.counting = "parts"

    def total(self, slots: int) -> int:
        if self.counting == "whole":
            text = self.context(slots) + self.asked
            return count(self.tokenizer, text) + self.question.max_new_tokens + special_tokens(self.tokenizer)
        counts = self.counts_of(slots)
        return self.head + int((counts * self.sizes[: len(counts)]).sum()) + self.tail

    def fit(self, task: str, length: int, least: int) -> int:
        """The number of slots at which one more would be too long."""
        slots = self._search(task, length, least)
        if not self._adds_up(slots):
            self.counting = "whole"
            slots = self._search(task, length, least)
        return slots

    def _search(self, task: str, length: int, least: int) -> int:
        needed = self.total(least)
        if needed > length:
            raise LengthBudgetError(task, length, needed)
        low, high = least, max(least + 1, length)
        while self.total(high) <= length:
            high *= 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.total(middle) <= length else (low, middle)
        return low

    def _adds_up(self, slots: int) -> bool:
        """The list's first round, in which every word stands once, and its end with the question, are counted whole."""
        order = self._order(slots)
        different = len(self.counts_of(slots))
        start = HEAD + "".join(" " + self.words[i] for i in order[:different])
        end = "".join(" " + self.words[i] for i in order[-8:]) + self.asked
        expected = [
            self.head + int(self.sizes[:different].sum()),
            int(self.sizes[order[-8:]].sum()) + count(self.tokenizer, self.asked),
        ]
        return count_batch(self.tokenizer, [start, end]).tolist() == expected

    def _order(self, slots: int) -> np.ndarray:
        counts = self.counts_of(slots)
        first = rng.raw(self.draft.seed("first round"), len(counts)).argsort(kind="stable")
        again = np.repeat(np.arange(len(counts)), counts - 1)
        return np.concatenate((first, again[rng.raw(self.draft.seed("rest"), len(again)).argsort(kind="stable")]))

    def context(self, slots: int) -> str:
        return HEAD + "".join(" " + self.words[i] for i in self._order(slots).tolist())


WORD_TASKS: tuple[WordsTask, ...] = (WordsTask(kind="cwe"), WordsTask(kind="fwe"))
