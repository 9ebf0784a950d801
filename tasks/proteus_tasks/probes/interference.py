"""Does what comes later destroy what came earlier, and does what came earlier spoil what comes later?

`interference.a<|A|>_b<|B|>[_gap50]`: set A in the first part of the window, set B in the last part, then questions about both.
Without a gap each has one half; with `gap50` each has one quarter and half of the window between them is prose. A size of 0
leaves a set out: prose stands in its place, and the facts of the other set keep their keys, values and positions. So

    retroactive = recall of A in a_b0  -  recall of A in a_b        (B destroys A)
    proactive   = recall of B in a0_b  -  recall of B in a_b        (A spoils B)

are paired by item. Up to eight facts of each set are asked, evenly spread over its part, the same ones at every size.
"""

from __future__ import annotations

from dataclasses import dataclass

from .capacity import bit_reversed
from .facts import Draft, Fact, ProbeTask

SIZES = (0, 4, 16, 64)
GAP_SIZES = (0, 4, 16)
MOST_ASKED = 8


@dataclass(frozen=True)
class Interference:
    """`a` facts, then `b` facts; `gap` is the fraction of the window between them."""

    a: int
    b: int
    gap: float = 0.0

    @property
    def family(self) -> str:
        return "interference" + (f".gap{round(100 * self.gap)}" if self.gap else "")

    @property
    def id(self) -> str:
        return f"interference.a{self.a}_b{self.b}" + (f"_gap{round(100 * self.gap)}" if self.gap else "")

    def facts(self, draft: Draft) -> list[Fact]:
        part, extra = (1.0 - self.gap) / 2, max(self.a, self.b, MOST_ASKED) - MOST_ASKED
        # One draw for both sets, so that they share no key and no value; the sets take turns beyond the asked ones, so that
        # neither depends on the size of the other.
        keys, values = draft.pairs("", 2 * MOST_ASKED + 2 * extra, 2 * MOST_ASKED + 2 * extra)
        found: list[Fact] = []
        asked = 0
        for turn, (role, size, low) in enumerate((("A", self.a, 0.0), ("B", self.b, 1.0 - part))):
            places = draft.spread(f"{role} asked ", MOST_ASKED, low, low + part)
            for i in range(min(size, MOST_ASKED)):
                name, place = turn * MOST_ASKED + i, places[bit_reversed(i, MOST_ASKED)]
                found.append(Fact(keys[name], values[name], place, role, asked))
                asked += 1
            more = max(0, size - MOST_ASKED)
            for j, place in enumerate(draft.spread(f"{role} other ", more, low, low + part)):
                name = 2 * MOST_ASKED + 2 * j + turn
                found.append(Fact(keys[name], values[name], place, role))
        return found


def _grid(sizes: tuple[int, ...], gap: float) -> list[ProbeTask]:
    return [ProbeTask(Interference(a, b, gap)) for a in sizes for b in sizes if a or b]


INTERFERENCE = (*_grid(SIZES, 0.0), *_grid(GAP_SIZES, 0.5))
