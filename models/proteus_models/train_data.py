"""Training rows: real prose with needles, in the format of the questions. Train split only.

Each fact (key, value) stands in a needle sentence at a random place of the row, and is asked for at one to `asks` later places, as
a question or as the same sentence again; the answer loss is on the value's tokens of the asking places. A row is a pure function
of (seed, stage, index).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from proteus_models.tokenizer import MicroTokenizer
from proteus_models.train_objective import Rows
from proteus_tasks import haystack, niah_text, vocabulary

IGNORE = -100
Piece = tuple[np.ndarray, np.ndarray]  # token ids, and their kinds


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Shares of row kinds, and how many facts a row holds (at most length/`tokens_per_fact` and `max_facts`).

    `late_share` of the facts are asked for only at the row's end, so that long distances are trained at every length.
    """

    noise_share: float = 0.2
    uuid_share: float = 0.03
    pair_share: float = 0.06
    question_share: float = 0.6
    several_share: float = 0.08
    tokens_per_fact: int = 48
    min_facts: int = 1
    max_facts: int = 48
    asks: int = 1
    late_share: float = 0.0
    lm_share: float = 0.1
    final_question: bool = True


class RowSource:
    """Rows of token ids and labels; labels are IGNORE except answers (kind 1) and a sample of prose (kind 2)."""

    def __init__(self, tokenizer: MicroTokenizer, config: DataConfig, seed: int) -> None:
        self.tokenizer, self.config, self.seed = tokenizer, config, seed
        self.sentences = [np.array(tokenizer.encode(" " + s), np.int64) for s in haystack.sentences("train")]
        self.noise = [np.array(tokenizer.encode(" " + s), np.int64) for s in niah_text.NOISE]
        self.words = vocabulary.words("train")
        self.instruction = np.array(tokenizer.encode(niah_text.INSTRUCTION), np.int64)

    def batch(self, stage: str, index: int, rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids [rows, length], labels and kinds for the NEXT token [rows, length] (kind 0 unlabelled, 1 answer, 2 prose)."""
        entropy = [self.seed, *stage.encode(), index]
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        made = [self._row(rng, length) for _ in range(rows)]
        ids = np.stack([m[0] for m in made])
        kinds = np.stack([m[1] for m in made])
        prose = (kinds[:, 1:] == 0) & (rng.random(kinds[:, 1:].shape) < self.config.lm_share)
        kinds[:, 1:][prose] = 2
        return ids[:, :-1], ids[:, 1:], kinds[:, 1:]

    def rows(self, stage: str, index: int, rows: int, length: int) -> Rows:
        """`batch`, as the training loop takes it."""
        ids, labels, kinds = self.batch(stage, index, rows, length)
        return Rows(ids=ids, labels=labels, kinds=kinds)

    def _row(self, rng: np.random.Generator, length: int) -> tuple[np.ndarray, np.ndarray]:
        c = self.config
        top = max(c.min_facts, min(c.max_facts, length // c.tokens_per_fact))
        n_facts = round(float(np.exp(rng.uniform(np.log(max(1, top // 4)), np.log(top)))))
        facts = self._facts(rng, n_facts)
        room = length + 1 - len(self.instruction) - sum(len(p) for fact in facts for p, _ in fact)
        while room < 0 and len(facts) > 1:
            room += sum(len(p) for p, _ in facts.pop())
        hay = self._hay(rng, max(room, 1))
        places: list[tuple[float, Piece]] = []
        for n, fact in enumerate(facts):
            needles = sum(not kinds.any() for _, kinds in fact)
            at = np.sort(rng.random(len(fact)))  # needles in the order of the answer, then the questions
            if c.late_share and rng.random() < c.late_share:
                at[needles:] = 1.0
            if n == 0 and c.final_question:
                at[-1] = 1.0
            places += [(a * len(hay), piece) for a, piece in zip(at, fact, strict=True)]
        places.sort(key=lambda place: place[0])
        pieces: list[tuple[np.ndarray, np.ndarray | None]] = [(self.instruction, None)]
        done = 0
        for place, piece in places:
            stop = round(place)
            pieces += [(s, None) for s in hay[done:stop]]
            pieces.append(piece)
            done = max(done, stop)
        pieces += [(s, None) for s in hay[done:]]
        ids = np.concatenate([p for p, _ in pieces])
        kinds = np.concatenate([k if k is not None else np.zeros(len(p), np.int64) for p, k in pieces])
        return ids[: length + 1], kinds[: length + 1]

    def _hay(self, rng: np.random.Generator, room: int) -> list[np.ndarray]:
        source = self.noise if rng.random() < self.config.noise_share else self.sentences
        at, out, size = int(rng.integers(len(source))), [], 0
        while True:
            s = source[at % len(source)]
            out.append(s[: room - size])  # the last sentence is cut so that every row is full
            size += len(out[-1])
            if size == room:
                return out
            at += 1

    def _facts(self, rng: np.random.Generator, n: int) -> list[list[Piece]]:
        """Per fact: its needle pieces, then the pieces that ask for it."""
        c = self.config
        facts = []
        for first, second in rng.choice(len(self.words), size=(n, 2), replace=2 * n > len(self.words)):
            pair, uuid, several = rng.random(3) < (c.pair_share, c.uuid_share, c.several_share)
            key = f"{self.words[first]}-{self.words[second]}" if pair else self.words[first]
            count = int(rng.integers(2, 5)) if several and not uuid else 1
            golds = tuple(draw_uuid(rng) if uuid else draw_number(rng) for _ in range(count))
            needles = [self._piece([(" " + niah_text.needle_sentence(key, g), 0)]) for g in golds]
            asks = 1 if c.asks == 1 else int(rng.integers(1, c.asks + 1))
            facts.append([*needles, *(self._ask(rng, key, golds) for _ in range(asks))])
        return facts

    def _ask(self, rng: np.random.Generator, key: str, golds: tuple[str, ...]) -> Piece:
        gold = niah_text.gold_continuation(golds)
        if len(golds) > 1:
            return self._piece(
                [(niah_text.question_all(key, len(golds)) + niah_text.answer_prefix(key), 0), (gold + ".", 1)]
            )
        if rng.random() < self.config.question_share:
            return self._piece([(niah_text.question(key) + niah_text.answer_prefix(key), 0), (gold + ".", 1)])
        head = niah_text.needle_sentence(key, golds[0]).removesuffix(f"{gold}.")
        return self._piece([(" " + head, 0), (gold + ".", 1)])

    def _piece(self, parts: list[tuple[str, int]]) -> Piece:
        encoded = [(self.tokenizer.encode(text), kind) for text, kind in parts]
        return (
            np.array([i for ids, _ in encoded for i in ids], np.int64),
            np.array([kind for ids, kind in encoded for _ in ids], np.int64),
        )


def draw_number(rng: np.random.Generator) -> str:
    """A 7-digit number of the train split."""
    low, high = vocabulary.NUMBER_LOW, vocabulary.NUMBER_HIGH
    return _of_train_split(lambda: str(rng.integers(low, high)))


def draw_uuid(rng: np.random.Generator) -> str:
    """32 hex digits of the train split in the usual grouping."""

    def candidate() -> str:
        h = rng.bytes(16).hex()
        return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"

    return _of_train_split(candidate)


def _of_train_split(candidate: Callable[[], str]) -> str:
    while True:
        value = candidate()
        if vocabulary.value_split(value) == "train":
            return value
