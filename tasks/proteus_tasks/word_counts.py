"""Counting less text where a tokenizer never looks past a space: its `splits_at_spaces` says so, samples check it.

Then the tokens of an ASCII text are those of its words. Sentences that differ in a few words need only those counted, and the
seam of two sentences needs only the words at its sides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .tokenizers import Tokenizer, count_batch

SAMPLE = 16
"""Sentences that are also counted whole."""
_KEPT: dict[tuple[str, str], int] = {}
_SLOTS = 2**16


def splits_at_spaces(tokenizer: Tokenizer) -> bool:
    """False for a tokenizer that does not say."""
    return bool(getattr(tokenizer, "splits_at_spaces", False))


def counts_alike(
    texts: Sequence[str], varying: Sequence[tuple[str, ...]], tokenizer: Tokenizer, known: np.ndarray | None = None
) -> np.ndarray | None:
    """Tokens of texts that are one sentence but for some words, int64 [len(texts)]; None where only whole counts can tell.

    `varying` holds those words of each text, each behind a space. What they leave over must be equal in the first texts: a
    tokenizer may treat the beginning of a text apart, but then it does so every time. `known`: what an earlier call found
    for the first of the texts.
    """
    if not splits_at_spaces(tokenizer) or not "".join(texts).isascii():
        return None
    if known is not None and len(known):
        rest = known[:1] - _sums(varying[:1], tokenizer)
        return np.concatenate((known, _sums(varying[len(known) :], tokenizer) + rest))
    words, whole = _sums(varying, tokenizer), count_batch(tokenizer, texts[:SAMPLE])
    rest = whole - words[:SAMPLE]
    return words + rest[0] if (rest == rest[0]).all() else None


def seams_add_up(pairs: Sequence[tuple[str, str]], sep: str, tokenizer: Tokenizer) -> bool | None:
    """Whether joining each pair of texts by `sep` adds no token and saves none; None where only whole counts can tell."""
    if sep != " " or not splits_at_spaces(tokenizer):
        return None
    sides = [(" " + left[left.rfind(" ") + 1 :], " " + right.split(" ", 1)[0]) for left, right in pairs]
    if not all(left.isascii() and right.isascii() for left, right in sides):
        return None
    known = _counted([text for left, right in sides for text in (left + right, left, right)], tokenizer)
    return all(known[left + right] == known[left] + known[right] for left, right in sides)


def _sums(texts: Sequence[tuple[str, ...]], tokenizer: Tokenizer) -> np.ndarray:
    """Tokens of the words of each text."""
    known = _counted([word for words in texts for word in words], tokenizer)
    return np.array([sum([known[word] for word in words]) for words in texts], dtype=np.int64)


def _counted(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens of each text. The words of a corpus meet again in every item, so the latest counts are kept."""
    name, found, missing = tokenizer.fingerprint, {}, []
    for text in dict.fromkeys(texts):
        kept = _KEPT.get((name, text))
        if kept is None:
            missing.append(text)
        else:
            found[text] = kept
    if missing:
        new = dict(zip(missing, count_batch(tokenizer, missing).tolist(), strict=True))
        found.update(new)
        _KEPT.update({(name, text): tokens for text, tokens in new.items()})
        if len(_KEPT) > _SLOTS:
            for old in list(_KEPT)[: _SLOTS // 2]:
                del _KEPT[old]
    return found
