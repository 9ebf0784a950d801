"""A task family of your own in one file: a task, a suite, and a sub-command of `proteus-bench generate`.

Put this file into a package of yours and name its `plugin` in pyproject.toml:

    [project.entry-points."proteus_bench.tasks"]
    places = "my_package.example_task:plugin"

After `pip install`, `proteus-bench list tasks` shows `places.where`, `proteus-bench run --model titans --suite places` runs it, and
`proteus-bench generate places --task where --length 512 --n 20 --out DIR` writes its items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proteus_tasks import Item, Tokenizer, vocabulary
from proteus_tasks.family import Family, Piece, Weave, ask, prose, woven
from proteus_tasks.family_cli import app

DRAWERS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class Where(Family):
    """Things lie in drawers; which drawer holds the asked one? An item depends on nothing but its arguments."""

    things: int = 4
    version: int = 1

    @property
    def id(self) -> str:
        return "places.where"

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
        names = vocabulary.draw_words(draft.seed("things"), split, self.things)
        drawers = [DRAWERS[i] for i in draft.order("drawers", len(DRAWERS))[: self.things]]
        depths = draft.depths("depths", self.things)
        pieces = tuple(
            Piece(name, drawer, f"The {name} lies in the {drawer} drawer.", at)
            for name, drawer, at in zip(names, drawers, depths, strict=True)
        )
        question = ask(f"\nQuestion: where is the {names[0]}?\nAnswer:", " In the", drawers[:1], tokenizer)
        # The only drawer of the first sentence counts, so that naming them all is wrong: see docs/tasks.md for the rules.
        meta = {"scorers": {"strict": "unique-label@1", "compat": "contains@1"}, "labels": list(DRAWERS)}
        supply, source = prose(draft, tokenizer)
        weave = Weave("Remember where things lie.\n", pieces, (question,), meta)
        return woven(self, draft, weave, supply, source, length, tokenizer)


SUITE = """
id = "places"
version = "1"
description = "Where is it? Drawers at 512 and 2048 tokens"
data_seed = 0
split = "test"
lengths = [512, 2048]
n = 50
tasks = ["places.where"]
"""


@dataclass(frozen=True)
class Plugin:
    """What the entry point names: tasks by id, suites by name, and a function that makes the sub-command."""

    tasks: dict[str, Any]
    suites: dict[str, str]

    def cli(self) -> Any:
        return app("places", list(self.tasks.values()))


plugin = Plugin({"places.where": Where()}, {"places": SUITE})
