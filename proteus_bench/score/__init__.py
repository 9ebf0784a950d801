"""Typed scorers: an item, one of its questions and an output in, scores in [0, 1] out. No torch, and no task package.

Every question gets two scores, ``strict`` (ours: it reads the output as an answer) and ``compat`` (the anchor's metric, for
comparison with its numbers). Which rules those are is part of the item (``meta["scorers"]``), so that it is part of its hash
and of the suite's; items that name none have the two rules of the needle tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from proteus_bench.score.rules import RULES, Reference, Scores, picked, reference_of, score_answer, scorers_of
from proteus_bench.score.strict import WINDOW_WORDS, contains, strict

SCORER_ID = "strict"
SCORER_VERSION = "1"
SCORERS: dict[str, Callable[[Sequence[str], str], float]] = {"strict": strict, "compat": contains}

__all__ = [
    "RULES",
    "SCORERS",
    "SCORER_ID",
    "SCORER_VERSION",
    "WINDOW_WORDS",
    "Reference",
    "Scores",
    "contains",
    "picked",
    "reference_of",
    "score",
    "score_answer",
    "scorers_of",
    "strict",
]


def score(golds: Sequence[str], output: str, scorer: str = SCORER_ID) -> float:
    """Score ``output`` against ``golds`` with the named scorer. Raises KeyError for an unknown scorer."""
    return SCORERS[scorer](golds, output)
