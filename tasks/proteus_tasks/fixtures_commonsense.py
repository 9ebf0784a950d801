"""Fixtures in the schemas of the commonsense sets, LAMBADA and WikiText: written for this project, always the same.

Plain questions about tools, feelings and a made-up country. They keep tests and demonstrations offline; scores on them are no
scores on the data sets whose schema they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from . import world
from .fixtures import dice, passage
from .world import Dice

ROWS = 200
_TOOLS = (
    ("cut a loaf of bread", "a knife", "a pillow"),
    ("carry water", "a bucket", "a sieve"),
    ("drive in a nail", "a hammer", "a feather"),
    ("write a letter", "a pen", "a spoon"),
    ("cross the river", "a boat", "a ladder"),
    ("read at night", "a lamp", "a rope"),
    ("dig a ditch", "a spade", "a violin"),
    ("sweep the floor", "a broom", "a candle"),
    ("tie up a parcel", "some string", "some sand"),
    ("warm the room", "a stove", "a bell"),
    ("mend a shirt", "a needle", "a brick"),
    ("weigh the flour", "a balance", "a comb"),
)
_SCENES = (
    ("Baking bread", "kneads the dough on a table.", "lets it rise and puts the loaf into the oven"),
    ("Fishing", "baits the hook and casts the line.", "waits until something pulls and reels it in"),
    ("Sharpening a knife", "wets the stone and lays the blade on it.", "draws the blade along the stone again and again"),
    ("Painting a fence", "stirs the paint and dips the brush.", "brushes the boards one by one from top to bottom"),
    ("Rowing", "sits down in the boat and takes the oars.", "pulls both oars and glides away from the bank"),
    ("Planting a tree", "digs a deep hole in the garden.", "sets the young tree into the hole and fills it with earth"),
)
_FEELINGS = (
    ("lost the silver key of the house", "worried", "proud", "amused"),
    ("won the race at the summer fair", "proud", "ashamed", "afraid"),
    ("was given a loaf of bread by a stranger", "grateful", "angry", "bored"),
    ("heard a loud bang in the cellar", "startled", "sleepy", "grateful"),
    ("waited all day for a letter", "impatient", "proud", "startled"),
)


@lru_cache(maxsize=27)
def rows(name: str, split: str) -> tuple[dict[str, Any], ...]:
    """The rows of one of lm-eval's data sets, by the name of its task."""
    maker = _MAKERS[name]
    return tuple(maker(dice(name, split, index), split, index) for index in range(ROWS))


def _one(draws: Dice, table: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return table[draws.below(len(table))]


def _some(draws: Dice, table: Sequence[tuple[str, ...]], n: int) -> list[tuple[str, ...]]:
    return [table[int(place)] for place in draws.some([str(i) for i in range(len(table))], n)]


def _piqa(draws: Dice, split: str, index: int) -> dict[str, Any]:
    goal, right, wrong = _one(draws, _TOOLS)
    first = draws.below(2)
    solutions = [f"Use {right}.", f"Use {wrong}."]
    return {
        "goal": f"{draws.one(world.people(split))} wants to {goal}.",
        "sol1": solutions[first], "sol2": solutions[1 - first], "label": first,
    }  # fmt: skip


def _hellaswag(draws: Dice, split: str, index: int) -> dict[str, Any]:
    scenes = _some(draws, _SCENES, 4)
    right = draws.below(4)
    activity, start, ending = scenes[0]
    endings = [scene[2] + "." for scene in scenes[1:]]
    endings.insert(right, ending + ".")
    person = draws.one(world.people(split))
    return {
        "activity_label": activity, "ctx_a": f"{person} {start}", "ctx_b": "then the worker", "endings": endings,
        "label": str(right),
    }  # fmt: skip


def _winogrande(draws: Dice, split: str, index: int) -> dict[str, Any]:
    first, second = draws.some(list(world.people(split)), 2)
    lender = draws.below(2)
    sentence = f"{first} lent the {draws.one(world.OBJECTS)} to {second}, and a week later "
    sentence += "_ gave it back." if lender else "_ asked for it."
    return {"sentence": sentence, "option1": first, "option2": second, "answer": "2" if lender else "1"}


def _arc(draws: Dice, split: str, index: int) -> dict[str, Any]:
    picks = _some(draws, _TOOLS, 4)
    right = draws.below(4)
    goal, tool, _ = picks[0]
    texts = [pick[1] for pick in picks[1:]]
    texts.insert(right, tool)
    labels = list("ABCD") if index % 2 else list("1234")
    return {
        "question": f"What would {draws.one(world.people(split))} need to {goal}?",
        "choices": {"text": texts, "label": labels}, "answerKey": labels[right],
    }  # fmt: skip


def _siqa(draws: Dice, split: str, index: int) -> dict[str, Any]:
    event, *feelings = _one(draws, _FEELINGS)
    person = draws.one(world.people(split))
    order = draws.shuffled(list(feelings))
    answers = dict(zip(("answerA", "answerB", "answerC"), order, strict=True))
    label = str(order.index(feelings[0]) + 1)
    return {"context": f"{person} {event}.", "question": f"How would {person} feel afterwards?", **answers, "label": label}


def _boolq(draws: Dice, split: str, index: int) -> dict[str, Any]:
    town, river = draws.one(world.towns(split)), draws.one(world.rivers(split))
    trade, other = draws.some(list(world.TRADES), 2)
    true = draws.below(2)
    passage_text = f"{town} is a town on the {river}. Its people have lived by {trade} since {draws.number(1100, 1890)}."
    return {"passage": passage_text, "question": f"do people in {town} live by {trade if true else other}", "label": true}


def _lambada(draws: Dice, split: str, index: int) -> dict[str, Any]:
    first, second = (name.split(" ")[1] for name in draws.some(list(world.people(split)), 2))
    story = " ".join(passage(draws, split, 2))
    text = f"{first} had brought the {draws.one(world.OBJECTS)} and {second} had brought nothing. {story} "
    return {"text": f"{text}All eyes were on the one who had come with empty hands, on {second}"}


def _wikitext(draws: Dice, split: str, index: int) -> dict[str, Any]:
    parts = [f" = {draws.one(world.towns(split))} = \n"]
    for _ in range(2):
        text = " ".join(passage(draws, split, 4))
        for sign in (",", ".", ";"):
            text = text.replace(sign, f" {sign}")
        parts.append(f" {text} \n")
    return {"page": "\n".join(parts)}


_MAKERS: dict[str, Callable[[Dice, str, int], dict[str, Any]]] = {
    "piqa": _piqa, "hellaswag": _hellaswag, "winogrande": _winogrande, "arc_easy": _arc, "arc_challenge": _arc,
    "social_iqa": _siqa, "boolq": _boolq, "lambada_openai": _lambada, "wikitext": _wikitext,
}  # fmt: skip
