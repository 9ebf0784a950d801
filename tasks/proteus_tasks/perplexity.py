"""Perplexity by position: the same words, predicted after more and more of the text before them (the paper's figure 4).

An item is a window of 128 words of running text. At length L it stands at the end of L tokens of the same text, so that a
difference between lengths is a difference of context and of nothing else. Its score is the geometric mean probability of a
token, the inverse of the perplexity; runs also report perplexity and bits per byte with intervals.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from . import haystack, rng, sources
from .errors import DataFileError, LengthBudgetError, TaskError
from .family import Family
from .haystack import Haystack
from .item import Item, Question
from .supply import corpus_counts
from .tokenizers import Tokenizer, count, special_tokens

UNIT_WORDS = 16
GOLD_UNITS = 8
_MAX_UNIT_CHARS = 2000


def stream(name: str, texts: list[str]) -> Haystack:
    """Running text as units of 16 words. DataFileError for text without spaces, or too short for one window."""
    units: list[str] = []
    spans = []
    for text in texts:
        words = re.sub(r"\s+", " ", text).strip().split(" ")
        first = len(units)
        units += [" ".join(words[i : i + UNIT_WORDS]) for i in range(0, len(words), UNIT_WORDS) if words[i]]
        if len(units) > first:
            spans.append((first, len(units)))
    if len(units) < 2 * (GOLD_UNITS + 1):
        raise DataFileError(f"{name}: at least {2 * (GOLD_UNITS + 1) * UNIT_WORDS} words are needed")
    if max(map(len, units)) > _MAX_UNIT_CHARS:
        raise DataFileError(
            f"{name}: {UNIT_WORDS} words take more than {_MAX_UNIT_CHARS} characters; is it running text?"
        )
    digest = hashlib.sha256("\n".join(units).encode("utf-8")).hexdigest()
    return Haystack(name, tuple(units), tuple(spans), (0,), digest)


@lru_cache(maxsize=3)
def prose(split: str) -> Haystack:
    """The shipped addresses of a split, whole, by year."""
    return stream(f"sotu-{split}-running", [document.text for document in haystack.documents(split)])


@lru_cache(maxsize=4)
def own_text(data_dir: str | None) -> Haystack:
    """The user's text: text.txt, text.jsonl, text.json or text.parquet (field `text`) of the data folder."""
    table = sources.load(sources.SOURCES["text"], data_dir)
    return stream(f"text-{table.sha256[:16]}", [row["text"] for row in table.rows])


@dataclass(frozen=True, kw_only=True)
class PerplexityTask(Family):
    """Windows of `text`: prose (shipped) or text (the user's)."""

    text: str
    data_dir: str | None = None
    version: int = 1

    @property
    def id(self) -> str:
        return f"ppl.{self.text}"

    @property
    def data_sha256(self) -> str | None:
        """sha256 of the user's text; None for the shipped prose."""
        return None if self.text == "prose" else own_text(sources.folder_of(self.data_dir)).sha256

    def size(self, split: str = "test") -> int:
        """How many windows there are."""
        return len(self._stream(split).units) // (GOLD_UNITS + 1)

    def _stream(self, split: str) -> Haystack:
        return prose(split) if self.text == "prose" else own_text(sources.folder_of(self.data_dir))

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
        source, windows = self._stream(split), self.size(split)
        if index >= windows:
            raise TaskError(f"{self.id}: {windows} windows, window {index} is asked")
        at = _order(windows, split, data_seed)[index] * (GOLD_UNITS + 1)
        asked = f" {source.units[at]}"
        gold = " ".join(source.units[at + 1 : at + 1 + GOLD_UNITS])
        run = _Run(self.id, source, at, tokenizer, asked, gold)
        units, reached, counting = run.fit(length)
        meta = {
            "variant": "running", "data_seed": data_seed, "index": index, "tokenizer": tokenizer.fingerprint,
            "scorers": {"strict": "token-probability@1", "compat": "token-probability@1"}, "text": source.name,
            "text_sha256": source.sha256, "window": at, "context_units": units, "counting": counting,
            "gold_bytes": len(f" {gold}".encode()),
        }  # fmt: skip
        return self.build(
            draft,
            length,
            reached=reached,
            context=run.context(units),
            questions=(Question(asked, "", (gold,), 0),),
            meta=meta,
        )


