"""The strict rule and the substring rule: golds and an output in, a score in [0, 1] out.

``strict`` reads the output as an answer: the first things in it that look like the golds must be the golds. Dumping
every candidate or echoing the prompt therefore scores at chance. ``contains`` is the substring rule of the older suites,
kept for comparison with their numbers; it pays for dumping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# An answer that starts later than this many words (per gold) is no answer; it bounds what an echo can hit.
WINDOW_WORDS = 24

# A value is never a part of a longer one: hyphens and dots bind, and so does a comma that groups thousands.
_TOKEN = re.compile(r"\w+(?:(?:[-.]|,(?=[0-9]{3}(?!\w)))\w+)*")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PIECE = re.compile(r"[,;\n]|\band\b")
_JOINING_WORDS = frozenset({"and", "or"})


def strict(golds: Sequence[str], output: str) -> float:
    """Fraction of the distinct golds among the first as many distinct value-shaped candidates of the output, any order.

    With one gold: 1.0 exactly when the first candidate is the gold. A candidate is a whole token with the shape of a
    gold: digits of the same number, a UUID, hyphenated words of as many parts, hexadecimal of the same length, a word.
    Golds of several words are compared with the pieces between commas, semicolons, line ends and "and".
    Letters compare without case. Only the first 24 words per gold are read. Raises TypeError or ValueError for golds
    that are not a non-empty sequence of non-empty strings.
    """
    wanted = {gold.casefold() for gold in _checked(golds, output)}
    window = _window(output, WINDOW_WORDS * len(wanted)).casefold()
    if any(_TOKEN.fullmatch(gold) is None for gold in wanted):
        candidates = _pieces(window, wanted)
    else:
        shapes = {_shape(gold) for gold in wanted}
        tokens = (match[0] for match in _TOKEN.finditer(window))
        candidates = (token for token in tokens if _shape(token) in shapes)
        if len(wanted) > 1:  # between several words, "and" is punctuation
            candidates = (token for token in candidates if token not in _JOINING_WORDS - wanted)
    first: set[str] = set()
    for candidate in candidates:
        first.add(candidate)
        if len(first) == len(wanted):
            break
    return len(first & wanted) / len(wanted)


def contains(golds: Sequence[str], output: str) -> float:
    """Fraction of golds that are substrings of the output, without case: the rule of the older suites (compat)."""
    lowered = output.lower() if isinstance(output, str) else output
    checked = _checked(golds, lowered)
    return sum(gold.lower() in lowered for gold in checked) / len(checked)


def _checked(golds: Sequence[str], output: str) -> Sequence[str]:
    if isinstance(golds, str | bytes) or not isinstance(golds, Sequence):
        raise TypeError(f"golds must be a sequence of strings, not {type(golds).__name__}")
    if not isinstance(output, str):
        raise TypeError(f"output must be a string, not {type(output).__name__}")
    if not golds:
        raise ValueError("an item without a gold cannot be scored")
    for gold in golds:
        if not isinstance(gold, str):
            raise TypeError(f"golds must be strings, not {type(gold).__name__}")
        if not gold.strip() or gold != gold.strip():
            raise ValueError(f"a gold must be non-empty and without space around it, got {gold!r}")
    return golds


def _window(output: str, words: int) -> str:
    for count, match in enumerate(re.finditer(r"\S+", output), start=1):
        if count == words:
            return output[: match.end()]
    return output


def _shape(token: str) -> tuple[str, int]:
    """What a value looks like. Two tokens of one shape compete for being the answer."""
    if re.fullmatch(r"[0-9]+", token):
        return "digits", len(token)
    if _UUID.fullmatch(token):
        return "uuid", 0
    if re.fullmatch(r"[0-9a-f]+", token) and re.search(r"[0-9]", token):
        return "hex", len(token)
    if re.fullmatch(r"[^\W\d_]+(?:-[^\W\d_]+)*", token):
        return "words", token.count("-")
    return "mixed", 0


def _pieces(window: str, wanted: set[str]) -> Iterator[str]:
    """Candidates for golds of several words. With one gold the output has to start with it, at a word boundary."""
    if len(wanted) == 1:
        (gold,) = wanted
        start = re.sub(r"^[^\w]+", "", window)
        bare = re.sub(r"^[^\w]+", "", gold)
        if re.match(re.escape(bare) + r"(?!\w|[-.]\w)", start):
            yield gold
        return
    for piece in _PIECE.split(window):
        stripped = re.sub(r"^[^\w]+|[^\w]+$", "", piece)
        if stripped:
            yield next((gold for gold in wanted if stripped == re.sub(r"^[^\w]+|[^\w]+$", "", gold)), stripped)
