"""Fixtures in the schema of SWDE, FDA and SQuAD completion: written for this project, made when asked, always the same.

Texts are of the shipped prose (of the item's split) and of the tables in `world`. They keep tests and demonstrations offline and
give small models something real to answer; scores on them are no scores on the data sets whose schema they share.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from . import haystack, rng, world
from .world import Dice

ROWS = 400
"""Rows of a fixture; fewer where a split has not so many towns."""
SWDE_MARK = "Summary of information above..."
_WORD = re.compile(r"[A-Za-z]{5,}|[0-9]{2,6}")


@lru_cache(maxsize=16)
def rows(name: str, split: str) -> tuple[dict[str, Any], ...]:
    """The rows of the fixture `swde`, `fda` or `squad_completion`."""
    maker = {"swde": _swde, "fda": _fda, "squad_completion": _squad}[name]
    return tuple(maker(split))


def dice(name: str, split: str, index: int) -> Dice:
    """The draws of one row."""
    return Dice(rng.seed_of("proteus-tasks", "fixture", name, split, index))


def passage(draws: Dice, split: str, sentences: int) -> list[str]:
    """A run of usable sentences of one address."""
    source = haystack.sotu(split)
    first, last = source.documents[draws.below(len(source.documents))]
    start = first + draws.below(max(1, last - first - sentences))
    return list(source.units[start : min(last, start + sentences)])


def _swde(split: str) -> list[dict[str, Any]]:
    """Pages about towns: lines of attributes, some of them told in a sentence, among menus and prose."""
    made = []
    for index, town in enumerate(world.towns(split)[:ROWS]):
        draws = dice("swde", split, index)
        facts = {
            "founded": str(draws.number(1100, 1890)),
            "river": draws.one(world.rivers(split)),
            "region": draws.one(world.REGIONS),
            "population": f"{draws.number(2, 98)},{draws.number(100, 1000)}",
            "mayor": draws.one(world.people(split)),
            "main trade": draws.one(world.TRADES),
            "market day": draws.one(world.DAYS),
            "town bird": draws.one(world.BIRDS),
            "elevation": f"{draws.number(3, 1900)} m",
            "oldest house": f"{draws.number(2, 90)} {draws.one(world.LAST)} Street",
        }
        key = draws.one(list(facts))
        text = _page(draws, split, town, facts) + f"\n\n{SWDE_MARK}\n{key}: "
        made.append({"text": text, "value": f" {facts[key]}", "key": key})
    return made


def _page(draws: Dice, split: str, town: str, facts: dict[str, str]) -> str:
    order = draws.shuffled(list(facts))
    told = {"market day", "town bird", "main trade", "oldest house"} if draws.chance(50) else set()
    lines = [f"{town} - town guide", f"Home | Towns | {town} | Contact", "", town]
    lines += [f"{key[0].upper()}{key[1:]}: {facts[key]}" for key in order if key not in told]
    lines += ["", f"About {town}", *passage(draws, split, 2)]
    lines += [f"In {town} the {key} is {facts[key]}." for key in order if key in told]
    lines += ["", "Visitors wrote", *passage(draws, split, 2), "", "Home | Towns | Map | Timetable"]
    return "\n".join(lines)


def _fda(split: str) -> list[dict[str, Any]]:
    """Inspection records of measuring instruments: a head of fields, then sections in which others are told."""
    made = []
    for index in range(ROWS):
        draws = dice("fda", split, index)
        number = f"M{draws.number(100000, 1000000)}"
        maker = f"{draws.one(world.LAST)} & {draws.one(world.LAST)}"
        device = f"{draws.one(world.LAST)} {draws.one(world.INSTRUMENTS)}"
        facts = {
            "record number": number,
            "applicant": f"{maker}, {draws.one(world.towns(split))}",
            "instrument": device,
            "measured quantity": draws.one(
                ("density", "humidity", "level", "mass", "pressure", "temperature", "viscosity")
            ),
            "sample type": draws.one(world.SAMPLES),
            "principle of operation": draws.one(world.PRINCIPLES),
            "case material": draws.one(world.MATERIALS),
            "tested range": f"{draws.number(1, 40)} to {draws.number(41, 900)} units",
            "accuracy class": f"{draws.number(1, 9)}.{draws.number(1, 9)}",
            "inspector": draws.one(world.people(split)),
        }
        key = draws.one(list(facts))
        made.append({"text": _record(draws, split, facts) + f"\n{key}: ", "value": f" {facts[key]}", "key": key})
    return made


def _record(draws: Dice, split: str, facts: dict[str, str]) -> str:
    head = [key for key in facts if draws.chance(60)]
    lines = ["INSPECTION RECORD", *(f"{key.capitalize()}: {facts[key]}" for key in head), "A. Purpose"]
    lines += [f"The {facts['instrument']} was sent in for a first inspection.", *passage(draws, split, 2)]
    lines.append("B. Findings")
    for key in facts:
        if key not in head:
            lines.append(f"The {key} is {facts[key]}.")
        if draws.chance(20):
            lines += passage(draws, split, 1)
    lines += ["C. Remarks", *passage(draws, split, 2)]
    return "\n".join(lines)


def _squad(split: str) -> list[dict[str, Any]]:
    """Passages of prose, one sentence of which begins again and breaks off before a word that stands in the passage once."""
    made: list[dict[str, Any]] = []
    index = 0
    while len(made) < ROWS:
        draws = dice("squad_completion", split, index)
        index += 1
        sentences = passage(draws, split, draws.number(5, 9))
        text = " ".join(sentences)
        found = _breaks(draws, sentences, text.lower())
        if found is not None:
            start, value = found
            question = f"What comes after the words '{' '.join(start.split()[-4:])}'?"
            made.append({"text": f"{text}\n{start}", "value": value, "context": text, "question": question})
    return made


def _breaks(draws: Dice, sentences: list[str], lowered: str) -> tuple[str, str] | None:
    """(start of a sentence, the word after it)."""
    for sentence in draws.shuffled(sentences):
        for match in draws.shuffled([str(m.start()) for m in _WORD.finditer(sentence)]):
            at = int(match)
            value = _WORD.match(sentence, at)
            start = sentence[:at].rstrip()
            if value is None or len(start.split()) < 5 or sentence[at - 1] != " ":
                continue
            whole = re.match(r"[\w'-]+", sentence[at:])
            if whole is not None and whole[0] == value[0] and lowered.count(value[0].lower()) == 1:
                return start, value[0]
    return None