class _Run:
    """The units before a window, as many as fit."""

    def __init__(self, task: str, source: Haystack, at: int, tokenizer: Tokenizer, asked: str, gold: str) -> None:
        self.task, self.source, self.at, self.tokenizer = task, source, at, tokenizer
        self.text = f"{asked} {gold}"
        self.counts = corpus_counts(source, tokenizer)
        self.size = len(source.units)
        self.tail = count(tokenizer, self.text) + special_tokens(tokenizer)

    def units(self, n: int) -> list[str]:
        """The n units before the window; before the first unit of the text comes its last one."""
        first = self.at - n
        return list(self.source.units[max(first, 0) : self.at]) if first >= 0 else (
            list(self.source.units[first:]) + list(self.source.units[: self.at])
        )  # fmt: skip

    def context(self, n: int) -> str:
        return " ".join(self.units(n))

    def fit(self, length: int) -> tuple[int, int, str]:
        """(units, tokens of the item, how they were counted)."""
        # At the most everything but the window itself, which must not be seen before it is asked.
        most = self.size - GOLD_UNITS - 1
        prefix = self.counts.prefix
        end = prefix[self.at + self.size]
        first = int(np.searchsorted(prefix, end - (length - self.tail), side="left"))
        units = min(most, max(1, self.at + self.size - first))
        if self.counts.additive:
            while units < most and self._sum(units + 1) <= length:
                units += 1
            while units > 1 and self._sum(units) > length:
                units -= 1
            if self._sum(units) <= length and self._seam_adds_up():
                self._check(length, units, most, self._sum)
                return units, self._sum(units), "parts"
        return self._fit_whole(length, units, most)

    def _sum(self, n: int) -> int:
        unit = self.source.units[(self.at - n) % self.size]
        opening = count(self.tokenizer, unit) - int(self.counts.per_unit[(self.at - n) % self.size])
        prefix = self.counts.prefix
        return opening + int(prefix[self.at + self.size] - prefix[self.at + self.size - n]) + self.tail

    def _seam_adds_up(self) -> bool:
        before = f" {self.source.units[(self.at - 1) % self.size]}"
        return count(self.tokenizer, before + self.text) == count(self.tokenizer, before) + count(
            self.tokenizer, self.text
        )

    def _whole(self, n: int) -> int:
        return count(self.tokenizer, self.context(n) + self.text) + special_tokens(self.tokenizer)

    def _fit_whole(self, length: int, guess: int, most: int) -> tuple[int, int, str]:
        least = self._whole(1)
        if least > length:
            raise LengthBudgetError(self.task, length, least)
        low, high = 1, min(most, guess + 1)
        while high < most and self._whole(high) <= length:
            low, high = high, min(most, 2 * high)
        if high == most and self._whole(most) <= length:
            low = most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._whole(middle) <= length else (low, middle)
        self._check(length, low, most, self._whole)
        return low, self._whole(low), "whole"

    def _check(self, length: int, units: int, most: int, total: object) -> None:
        if units == most:
            raise TaskError(f"{self.task}: {self.source.name} has fewer than {length} tokens before and after a window")


@lru_cache(maxsize=64)
def _order(n: int, split: str, data_seed: int) -> tuple[int, ...]:
    raw = rng.raw(rng.seed_of("proteus-tasks", "ppl", split, data_seed), n)
    return tuple(int(i) for i in raw.argsort(kind="stable"))


PERPLEXITY_TASKS: tuple[PerplexityTask, ...] = (PerplexityTask(text="prose"), PerplexityTask(text="text"))
