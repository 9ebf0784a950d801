"""Lines of other documents as haystack: those that mention neither key nor value, so that a question keeps its one answer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import TaskError
from .haystack import MAX_START_WORDS, MAX_WORDS, Haystack
from .supply import Counts, Supply, corpus_counts
from .tokenizers import Tokenizer, count_batch

_SEAMS: dict[tuple[str, str], dict[tuple[int, int], bool]] = {}
_SEAM_SLOTS = 16


@dataclass(frozen=True)
class Corpus:
    """Lines in document order. `owner[i]` numbers the text of line i's document; `lowered` serves searches."""

    name: str
    haystack: Haystack
    owner: tuple[int, ...]
    lowered: tuple[str, ...]
    texts: dict[str, int]

    @property
    def starts(self) -> tuple[int, ...]:
        return self.haystack.starts

    @classmethod
    def of(
        cls,
        name: str,
        documents: Sequence[tuple[str, Sequence[str]]],
        most_words: int = MAX_WORDS,
        start_words: int = MAX_START_WORDS,
    ) -> Corpus:
        """Lines of (text, lines) pairs; a text that stands twice counts once, empty and over-long lines are left out."""
        units: list[str] = []
        spans, owner = [], []
        texts: dict[str, int] = {}
        for text, lines in documents:
            if text in texts:
                continue
            texts[text] = len(texts)
            first = len(units)
            units += [line.strip() for line in lines if line.strip() and len(line.split()) <= most_words]
            owner += [texts[text]] * (len(units) - first)
            if len(units) > first:
                spans.append((first, len(units)))
        starts = tuple(i for i, unit in enumerate(units) if len(unit.split()) <= start_words)
        if not starts:
            raise TaskError(f"{name}: no line of at most {start_words} words to start from")
        digest = hashlib.sha256("\n".join(units).encode("utf-8")).hexdigest()
        stack = Haystack(name, tuple(units), tuple(spans), starts, digest)
        return cls(name, stack, tuple(owner), tuple(unit.casefold() for unit in units), texts)


def padding(
    corpus: Corpus,
    tokenizer: Tokenizer,
    start: int,
    tokens: int,
    banned: Sequence[str],
    own: Sequence[str],
    sep: str = "\n",
) -> Supply:
    """Lines from the `start`-th starting line on, enough for `tokens` tokens where the corpus has them, without the documents
    whose texts are `own` and without lines that hold a banned text. TaskError when no line is left."""
    counts = corpus_counts(corpus.haystack, tokenizer, sep)
    wanted = [text.casefold() for text in banned if text]
    mine = {corpus.texts[text] for text in own if text in corpus.texts}
    size, first = len(corpus.lowered), corpus.starts[start]
    kept: list[int] = []
    total = 0
    per_unit = counts.per_unit
    for step in range(size):
        at = (first + step) % size
        line = corpus.lowered[at]
        if corpus.owner[at] in mine or any(text in line for text in wanted):
            continue
        kept.append(at)
        total += int(per_unit[at])
        if total > tokens:
            break
    if not kept:
        raise TaskError(f"{corpus.name}: every line holds one of {', '.join(map(repr, banned))}")
    additive = bool(counts.additive) and _seams_add_up(corpus, tokenizer, sep, kept, per_unit)
    units = [corpus.haystack.units[i] for i in kept]
    return Supply(units, Counts(per_unit[kept], additive), 0)


def _seams_add_up(corpus: Corpus, tokenizer: Tokenizer, sep: str, kept: Sequence[int], per_unit: np.ndarray) -> bool:
    """Whether lines that are no neighbours in the corpus add up: each new seam is counted once and remembered."""
    size = len(corpus.lowered)
    key = (tokenizer.fingerprint, corpus.haystack.sha256 + repr(sep))
    while len(_SEAMS) > _SEAM_SLOTS:
        _SEAMS.pop(next(iter(_SEAMS)))
    known = _SEAMS.setdefault(key, {})
    pairs = [(a, b) for a, b in zip(kept, [*kept[1:], kept[0]], strict=True) if b != (a + 1) % size]
    new = [pair for pair in dict.fromkeys(pairs) if pair not in known]
    if new:
        units = corpus.haystack.units
        found = count_batch(tokenizer, [f"{sep}{units[a]}{sep}{units[b]}" for a, b in new])
        expected = [int(per_unit[a] + per_unit[b]) for a, b in new]
        known.update({pair: int(n) == e for pair, n, e in zip(new, found, expected, strict=True)})
    return all(known[pair] for pair in pairs)
