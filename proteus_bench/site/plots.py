"""Plots of scores as SVG: length curves, courses of capacity, depth maps, whiskers. Built on the probes' pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from proteus_bench.probes.svg import SERIES, Axis, Box, Series, line_chart

HEAT_LEVELS = 10
_WIDTH = 100.0


def tokens(value: int) -> str:
    """A number of tokens, short: 4096 is 4K."""
    if value >= 1024 and value % 1024 == 0:
        return f"{value // 1024}K"
    return f"{value:,}"


class Plot:
    """A frame with axes from `line_chart`, to which marks are added that it does not have. Axes need both ends."""

    def __init__(self, title: str, series: Sequence[Series], x: Axis, y: Axis, box: Box | None = None) -> None:
        self.box, self.x, self.y = box or Box(), x, y
        self._svg = line_chart(title, series, x, y, box=self.box)
        self._more: list[str] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Place of a value on the picture."""
        left, top, right, bottom = self.box.inner
        return left + self._share(self.x, x) * (right - left), bottom - self._share(self.y, y) * (bottom - top)

    @staticmethod
    def _share(axis: Axis, value: float) -> float:
        assert axis.low is not None and axis.high is not None
        low, high, at = axis.low, axis.high, value
        if axis.log:
            low, high, at = math.log2(low), math.log2(high), math.log2(at)
        return (at - low) / (high - low)

    def mark(self, x: float, label: str, low: bool = False) -> None:
        """A vertical line with a label at its top (or near its foot), on the side where there is room."""
        _, top, right, bottom = self.box.inner
        place, _ = self.at(x, 0)
        room = right - place > 7 * len(label)
        anchor, shift = ("start", 4) if room else ("end", -4)
        self._more.append(f'<path class="trained" d="M{n(place)} {n(top)}V{n(bottom)}"/>')
        self._more.append(_small(place + shift, bottom - 7 if low else top + 10, anchor, label))

    def steps(self, values: Sequence[float], name: str, color: int, dashed: bool = False) -> None:
        """A course over equal parts of the x axis, drawn as steps."""
        assert self.x.low is not None and self.x.high is not None
        wide = (self.x.high - self.x.low) / len(values)
        path = ""
        for i, value in enumerate(values):
            left, level = self.at(self.x.low + i * wide, value)
            right, _ = self.at(self.x.low + (i + 1) * wide, value)
            if i and value == values[i - 1]:
                path = path[: path.rindex("H")] + f"H{n(right)}"
            else:
                path += f"{'M' if not i else 'V'}{n(left) + ' ' if not i else ''}{n(level)}H{n(right)}"
        kind = f"line s{color % SERIES}" + (" dashed" if dashed else "")
        self._more.append(f'<path class="{kind}" d="{path}"><title>{escape(name)}</title></path>')

    def svg(self) -> str:
        """The picture."""
        return self._svg.removesuffix("</svg>") + "".join(self._more) + "</svg>"


def length_curves(title: str, series: Sequence[Series], trained: Sequence[int], top: float = 100.0) -> str:
    """Scores x 100 against the length of the context in tokens, with the training lengths marked."""
    lengths = sorted({int(p.x) for s in series for p in s.points})
    ends = [*lengths, *trained]
    x = Axis("tokens of context", min(ends) / 1.2, max(ends) * 1.2, [(v, tokens(v)) for v in lengths], log=True)
    plot = Plot(title, series, x, Axis("score x 100", 0, top))
    for length in trained:
        plot.mark(length, f"trained at {tokens(length)}")
    return plot.svg()


def courses(title: str, rows: Sequence[tuple[str, Sequence[float], int, bool]], length: int, trained: Sequence[int]) -> str:
    """Open share of the memory along a context of ``length`` tokens; rows of (name, course, colour, dashed)."""
    marks = [length * i / 4 for i in range(5)]
    x = Axis("position in the context, tokens", 0, length, [(v, tokens(round(v))) for v in marks])
    plot = Plot(title, [], x, Axis("open, %", 0, 105, [(v, str(v)) for v in (0, 25, 50, 75, 100)]))
    for name, course, color, dashed in rows:
        plot.steps([100 * value for value in course], name, color, dashed)
    for at in trained:
        if at < length:
            plot.mark(at, f"trained at {tokens(at)}", low=True)
    return plot.svg()


