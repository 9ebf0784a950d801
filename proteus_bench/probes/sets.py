"""Which tasks of the interference probe are compared: a set of facts alone, and the same facts beside another set."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_SETS = re.compile(r"interference\.a(\d+)_b(\d+)(?:_gap(\d+))?")


@dataclass(frozen=True)
class Pair:
    """`role`'s facts in `alone` less the same facts in `task`. name: retroactive (A, then B comes) or proactive (B, after A).

    a, b: sizes of the sets; gap: percent of the window between them.
    """

    name: str
    role: str
    alone: str
    task: str
    a: int
    b: int
    gap: int


def pairs_of(tasks: Collection[str]) -> Iterator[Pair]:
    """Every comparison whose two tasks are there, by the sizes of its sets and the gap."""
    found = {task: match for task in tasks if (match := _SETS.fullmatch(task))}
    sizes = {task: tuple(int(part or 0) for part in match.groups()) for task, match in found.items()}
    for task, (a, b, gap) in sorted(sizes.items(), key=lambda held: held[1]):
        suffix = f"_gap{gap}" if gap else ""
        sides = (("retroactive", "A", f"interference.a{a}_b0"), ("proactive", "B", f"interference.a0_b{b}"))
        for name, role, alone in sides:
            if a and b and alone + suffix in found:
                yield Pair(name, role, alone + suffix, task, a, b, gap)
