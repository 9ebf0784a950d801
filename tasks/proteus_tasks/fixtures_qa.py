"""Fixtures in the schema of SQuAD, HotpotQA and the six LongBench QA sets: people, towns and rivers of a made-up country.

Made from the tables in `world` and the shipped prose, when asked, always the same. Scores on them are no scores on the data
sets whose schema they share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import world
from .fixtures import dice, passage
from .world import Dice

PARAGRAPHS = 300
"""People of the SQuAD-shaped fixture, one paragraph each; as many questions of the HotpotQA-shaped one."""


@dataclass(frozen=True)
class Person:
    """One person and the facts that are told about them."""

    name: str
    born: str
    year: int
    job: str
    moved: str
    bought: str

    def sentences(self) -> list[str]:
        return [
            f"{self.name} was born in {self.born} in {self.year}.",
            f"{self.name} worked as a {self.job} and moved to {self.moved}.",
            f"There {self.name} bought a {self.bought} at an auction.",
        ]

    def questions(self) -> list[tuple[str, str]]:
        """(question, answer); every answer stands in the sentences once."""
        return [
            (f"In which town was {self.name} born?", self.born),
            (f"In which year was {self.name} born?", str(self.year)),
            (f"What was the work of {self.name}?", self.job),
            (f"To which town did {self.name} move?", self.moved),
            (f"What did {self.name} buy at an auction?", self.bought),
        ]


@dataclass(frozen=True)
class Town:
    """One town and the facts that are told about it."""

    name: str
    river: str
    founded: int
    mayor: str
    trade: str

    def sentences(self) -> list[str]:
        return [
            f"{self.name} lies on the {self.river}.",
            f"It was founded in {self.founded}, and its main trade is {self.trade}.",
            f"The mayor of {self.name} is {self.mayor}.",
        ]


@lru_cache(maxsize=4096)
def person_of(split: str, index: int) -> Person:
    """Person `index` of a split: the same facts wherever they are told."""
    draws = dice("person", split, index)
    born, moved = draws.some(world.towns(split), 2)
    year, job, bought = draws.number(1700, 1900), draws.one(world.JOBS), draws.one(world.OBJECTS)
    return Person(world.people(split)[index], born, year, job, moved, bought)


@lru_cache(maxsize=4096)
def town_of(split: str, name: str) -> Town:
    """The town of that name: the same facts wherever they are told."""
    draws = dice("town", split, world.towns(split).index(name))
    river, founded = draws.one(world.rivers(split)), draws.number(1000, 1690)
    return Town(name, river, founded, draws.one(world.people(split)[PARAGRAPHS:]), draws.one(world.TRADES))


@lru_cache(maxsize=3)
def squad(split: str) -> dict[str, Any]:
    """A document in the schema of SQuAD 2: paragraphs with questions, every fifth of which has no answer."""
    paragraphs = []
    for index in range(PARAGRAPHS):
        draws, person = dice("squad", split, index), person_of(split, index)
        context = " ".join([*person.sentences(), *passage(draws, split, 1)])
        asked = [
            {
                "id": f"{index}-{number}",
                "question": question,
                "is_impossible": False,
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
            for number, (question, answer) in enumerate(person.questions())
        ]
        void = {"id": f"{index}-x", "question": f"Who taught {person.name}?", "is_impossible": True, "answers": []}
        paragraphs.append({"context": context, "qas": [*asked, void]})
    return {"version": "fixture", "data": [{"title": "People", "paragraphs": paragraphs}]}


@lru_cache(maxsize=3)
def hotpot(split: str) -> list[dict[str, Any]]:
    """Rows in the schema of HotpotQA (distractor): two supporting paragraphs among eight others."""
    numbers, towns = [str(i) for i in range(PARAGRAPHS)], world.towns(split)
    made = []
    for index in range(PARAGRAPHS):
        draws, person = dice("hotpot", split, index), person_of(split, index)
        town = town_of(split, person.born)
        question, answer = _two_hops(draws, person, town)
        around = [person_of(split, int(i)) for i in draws.some(numbers, 5) if int(i) != index][:4]
        places = [town_of(split, name) for name in draws.some(towns, 5) if name != town.name][:4]
        others = [*((p.name, p.sentences()) for p in around), *((t.name, t.sentences()) for t in places)]
        gold = [(person.name, person.sentences()), (town.name, town.sentences())]
        context = [others[0], gold[0], *others[1:5], gold[1], *others[5:]]
        made.append(
            {
                "_id": f"fixture-{index}",
                "question": question,
                "answer": answer,
                "supporting_facts": [[title, 0] for title, _ in gold],
                "context": [[title, sentences] for title, sentences in context],
            }
        )
    return made


def _two_hops(draws: Dice, person: Person, town: Town) -> tuple[str, str]:
    return [
        (f"On which river lies the town in which {person.name} was born?", town.river),
        (f"In which year was the town founded in which {person.name} was born?", str(town.founded)),
        (f"What is the main trade of the town in which {person.name} was born?", town.trade),
    ][draws.below(3)]


def longbench(name: str, split: str, index: int) -> dict[str, Any]:
    """Row `index` in the schema of a LongBench QA set: input (the question), context, answers. There is a row for any index."""
    return _LONGBENCH[name](dice(f"longbench-{name}", split, index), split)


def _interleaved(draws: Dice, split: str, facts: list[str], sentences: int) -> str:
    """Paragraphs of prose with one fact at the end of each."""
    return "\n\n".join(" ".join([*passage(draws, split, sentences), fact]) for fact in facts)


def _narrative(draws: Dice, split: str) -> dict[str, Any]:
    people, things = draws.some(world.people(split), 8), draws.some(world.OBJECTS, 8)
    places = [draws.one(world.HIDING) for _ in people]
    facts = [f"That night {p} hid the {t} in the {x}." for p, t, x in zip(people, things, places, strict=True)]
    asked = draws.below(len(people))
    answers = [f"in the {places[asked]}", f"the {places[asked]}", places[asked]]
    return _row(f"Where did {people[asked]} hide the {things[asked]}?", _interleaved(draws, split, facts, 8), answers)


def _paper(draws: Dice, split: str) -> dict[str, Any]:
    """Half of the questions are for a number; yes, no and unanswerable share the other half."""
    towns = draws.some(world.towns(split), 8)
    covered = [draws.number(120, 9000) for _ in towns]
    again = [bool(draws.below(2)) for _ in towns]
    facts = []
    for town, number, repeated in zip(towns, covered, again, strict=True):
        ending = "was repeated a year later" if repeated else "was not repeated"
        facts.append(f"The survey of {town} covered {number} households and {ending}.")
    context = _interleaved(draws, split, facts, 7)
    asked = draws.below(len(towns))
    if draws.chance(50):
        return _row(f"How many households did the survey of {towns[asked]} cover?", context, [str(covered[asked])])
    kind = draws.below(3)
    if kind == 2:
        missing = next(town for town in draws.some(world.towns(split), 9) if town not in towns)
        return _row(f"How many households did the survey of {missing} cover?", context, ["unanswerable"])
    wanted = kind == 1
    chosen = next((i for i in draws.some([str(i) for i in range(8)], 8) if again[int(i)] == wanted), "0")
    truth = "yes" if again[int(chosen)] else "no"
    return _row(f"Was the survey of {towns[int(chosen)]} repeated?", context, [truth])


def _manual(draws: Dice, split: str) -> dict[str, Any]:
    makers = draws.some(world.LAST, 6)
    devices = [f"{maker} {draws.one(world.INSTRUMENTS)}" for maker in makers]
    cases, principles = ([draws.one(of) for _ in devices] for of in (world.MATERIALS, world.PRINCIPLES))
    facts = [
        f"The case of the {device} is made of {case}, and it works by {principle}."
        for device, case, principle in zip(devices, cases, principles, strict=True)
    ]
    asked = draws.below(len(devices))
    context = _interleaved(draws, split, facts, 9)
    if draws.below(2):
        return _row(f"What is the case of the {devices[asked]} made of?", context, [cases[asked], f"of {cases[asked]}"])
    gold = principles[asked]
    return _row(f"How does the {devices[asked]} work?", context, [f"by {gold}", gold])


def _passages(draws: Dice, split: str, documents: list[tuple[str, list[str]]]) -> str:
    """Numbered passages in a random order, each with some prose behind its facts."""
    order = [int(i) for i in draws.shuffled([str(i) for i in range(len(documents))])]
    texts = [" ".join([*documents[i][1], *passage(draws, split, 2)]) for i in order]
    titles = [documents[i][0] for i in order]
    return "\n".join(
        f"Passage {n}:\n{t}\n{text}" for n, (t, text) in enumerate(zip(titles, texts, strict=True), start=1)
    )


def _cast(draws: Dice, split: str) -> tuple[list[Person], list[Town]]:
    """Seven people born in seven different towns, and those towns, on seven different rivers."""
    names, places, rivers = (
        draws.some(of(split), n) for of, n in ((world.people, 14), (world.towns, 14), (world.rivers, 7))
    )
    people = [
        Person(n, b, draws.number(1700, 1900), draws.one(world.JOBS), m, draws.one(world.OBJECTS))
        for n, b, m in zip(names[:7], places[:7], places[7:], strict=True)
    ]
    towns = [
        Town(b, r, draws.number(1000, 1690), m, draws.one(world.TRADES))
        for b, r, m in zip(places[:7], rivers, names[7:], strict=True)
    ]
    return people, towns


def _documents(people: list[Person], towns: list[Town]) -> list[tuple[str, list[str]]]:
    return [*((p.name, p.sentences()) for p in people), *((t.name, t.sentences()) for t in towns)]


def _bridge(draws: Dice, split: str) -> dict[str, Any]:
    people, towns = _cast(draws, split)
    asked = draws.below(len(people))
    question, answer = _two_hops(draws, people[asked], towns[asked])
    return _row(question, _passages(draws, split, _documents(people, towns)), [answer])


def _office(draws: Dice, split: str) -> dict[str, Any]:
    people, towns = _cast(draws, split)
    asked = draws.below(len(people))
    question = f"Who is the mayor of the town in which {people[asked].name} was born?"
    return _row(question, _passages(draws, split, _documents(people, towns)), [towns[asked].mayor])


def _chain(draws: Dice, split: str) -> dict[str, Any]:
    people, towns = _cast(draws, split)
    asked = draws.below(len(people))
    regions = [draws.one(world.REGIONS) for _ in towns]
    rivers = [
        (f"{town.river} (river)", [f"The {town.river} rises in the {region}."])
        for town, region in zip(towns, regions, strict=True)
    ]
    question = f"Where does the river rise on which the town lies in which {people[asked].name} was born?"
    context = _passages(draws, split, [*_documents(people, towns), *rivers])
    gold = regions[asked]
    return _row(question, context, [f"in the {gold}", f"the {gold}", gold])


def _row(question: str, context: str, answers: list[str]) -> dict[str, Any]:
    return {"input": question, "context": context, "answers": answers}


_LONGBENCH = {
    "narrativeqa": _narrative, "qasper": _paper, "multifieldqa_en": _manual, "hotpotqa": _bridge, "2wikimqa": _office,
    "musique": _chain,
}  # fmt: skip
