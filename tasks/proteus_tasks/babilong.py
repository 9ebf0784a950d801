"""Reasoning over facts in a window of the haystack (BABILong-style): small worlds in our own words, one right label an answer.

After BABILong (arXiv 2406.10149): the facts of a short story stand in order, in prose, inside a window of the context. The
people, places and things of one task are its labels; an answer is right when its first sentence names the gold and no other
label, so that naming them all is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import TaskError
from .family import Draft, Family, Piece, Weave, ask, prose, woven
from .item import Item
from .tokenizers import Tokenizer

HEAD = "Follow the people in the text below.\n"
PEOPLE = ("Anna", "Boris", "Clara", "David", "Emma", "Frank")
PLACES = ("attic", "cellar", "garage", "library", "pantry", "stable")
THINGS = ("lamp", "rope", "basket", "hammer", "mirror", "drum")
_MOVES = ("{p} walks to the {x}.", "{p} goes back to the {x}.", "{p} is now in the {x}.")


@dataclass(frozen=True)
class Story:
    """Facts in order as (who or what it is about, where it leads, sentence), one question and its one right label."""

    facts: list[tuple[str, str, str]]
    question: str
    prefix: str
    gold: str
    labels: tuple[str, ...]


class _Draws:
    """Draws of one story, in order: each takes the next of the item's random numbers."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.made = draft, 0

    def below(self, n: int) -> int:
        self.made += 1
        return self.draft.pick(f"story {self.made}", n)

    def one(self, of: tuple[str, ...] | list[str]) -> str:
        return of[self.below(len(of))]

    def other(self, of: tuple[str, ...], than: str) -> str:
        return self.one([x for x in of if x != than])


def _move(draws: _Draws, person: str, place: str) -> tuple[str, str, str]:
    return person, place, draws.one(_MOVES).format(p=person, x=place)


def _place(draws: _Draws) -> Story:
    """One fact: where a person went last. Four people move twice each, in any order."""
    at: dict[str, str] = {}
    facts = []
    for turn in draws.draft.order("turns", 8):
        person = PEOPLE[turn % 4]
        at[person] = draws.other(PLACES, at.get(person, ""))
        facts.append(_move(draws, person, at[person]))
    asked = draws.one(PEOPLE[:4])
    return Story(facts, f"where is {asked}?", f" {asked} is in the", at[asked], PLACES)


def _carried(draws: _Draws) -> Story:
    """Two facts: a thing is where the person is who took it. Who holds nothing moves too."""
    carrier, other = PEOPLE[draws.below(3)], PEOPLE[3 + draws.below(3)]
    thing, second = draws.one(THINGS[:3]), draws.one(THINGS[3:])
    facts = [(thing, carrier, f"{carrier} takes the {thing}."), (second, other, f"{other} takes the {second}.")]
    at: dict[str, str] = {}
    for turn in draws.draft.order("turns", 6):
        person = (carrier, other)[turn % 2]
        at[person] = draws.other(PLACES, at.get(person, ""))
        facts.append(_move(draws, person, at[person]))
    return Story(facts, f"where is the {thing}?", f" The {thing} is in the", at[carrier], PLACES)


def _earlier(draws: _Draws) -> Story:
    """Three facts: where a thing was before its carrier's last move."""
    carrier, other = PEOPLE[draws.below(3)], PEOPLE[3 + draws.below(3)]
    thing = draws.one(THINGS)
    facts = [(thing, carrier, f"{carrier} takes the {thing}.")]
    path: dict[str, list[str]] = {carrier: [], other: []}
    for turn in draws.draft.order("turns", 6):
        person = (carrier, other)[turn % 2]
        # Nobody comes to a place twice: "before it came to" names one moment.
        path[person].append(draws.one([place for place in PLACES if place not in path[person]]))
        facts.append(_move(draws, person, path[person][-1]))
    last, before = path[carrier][-1], path[carrier][-2]
    return Story(
        facts,
        f"where was the {thing} before it came to the {last}?",
        " It was in the",
        before,
        PLACES,
    )


def _relation(draws: _Draws) -> Story:
    """One relation of several: what lies north of a place. Places lie on a line, and each is named in two sentences."""
    line = [PLACES[i] for i in draws.draft.order("line", len(PLACES))]
    facts = []
    for i in draws.draft.order("said", len(line) - 1):
        north, south = line[i], line[i + 1]
        if draws.below(2):
            facts.append((north, south, f"The {north} lies directly north of the {south}."))
        else:
            facts.append((south, north, f"The {south} lies directly south of the {north}."))
    asked = draws.below(len(line) - 1)
    south = line[asked + 1]
    return Story(
        facts, f"what lies directly north of the {south}?", " Directly north of it lies the", line[asked], PLACES
    )


def _given(draws: _Draws) -> Story:
    """Three arguments: who was given a thing by a person."""
    facts, deals = [], []
    for turn in range(6):
        giver = draws.one(PEOPLE)
        taker = draws.other(PEOPLE, giver)
        thing = THINGS[draws.draft.order("things", len(THINGS))[turn]]
        facts.append((thing, taker, f"{giver} gives the {thing} to {taker}."))
        deals.append((giver, thing, taker))
    giver, thing, taker = deals[draws.below(len(deals))]
    return Story(facts, f"to whom does {giver} give the {thing}?", f" {giver} gives it to", taker, PEOPLE)


_STORIES = {"place": _place, "carried": _carried, "earlier": _earlier, "relation": _relation, "given": _given}


@dataclass(frozen=True, kw_only=True)
class BabilongTask(Family):
    """The facts of one story inside `window` = (first, last) fraction of the haystack."""

    kind: str
    window: tuple[float, float] = (0.0, 1.0)
    version: int = 1

    def __post_init__(self) -> None:
        low, high = self.window
        if self.kind not in _STORIES or not 0.0 <= low < high <= 1.0:
            raise TaskError(f"babilong: no story '{self.kind}', or window {self.window} is not inside 0..1")

    @property
    def id(self) -> str:
        low, high = (round(100 * edge) for edge in self.window)
        return f"babilong.{self.kind}" + ("" if (low, high) == (0, 100) else f"_{low}_{high}")

    @property
    def draws(self) -> str:
        """Windows share their stories: an item differs between them in nothing but the places of its facts."""
        return f"babilong.{self.kind}@{self.version}"

    def item(
        self,
        index: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Item:
        draft = self.draft(index, length, data_seed, split, depth)
        story = _STORIES[self.kind](_Draws(draft))
        low, high = self.window
        places = [low + (high - low) * at for at in draft.depths("places", len(story.facts))]
        pieces = tuple(Piece(*fact, at) for fact, at in zip(story.facts, places, strict=True))
        question = ask(f"\nQuestion: {story.question}\nAnswer:", story.prefix, [story.gold], tokenizer)
        meta = {
            "scorers": {"strict": "unique-label@1", "compat": "babilong@1"}, "labels": list(story.labels),
            "window": list(self.window), "chance": 1 / len(story.labels),
        }  # fmt: skip
        supply, source = prose(draft, tokenizer)
        return woven(self, draft, Weave(HEAD, pieces, (question,), meta), supply, source, length, tokenizer)


BABILONG_TASKS: tuple[BabilongTask, ...] = (
    *(BabilongTask(kind=kind) for kind in _STORIES),
    *(BabilongTask(kind=kind, window=window) for kind in ("place", "carried") for window in ((0.0, 0.25), (0.75, 1.0))),
)
