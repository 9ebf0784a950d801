"""Memories with known answers. A probe that cannot tell them apart measures nothing; also the smallest example of a model
that takes part in both sides of a probe: it answers questions (a back end) and shows its memory (`probes.memory`).

A planted memory reads text, and adds a code vector for every fact (or every sentence) to one tensor, with a weight:

    append      1                                  nothing is ever lost
    overwrite   2^(-later writes / half)           what comes later destroys what came earlier
    polluted    2^(-earlier writes / half)         what came earlier leaves no room for what comes later

It knows a fact as long as the fact's weight is above one half.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from proteus_bench.backends.base import Answer, AskIds, Ids
from proteus_bench.backends.tokens import TokenBackend
from proteus_bench.probes.memory import MemoryTensor

Kind = Literal["append", "overwrite", "polluted"]
BLOCKS = 16
_WIDTH = 64
_FACT = re.compile(r"The access code of ([\w-]+) is ([\w-]+)\.")
_SENTENCE = re.compile(r"[^.]*\.")
_QUESTION = re.compile(r"access code of ([\w-]+)\?")
UNKNOWN = " nobody knows"


@dataclass
class _Row:
    """What one text has written so far: (code text, key, value) of each write, and text whose sentence is not over."""

    writes: list[tuple[str, str, str]] = field(default_factory=list)
    open: str = ""

    def copy(self) -> _Row:
        return _Row(list(self.writes), self.open)


class PlantedMemory(TokenBackend):
    """``half``: writes after which a weight has fallen to one half. ``sentences``: prose is written like facts."""

    def __init__(self, kind: Kind, tokenizer: Any, half: float = 16.0, sentences: bool = False) -> None:
        self.kind, self._tokenizer, self.half, self.sentences = kind, tokenizer, half, sentences
        self.blocks = BLOCKS
        self.unlocks = (1,) * BLOCKS

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that it was made with."""
        return self._tokenizer

    def start(self, rows: int) -> list[_Row]:
        return [_Row() for _ in range(rows)]

    def select(self, state: Sequence[_Row], rows: Sequence[int]) -> list[_Row]:
        return [state[row].copy() for row in rows]

    def feed(self, state: Sequence[_Row], ids: np.ndarray) -> list[_Row]:
        return [self._read(row.copy(), self.tokenizer.decode([int(i) for i in new])) for row, new in zip(state, ids, strict=True)]

    def _read(self, row: _Row, text: str) -> _Row:
        row.open += text
        for match in (_SENTENCE if self.sentences else _FACT).finditer(row.open):
            fact = _FACT.search(match[0])
            row.writes.append((match[0].strip(), fact[1] if fact else "", fact[2] if fact else ""))
        row.open = row.open[row.open.rfind(".") + 1 :]
        return row

    def weights(self, row: _Row) -> list[float]:
        """Of every write, oldest first."""
        n = len(row.writes)
        steps = {"append": [0] * n, "overwrite": [n - 1 - i for i in range(n)], "polluted": list(range(n))}[self.kind]
        return [2 ** (-step / self.half) for step in steps]

    def tensors(self, state: Sequence[_Row]) -> list[MemoryTensor]:
        values = np.zeros((len(state), BLOCKS, _WIDTH))
        for r, row in enumerate(state):
            for weight, (text, _, _) in zip(self.weights(row), row.writes, strict=True):
                block, code = _code(text)
                values[r, block] += weight * code
        return [MemoryTensor(0, "M", values, axis=1)]

    def memory_model(self) -> PlantedMemory:
        """The back end is its own memory."""
        return self

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """The value of the asked key, latest first, where its weight is above one half; words otherwise."""
        found = []
        for context, asks in zip(contexts, questions, strict=True):
            (row,) = self.feed(self.start(1), np.asarray(context)[None])
            known = {}
            for weight, (_, key, value) in zip(self.weights(row), row.writes, strict=True):
                known[key] = (value, weight)
            found.append([self._answer(known, ask) for ask in asks])
        return found

    def _answer(self, known: dict[str, tuple[str, float]], ask: AskIds) -> Answer:
        match = _QUESTION.search(self.tokenizer.decode(list(ask.prompt_ids)))
        value, weight = known.get(match[1] if match else "", ("", 0.0))
        text = f" {value}" if weight > 0.5 else UNKNOWN
        return Answer(list(self.tokenizer.encode(text)), math.log(max(weight, 1e-6)), 0.0)


def _code(text: str) -> tuple[int, np.ndarray]:
    """Block and unit vector of a text: a pure function of it."""
    digest = hashlib.sha256(text.encode()).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))
    code = generator.standard_normal(_WIDTH)
    return digest[16] % BLOCKS, code / np.linalg.norm(code)
