"""Between texts and token ids: long texts, what ends an answer, and a continuation behind its prompt."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

# Longer texts are encoded in pieces: a tokenizer keeps about a hundred bytes a token until it returns.
PIECE_CHARS = 200_000
# Where every tokenizer of ours is additive: before a space that separates two words.
_SEAM = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")
# So much of a prompt decides how a tokenizer reads what follows it: a pre-tokenizer looks at words, not at pages.
TAIL_CHARS = 200


def encode_long(tokenizer: Any, text: str) -> np.ndarray:
    """Token ids (int32) of a text of any length, in bounded memory."""
    parts = []
    begin = 0
    while len(text) - begin > PIECE_CHARS:
        seam = _SEAM.search(text, begin + PIECE_CHARS)
        if seam is None:
            break
        parts.append(np.asarray(tokenizer.encode(text[begin : seam.start()]), dtype=np.int32))
        begin = seam.start()
    parts.append(np.asarray(tokenizer.encode(text[begin:]), dtype=np.int32))
    return np.concatenate(parts)


def continuation_ids(tokenizer: Any, prompt: str, continuation: str) -> list[int]:
    """The ids of a text behind a prompt: those of both together, less the prompt's.

    Where the seam itself becomes a token, the continuation is encoded alone. The same as `encode(continuation)` for
    tokenizers that add nothing at the start of a text.
    """
    tail = prompt[-TAIL_CHARS:]
    before = tokenizer.encode(tail)
    both = tokenizer.encode(tail + continuation)
    found = both[len(before) :] if both[: len(before)] == before else []
    return list(found or tokenizer.encode(continuation))


_STOPS: dict[tuple[str, str | tuple[str, ...]], frozenset[int]] = {}  # by fingerprint and rule, or strings
STOP_SIGNS = {"sentence": "\n.", "line": "\n", "none": ""}


def stop_ids(tokenizer: Any, rule: str = "sentence") -> frozenset[int]:
    """Tokens that end an answer: those with a line end or a full stop in them (sentence), a line end (line), or none."""
    key = (tokenizer.fingerprint, rule)
    if key not in _STOPS:
        signs = STOP_SIGNS[rule]
        texts = ((i, tokenizer.decode([i])) for i in range(tokenizer.vocab_size if signs else 0))
        _STOPS[key] = frozenset(i for i, text in texts if any(sign in text for sign in signs))
    return _STOPS[key]


def ids_that_begin_with(tokenizer: Any, texts: tuple[str, ...]) -> frozenset[int]:
    """Tokens whose text begins with one of the texts: where one is chosen, nothing before it is lost."""
    key = (tokenizer.fingerprint, texts)
    if key not in _STOPS:
        found = ((i, tokenizer.decode([i])) for i in range(tokenizer.vocab_size))
        _STOPS[key] = frozenset(i for i, text in found if text.startswith(texts))
    return _STOPS[key]


def stop_strings(rule: str) -> list[str]:
    """The same rule as strings, for a model that is asked in text."""
    return list(STOP_SIGNS[rule])


def cut_at_stop(text: str, rule: str) -> str:
    """What a text answer holds before the first sign that ends it, as if its tokens had been looked at one by one."""
    ends = [at for sign in STOP_SIGNS[rule] if (at := text.find(sign)) >= 0]
    return text[: min(ends)].rstrip(" ") if ends else text