def depth_map(title: str, lengths: Sequence[int], values: Mapping[tuple[int, int], tuple[float, int]], parts: int) -> str:
    """Score by length (columns) and depth (rows, the beginning of the context on top): ``values[length, part]``.

    A cell shows its score x 100; one that no question fell into is crossed out. Values come with their count.
    """
    wide, high, left, top = 46.0, 17.0, 62.0, 26.0
    letter = 8.0
    width = max(120.0, left + wide * len(lengths) + 8, min(letter * len(title) + 8, 216.0))
    height, room = top + high * parts + 40, int((width - 8) / letter)
    head = title if len(title) <= room else title[: room - 1] + "\u2026"
    size = f'viewBox="0 0 {n(width)} {n(height)}" width="{n(width)}" height="{n(height)}"'
    body = [f'<text class="title" x="4" y="15">{escape(head)}</text>']
    for part in range(parts):
        y = top + part * high
        label = f"{100 * part // parts}-{100 * (part + 1) // parts}%"
        body.append(_small(left - 6, y + 12, "end", label))
        for column, length in enumerate(lengths):
            body.append(_depth_cell(left + column * wide, y, wide, high, values.get((length, part)), length, label))
    for column, length in enumerate(lengths):
        place = left + (column + 0.5) * wide
        body.append(_small(place, top + high * parts + 14, "middle", tokens(length)))
    middle = left + wide * len(lengths) / 2
    body.append(_small(middle, height - 8, "middle", "tokens"))
    return f'<svg class="plot map" {size} role="img" aria-label="{escape(title)}, score by depth and length">{"".join(body)}</svg>'


def _depth_cell(
    x: float, y: float, wide: float, high: float, value: tuple[float, int] | None, length: int, label: str
) -> str:
    where = f'x="{n(x + 0.5)}" y="{n(y + 0.5)}" width="{n(wide - 1)}" height="{n(high - 1)}"'
    if value is None:
        cross = f"M{n(x + 18)} {n(y + 5)}l10 7m0 -7l-10 7"
        return f'<rect class="void" {where}/><path class="void" d="{cross}"/>'
    score, count = value
    level = round(HEAT_LEVELS * score)
    text = _small(x + wide / 2, y + 12, "middle", f"{100 * score:.0f}", " hot" if level > 5 else "")
    tip = f"<title>{tokens(length)}, depth {label}: {100 * score:.1f} of {count} questions</title>"
    filled = f'<rect class="heat" fill-opacity="{level / HEAT_LEVELS:.1f}" {where}/>'
    return f'<g><rect class="void" {where}/>{filled}{text}{tip}</g>'


def _small(x: float, y: float, anchor: str, text: str, more: str = "") -> str:
    return f'<text class="small{more}" x="{n(x)}" y="{n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def whisker(score: float, low: float | None, high: float | None) -> str:
    """The bar of one score in a table row: interval and point on a scale from 0 to 1. Its numbers stand beside it."""
    bar = "" if low is None or high is None else f'<path d="M{n(_WIDTH * low)} 6H{n(max(_WIDTH * high, _WIDTH * low + 0.5))}"/>'
    body = f'<path class="t" d="M0 6H100"/>{bar}<circle cx="{n(_WIDTH * score)}" cy="6" r="3"/>'
    return f'<svg class="w" viewBox="-3 0 106 12" aria-hidden="true">{body}</svg>'


def rank_bar(best: int, worst: int, count: int) -> str:
    """Places from 1 (left) to ``count`` that are left open."""
    step = _WIDTH / max(count, 1)
    left, right = (best - 1) * step, worst * step
    return f'<svg class="r" viewBox="0 0 100 6" aria-hidden="true"><path d="M{n(left)} 3H{n(max(right, left + 2))}"/></svg>'


def n(value: float) -> str:
    """A coordinate: one decimal, no trailing zero, never NaN."""
    if not math.isfinite(value):
        raise ValueError(f"a plot's coordinate is {value}")
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"
