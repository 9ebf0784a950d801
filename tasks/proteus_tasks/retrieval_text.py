"""How an extraction row becomes a prompt: the four published variants, and the window round the answer.

A row is a document (`body`) and what asks for the answer (`tail`). The variants differ in white space, in the end of the document
and in how the question is put; published scores differ by up to a factor of six between them:

- `based`: the row's text as it is (BASED's harness, lm-eval version 0).
- `lm-eval`: the same with the white space at its ends stripped, and the value stripped too (lm-eval version 1).
- `jrt`: the document ends with one full stop and is followed by the capitalised key.
- `jrt-twice`: the key is announced, and the document stands twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .errors import TaskError
from .fixtures import SWDE_MARK

VARIANTS = ("based", "lm-eval", "jrt", "jrt-twice")
DATASETS = ("swde", "fda", "squad_completion")
ANSWER_TOKENS = 50
"""What the published window leaves free for the answer."""
Token = TypeVar("Token")


@dataclass(frozen=True)
class Extract:
    """One parsed row. `value` and `text` are raw, white space included; `key` is empty for SQuAD completion."""

    dataset: str
    text: str
    value: str
    key: str
    body: str
    tail: str
    question: str

    @property
    def gold(self) -> str:
        """The value without the white space at its ends."""
        return self.value.strip()


def parse(dataset: str, row: Mapping[str, Any]) -> Extract:
    """Document and question of a row of a data set."""
    text, key = row["text"], row.get("key", "")
    if dataset == "swde" and SWDE_MARK in text:
        body = text[: text.index(SWDE_MARK)]
    elif dataset == "squad_completion":
        context = row["context"].split("Question:")[0].strip()
        body = text[: text.find(context) + len(context)] if context and context in text else _all_but_last_line(text)
    else:
        body = re.sub(rf"(?:{re.escape(key)}:\s*)+\Z", "", text, flags=re.IGNORECASE) if key else text
    return Extract(dataset, text, row["value"], key, body, text[len(body) :], row.get("question", ""))


def _all_but_last_line(text: str) -> str:
    cut = max(text.rstrip().rfind("\n"), text.rstrip().rfind(". ") + 1)
    return text[:cut] if cut > 0 else text


def capital(key: str) -> str:
    """The key with its first letter in upper case."""
    return key[:1].upper() + key[1:]


def ended(body: str) -> str:
    """A document without white space and full stops at its ends, and one full stop."""
    return body.strip("\n").strip().strip(".") + "."


@dataclass(frozen=True)
class Frame:
    """A prompt in parts: `opening`, the document `copies` times on lines of their own, `question`. `full_stop`: the document
    gets one at its end where it has none."""

    opening: str
    question: str
    copies: int = 1
    full_stop: bool = False


def frame(extract: Extract, variant: str) -> Frame:
    """The frame of one variant. TaskError for an unknown one."""
    tail = _behind_space(extract)
    if variant == "based":
        return Frame("", tail)
    if variant == "lm-eval":
        return Frame("", tail.rstrip())
    if variant not in VARIANTS:
        raise TaskError(f"unknown prompt variant '{variant}'; known: {', '.join(VARIANTS)}")
    twice = 2 if variant == "jrt-twice" else 1
    if extract.dataset == "squad_completion":
        return Frame(f"{extract.question} " if twice == 2 else "", tail.rstrip(), twice)
    key = capital(extract.key)
    return Frame(f"Information about {key}. " if twice == 2 else "", f" {key}:", twice, full_stop=True)


def _behind_space(extract: Extract) -> str:
    """The tail with the white space that stands before it, so that it starts as a question should."""
    space = extract.body[len(extract.body.rstrip()) :]
    found = space + extract.tail
    return found if found[:1].isspace() else f" {found}"


def published_prompt(extract: Extract, variant: str) -> str:
    """The whole prompt of a row as its anchor builds it, without any length control."""
    parts = frame(extract, variant)
    if variant in ("based", "lm-eval"):
        return extract.text if variant == "based" else extract.text.strip()
    body = ended(extract.body) if parts.full_stop else extract.body.strip()
    return parts.opening + "\n".join([body] * parts.copies) + parts.question


def oracle_window(tokens: Sequence[Token], position: int, length: int, answer: int = ANSWER_TOKENS) -> tuple[int, int]:
    """(first, one past last) token that JRT keeps: `length - answer` tokens, the answer's first token in their middle.

    At the document's end the window is not filled up from the left, and the prompt's tokens are not counted: as published.
    """
    kept = length - answer
    first = max(0, position - kept // 2)
    return first, min(len(tokens), first + kept)


def answer_position(extract: Extract, body: str) -> int | None:
    """Character of the first mention of the value, or of the key where that comes earlier; None when neither is there."""
    lowered = body.lower()
    wanted = [extract.gold] + ([extract.key] if extract.key else [])
    found = [at for text in wanted if (at := lowered.find(text.lower())) >= 0]
    return min(found) if found else None
