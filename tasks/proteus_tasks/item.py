"""The item: what a model is asked, with everything that is needed to score and to check it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .errors import TaskError


@dataclass(frozen=True)
class Needle:
    """A planted fact. `char_offset` and `token_offset` point at its sentence's first character and token in the context.

    `depth` in [0, 1] is the asked fraction of the haystack's tokens before the needle; the needle stands at the nearest end
    of a haystack unit.
    """

    key: str
    value: str
    char_offset: int
    token_offset: int
    depth: float


@dataclass(frozen=True)
class Question:
    """`text + answer_prefix` follow the context; `golds` in context order; `max_new_tokens` = tokens of the gold + slack."""

    text: str
    answer_prefix: str
    golds: tuple[str, ...]
    max_new_tokens: int


@dataclass(frozen=True)
class Item:
    """One context with its questions. `length` is asked and `reached` is used, both in tokens.

    `reached` = special tokens + context + the question, answer prefix and answer budget of the most costly question.
    """

    id: str
    task: str
    version: int
    split: str
    length: int
    reached: int
    context: str
    questions: tuple[Question, ...]
    needles: tuple[Needle, ...]
    truncation: str
    gold_survives: bool
    meta: dict[str, Any]

    def prompt(self, question: int = 0) -> str:
        """The whole text before the answer to one question."""
        asked = self.questions[question]
        return self.context + asked.text + asked.answer_prefix

    def gold(self, question: int = 0) -> str:
        """The gold continuation of `prompt(question)`."""
        return " " + ", ".join(self.questions[question].golds)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, ready for JSON."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Item:
        """Inverse of `to_dict`; TaskError when fields are missing, unknown or of a wrong shape."""
        names = {field.name for field in fields(cls)}
        if set(row) != names:
            raise TaskError(f"item row: fields missing {sorted(names - set(row))}, unknown {sorted(set(row) - names)}")
        try:
            values = dict(row)
            values["needles"] = tuple(Needle(**needle) for needle in row["needles"])
            values["questions"] = tuple(Question(**{**q, "golds": tuple(q["golds"])}) for q in row["questions"])
            return cls(**values)
        except (TypeError, KeyError) as error:
            raise TaskError(f"item row: {error}") from error

    @property
    def sha256(self) -> str:
        """Hex digest of the canonical JSON (sorted keys, no spaces, ASCII)."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode("ascii")).hexdigest()
