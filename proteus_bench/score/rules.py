"""Versioned scoring rules by name. A rule that changes gets a new version; items keep the one that they were frozen with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from proteus_bench.score import anchors, strict


@dataclass(frozen=True)
class Reference:
    """What an output is scored against. ``golds``: the parts of the one right answer.

    accept: wordings of it, any of which is right (the golds when empty); labels: every answer that the task could have;
    question: the text that was asked.
    """

    golds: tuple[str, ...]
    accept: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    question: str = ""


class Scores(NamedTuple):
    """Both scores of one answer, each in [0, 1]."""

    strict: float
    compat: float


CHOICES = {"choice@1": False, "choice-per-char@1": True}
"""The likeliest of the given choices; of log-probabilities divided by the choices' characters. They need no output."""

Rule = Callable[[Reference, str], float]
DEFAULT = {"strict": "strict@1", "compat": "contains@1"}
PROBABILITY = "token-probability@1"
"""The geometric mean probability of a token of the gold: 1 / perplexity. It needs no output, only the log-probability."""


def _any(reference: Reference, output: str) -> float:
    """1.0 when one of the accepted answers is strictly there."""
    return max(strict.strict([accepted.strip()], output) for accepted in reference.accept or reference.golds)


def _unique_label(reference: Reference, output: str) -> float:
    """1.0 when the first sentence names the gold, and no label besides except those that stand in the question."""
    return float(anchors.unique_label(reference.golds, output, reference.labels, reference.question))


RULES: dict[str, Rule] = {
    "exact@1": lambda r, output: float(output.strip() == r.golds[0]),
    "strict@1": lambda r, output: strict.strict(r.golds, output),
    "contains@1": lambda r, output: strict.contains(r.golds, output),
    "any@1": _any,
    "unique-label@1": _unique_label,
    "contains-any@1": lambda r, output: float(anchors.contains_any(output, r.accept or r.golds)),
    "ruler-all@1": lambda r, output: anchors.ruler_all(output, r.golds),
    "ruler-part@1": lambda r, output: anchors.ruler_part(output, r.accept or r.golds),
    "qa-f1@1": lambda r, output: max(anchors.qa_f1(output, gold) for gold in r.accept or r.golds),
    "babilong@1": lambda r, output: float(
        anchors.babilong_compare(",".join(r.golds), output, r.question, frozenset(label.lower() for label in r.labels))
    ),
}


def scorers_of(item: Any) -> dict[str, str]:
    """The names of the item's two rules. ValueError for one that this version does not have."""
    named = {**DEFAULT, **item.meta.get("scorers", {})}
    unknown = [name for name in named.values() if name not in RULES and name not in (PROBABILITY, *CHOICES)]
    if unknown or set(named) != set(DEFAULT):
        raise ValueError(f"{item.id}: no scorer {', '.join(unknown) or sorted(named)}; known: {', '.join(RULES)}")
    return named


def reference_of(item: Any, slot: int) -> Reference:
    """The reference of question ``slot``. ``meta["accept"]`` holds one list a question, ``meta["labels"]`` one list."""
    question = item.questions[slot]
    accept = item.meta.get("accept")
    return Reference(
        tuple(question.golds),
        tuple(accept[slot]) if accept is not None else (),
        tuple(item.meta.get("labels", ())),
        question.text,
    )


def picked(item: Any, name: str, choices: Sequence[float]) -> int | None:
    """The place of the choice that a rule of CHOICES takes, the first of equals; None when a log-probability is not finite.

    choices: nats of each of ``item.meta["choices"]``; ValueError when they are not as many.
    """
    texts = item.meta["choices"]
    if len(texts) != len(choices):
        raise ValueError(f"{item.id}: {len(choices)} log-probabilities for {len(texts)} choices")
    if not all(math.isfinite(value) for value in choices):
        return None
    shares = [value / len(text) if CHOICES[name] else value for value, text in zip(choices, texts, strict=True)]
    return shares.index(max(shares))


def score_answer(
    item: Any,
    slot: int,
    output: str,
    *,
    logprob: float | None = None,
    gold_tokens: int | None = None,
    choices: Sequence[float] | None = None,
) -> Scores:
    """Both scores of the answer to question ``slot``. ``logprob`` (nats, of the whole gold) and ``gold_tokens`` serve rules
    that score probabilities, ``choices`` (nats) those that take one of several answers; ValueError when such a rule lacks
    them, and for a rule that is not known."""
    named = scorers_of(item)
    reference = reference_of(item, slot)
    found = {}
    for column, name in named.items():
        if name == PROBABILITY:
            if gold_tokens is None or gold_tokens < 1:
                raise ValueError(f"{item.id}: {name} needs the log-probability and the number of tokens of the gold")
            finite = logprob is not None and math.isfinite(logprob)
            found[column] = min(1.0, math.exp((logprob or 0.0) / gold_tokens)) if finite else 0.0
        elif name in CHOICES:
            if choices is None:
                raise ValueError(f"{item.id}: {name} needs the log-probability of every choice")
            found[column] = float(picked(item, name, choices) == item.meta["answer"])
        else:
            found[column] = RULES[name](reference, output)
    return Scores(found["strict"], found["compat"])
