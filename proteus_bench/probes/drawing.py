"""What the figures share: a probe document with its look-ups, a figure, and the numbers behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proteus_bench.probes.state import SEGMENTS
from proteus_bench.probes.svg import Axis, Point, Series, line_chart

Row = Mapping[str, Any]
BLOCK_TICKS = [(i, str(i + 1)) for i in (0, 3, 7, 11, 15)]


@dataclass(frozen=True)
class Figure:
    """``reading``: what to see and how it was measured. ``panels``: rows of SVG. ``legend``: (name, colour, dashed).

    table: header and rows of the numbers behind it.
    """

    title: str
    reading: str
    panels: Sequence[Sequence[str]]
    legend: Sequence[tuple[str, int, bool]]
    table: tuple[Sequence[str], Sequence[Sequence[str]]]


class Drawing:
    """A probe document with the look-ups that the figures need."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.rows: Sequence[Row] = document["measures"]
        self.models = [method["model"] for method in document["methods"]]
        self.color = {model: i for i, model in enumerate(self.models)}
        self.short = short_names(self.models)
        self.length = max(document["lengths"])

    def find(self, name: str, **wanted: Any) -> list[Row]:
        """Rows of one measure whose fields have these values."""
        return [r for r in self.rows if r["measure"] == name and all(r.get(k) == v for k, v in wanted.items())]

    def layers(self, name: str) -> list[int]:
        """Layers in which a measure was taken."""
        return sorted({row["layer"] for row in self.find(name)})

    def legend(self, models: Sequence[str] | None = None) -> list[tuple[str, int, bool]]:
        """All models with their colours."""
        return [(self.short[model], self.color[model], False) for model in models or self.models]

    def series(self, name: str, scale: float = 1.0, **wanted: Any) -> list[Series]:
        """One line a model over ``x``."""
        lines = [
            Series(self.short[model], [point(row, scale) for row in self.find(name, model=model, **wanted)], self.color[model])
            for model in self.models
        ]
        return [line for line in lines if line.points]

    def unlock_places(self) -> list[float]:
        """Where the first scheduled model's blocks open, in insertion blocks (0 = the context's start)."""
        for method in self.document["methods"]:
            course = self.document["courses"].get(method["model"])
            if course and any(at > 1 for at in course["unlocks"]):
                total = course["marks"][-1]
                return [SEGMENTS * (at - 1) / total - 0.5 for at in course["unlocks"] if 1 < at <= total]
        return []


def short_names(models: Sequence[str]) -> dict[str, str]:
    """Names for plots: without the weights that are named in parentheses, where that leaves all of them different."""
    short = {model: re.sub(r"\(weights=[^,()]*\)|,weights=[^,()]*", "", model) for model in models}
    return short if len(set(short.values())) == len(models) else {model: model for model in models}


def point(row: Row, scale: float = 1.0) -> Point:
    """A measure as a point of a plot."""
    lo, hi = (None if row[end] is None else scale * row[end] for end in ("ci_low", "ci_high"))
    return Point(row.get("x", 0), scale * row["value"], lo, hi)


def table(rows: Sequence[Row], fields: Sequence[str], scale: float = 1.0) -> tuple[list[str], list[list[str]]]:
    """Numbers behind a figure."""
    body = []
    for row in rows:
        lo, hi = row["ci_low"], row["ci_high"]
        span = row["note"] or "none" if lo is None or hi is None else f"[{scale * lo:.4g}, {scale * hi:.4g}]"
        value = f"{scale * row['value']:.4g}"
        body.append([str(row.get(field, "")) for field in fields] + [value, span, str(row["n"])])
    return [*fields, "value", "95% interval", "n"], body


def window(lines: Sequence[Series]) -> tuple[float, float]:
    """Where the means are, with room; a band that is far wider than all of them would flatten them."""
    means = [p.y for line in lines for p in line.points]
    return min(-0.25, min(means) - 0.25), max(1.25, max(means) + 0.25)


def nats_chart(lines: Sequence[Series], x: Axis, verticals: Sequence[float] = ()) -> str:
    """Log-probabilities, seen as `window` sees: up to zero at the most."""
    means = [p.y for line in lines for p in line.points]
    room = max(1.0, 0.5 * (max(means) - min(means))) if means else 1.0
    low, high = (min(means) - room, min(0.0, max(means) + room)) if means else (-1.0, 0.0)
    axis = Axis("nats a value", low, high)
    return line_chart("log-probability", cut(lines, low, high), x, axis, verticals=verticals)


def cut(lines: Sequence[Series], low: float, high: float) -> list[Series]:
    """Bands cut at the edges of the plot."""

    def inside(value: float | None) -> float | None:
        return None if value is None else min(high, max(low, value))

    cut = [Series(s.name, [Point(p.x, p.y, inside(p.lo), inside(p.hi)) for p in s.points], s.color) for s in lines]
    return cut


def without_bands(line: Series) -> Series:
    return Series(line.name, [Point(p.x, p.y) for p in line.points], line.color)
