"""Interference on the leaderboard's page: what a set of facts loses beside another one, from the effects of a board's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proteus_bench.leaderboard.board_schema import BoardRow, Effect
from proteus_bench.probes.svg import Axis, Point, Series, dot_chart
from proteus_bench.site import plots
from proteus_bench.site.page import clean


def effect_figure(rows: Sequence[BoardRow]) -> dict[str, Any] | None:
    """Points of recall lost, retroactive and proactive, with 95% intervals. None for a suite without such pairs."""
    places = list(dict.fromkeys(_place(effect) for row in rows for effect in row.effects))
    if not places:
        return None
    several = len({effect.length for row in rows for effect in row.effects}) > 1
    lines = []
    for place in places:
        series = [
            Series(clean(row.label), [_dot(effect)], color)
            for color, row in enumerate(rows)
            for effect in row.effects
            if _place(effect) == place
        ]
        lines.append((_label(place, several), series))
    label = "recall lost, points"
    return {
        "title": "Interference",
        "reading": "Recall of a set of facts alone less recall of the same facts with the other set in the context: to the right "
        "of zero the other set destroys. Retroactive: set B came after A. Proactive: set A stood before B. Paired by item.",
        "panels": [dot_chart(label, lines, Axis(label), width=540)],
    }


def _place(effect: Effect) -> tuple[str, int, int, int, int]:
    return effect.name, effect.a, effect.b, effect.gap, effect.length


def _label(place: tuple[str, int, int, int, int], several: bool) -> str:
    name, a, b, gap, length = place
    return f"{name}, A={a} B={b}" + (f", gap {gap}%" if gap else "") + (f" {plots.tokens(length)}" if several else "")


def _dot(effect: Effect) -> Point:
    middle = 100 * effect.diff
    low, high = (None if end is None else 100 * end for end in (effect.ci_low, effect.ci_high))
    return Point(middle, middle, low, high)
