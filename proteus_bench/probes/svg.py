"""Plots as SVG text: lines with interval bands, dots with intervals, heat maps. No scripts, no style attributes.

Colours are CSS classes (s0, s1, ... for series, heat for maps), so that one file serves light and dark pages, and every
series also has its own marker. All text is escaped. Sizes are in SVG user units; the page scales the whole picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

SERIES = 6
"""Colours and markers there are; further series start over."""
LEVELS = 14


@dataclass(frozen=True)
class Point:
    """One value with its interval; ``lo`` and ``hi`` None when there is none."""

    x: float
    y: float
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True)
class Series:
    """A line. ``color``: which of the series' colours; ``dashed`` tells two lines of one colour apart."""

    name: str
    points: Sequence[Point]
    color: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class Axis:
    """``low`` and ``high`` None: from the data. ticks: (position, label), made when empty. log: base-2 positions."""

    label: str
    low: float | None = None
    high: float | None = None
    ticks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    log: bool = False


@dataclass(frozen=True)
class Box:
    """Where the plot stands in its picture."""

    width: float = 416
    height: float = 262
    left: float = 52
    right: float = 18
    top: float = 26
    bottom: float = 42

    @property
    def inner(self) -> tuple[float, float, float, float]:
        """left, top, right, bottom edges of the plot itself."""
        return self.left, self.top, self.width - self.right, self.height - self.bottom


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high, about ``count`` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + step * 1e-9:
        found.append(round(first * step, 12))
        first += 1
    return found


def number(value: float) -> str:
    """A short label."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000 and value % 1000 == 0:
        return f"{value / 1000:g}K"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:g}"


def line_chart(
    title: str, series: Sequence[Series], x: Axis, y: Axis, *, box: Box | None = None,
    rule: tuple[float, str] | None = None, verticals: Sequence[float] = (),
) -> str:  # fmt: skip
    """Lines with bands. ``rule``: a horizontal reference with its label. ``verticals``: marks along the top edge."""
    box = box or Box()
    xs = [p.x for s in series for p in s.points]
    ys = [v for s in series for p in s.points for v in (p.y, p.lo, p.hi) if v is not None and math.isfinite(v)]
    if rule is not None:
        ys.append(rule[0])
    at_x, x_ticks = _scale(x, xs, box.inner[0], box.inner[2])
    at_y, y_ticks = _scale(y, ys, box.inner[3], box.inner[1], pad=0.06)
    body = [_frame(title, box, x.label, y.label, [(at_x(v), t) for v, t in x_ticks], [(at_y(v), t) for v, t in y_ticks])]
    left, top, right, _ = box.inner
    for place in verticals:
        body.append(f'<path class="unlock" d="M{_n(at_x(place))} {_n(top)}v7"/>')
    if rule is not None:
        body.append(f'<path class="rule" d="M{_n(left)} {_n(at_y(rule[0]))}H{_n(right)}"/>')
        body.append(_text(right - 3, at_y(rule[0]) - 4, rule[1], "end", "small"))
    for one in series:
        body.append(_line(one, at_x, at_y))
    return _svg(box, title, body)


LETTER = 6.4
"""Width of a letter of a row's label, in the page's font."""


def dot_chart(title: str, rows: Sequence[tuple[str, Sequence[Series]]], x: Axis, *, width: float = 640) -> str:
    """Dots with intervals, one row a label; every series of a row holds one point whose ``y`` is the value.

    A line marks zero where the axis holds it.
    """
    step, gap = 17.0, 12.0
    heights = [step * len(series) + gap for _, series in rows]
    longest = max((len(label) for label, _ in rows), default=0)
    box = Box(width, 26 + sum(heights) + 46, left=min(0.45 * width, 14 + LETTER * longest), bottom=42)
    values = [v for _, series in rows for s in series for p in s.points for v in (p.y, p.lo, p.hi) if v is not None]
    at_x, x_ticks = _scale(x, values, box.inner[0], box.inner[2], pad=0.06)
    body = [_frame(title, box, x.label, "", [(at_x(v), t) for v, t in x_ticks], [])]
    left, top, right, bottom = box.inner
    if left < at_x(0.0) < right:
        body.append(f'<path class="zero" d="M{_n(at_x(0.0))} {_n(top)}V{_n(bottom)}"/>')
    here = top
    for (label, series), height in zip(rows, heights, strict=True):
        body.append(_text(left - 8, here + height / 2 + 4, _fitted(label, left - 14), "end"))
        for i, one in enumerate(series):
            level = here + gap / 2 + step * (i + 0.5)
            for p in one.points:
                if p.lo is not None and p.hi is not None:
                    body.append(f'<path class="whisker s{one.color}" d="M{_n(at_x(p.lo))} {_n(level)}H{_n(at_x(p.hi))}"/>')
                body.append(_marker(one.color, at_x(p.y), level, _tip(one.name, p)))
        here += height
    return _svg(box, title, body)


def _fitted(label: str, room: float) -> str:
    """A label that is too wide loses its middle: how it begins and how it ends tells rows apart."""
    most = int(room / LETTER)
    if len(label) <= most:
        return label
    tail = (most - 1) // 2
    return f"{label[: most - 1 - tail]}…{label[len(label) - tail :]}"


def heat_map(
    title: str, values: Sequence[Sequence[float]], x: Axis, y_label: str, *, top: float, box: Box | None = None,
    steps: Sequence[float] = (),
) -> str:  # fmt: skip
    """``values[column][row]``, row 0 at the bottom; 0 is the page's colour and ``top`` the full colour.

    ``x``: low and high are the outer edges of the equal columns. ``steps[row]``: where the row opens, drawn as a staircase.
    """
    box = box or Box(right=68)
    at_x, x_ticks = _scale(x, [], box.inner[0], box.inner[2])
    left, up, right, down = box.inner
    columns, rows = len(values), len(values[0])
    wide, high = (right - left) / columns, (down - up) / rows
    labels = [(down - high * (row + 0.5), str(row + 1)) for row in range(rows) if rows <= 8 or row % 5 == 0 or row == rows - 1]
    if rows > 8:  # the last label must not touch the one before
        labels = [pair for i, pair in enumerate(labels) if i == len(labels) - 1 or labels[-1][0] < pair[0] - 12]
    body = [_frame(title, box, x.label, y_label, [(at_x(v), t) for v, t in x_ticks], labels, grid=False)]
    cells: dict[int, list[str]] = {}
    for c, column in enumerate(values):
        for r, value in enumerate(column):
            level = 0 if not top > 0 else round(LEVELS * min(1.0, max(0.0, value / top)))
            if level:
                corner = f"M{_n(left + c * wide)} {_n(down - (r + 1) * high)}"
                cells.setdefault(level, []).append(f"{corner}h{_n(wide)}v{_n(high)}h{_n(-wide)}z")
    body += [
        f'<path class="heat" fill-opacity="{level / LEVELS:.3f}" d="{"".join(paths)}"/>'
        for level, paths in sorted(cells.items())
    ]
    if steps:
        body.append(_staircase(steps, at_x, down, high, (left, right)))
    body.append(_color_bar(right + 12, up, down, top))
    return _svg(box, title, body)


def _staircase(steps: Sequence[float], at_x: Callable[[float], float], down: float, high: float, edges: tuple[float, float]) -> str:
    """The edge between what is locked (above, left) and open."""
    places = [min(edges[1], max(edges[0], at_x(step))) for step in steps]
    path = f"M{_n(places[0])} {_n(down)}"
    for row, place in enumerate(places):
        path += f"H{_n(place)}V{_n(down - (row + 1) * high)}"
    return f'<path class="stairs" d="{path}"/>'


def _color_bar(left: float, top: float, bottom: float, most: float) -> str:
    step = (bottom - top) / LEVELS
    cells = [
        f'<rect class="heat" fill-opacity="{(i + 1) / LEVELS:.3f}" x="{_n(left)}" y="{_n(bottom - (i + 1) * step)}"'
        f' width="9" height="{_n(step)}"/>'
        for i in range(LEVELS)
    ]
    ends = _text(left + 13, top + 9, number(most), "start", "small") + _text(left + 13, bottom, "0", "start", "small")
    return "".join(cells) + ends


def swatch(color: int, dashed: bool = False) -> str:
    """A series' line and marker for a legend."""
    dash = " dashed" if dashed else ""
    line = f'<path class="line s{color % SERIES}{dash}" d="M1 7H27"/>'
    return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{line}{_marker(color, 14, 7, "")}</svg>'


def _scale(
    axis: Axis, values: Sequence[float], start: float, end: float, pad: float = 0.0
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Position of a value on the picture, and the ticks."""
    low = min(values, default=0.0) if axis.low is None else axis.low
    high = max(values, default=1.0) if axis.high is None else axis.high
    if not high > low:
        low, high = low - 0.5, high + 0.5
    if axis.log:
        low, high = math.log2(low), math.log2(high)
    room = pad * (high - low)
    low, high = low - (room if axis.low is None else 0), high + (room if axis.high is None else 0)
    marks = list(axis.ticks) or [(v, number(v)) for v in ticks(low, high)]

    def at(value: float) -> float:
        place = math.log2(value) if axis.log else value
        return start + (place - low) / (high - low) * (end - start)

    return at, marks


def _line(series: Series, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    points = sorted(series.points, key=lambda p: p.x)
    color, dash = series.color % SERIES, " dashed" if series.dashed else ""
    parts = []
    whole = [p for p in points if p.lo is not None and p.hi is not None]
    if len(whole) > 1:
        upper = "L".join(f"{_n(at_x(p.x))} {_n(at_y(p.hi or 0.0))}" for p in whole)
        lower = "L".join(f"{_n(at_x(p.x))} {_n(at_y(p.lo or 0.0))}" for p in reversed(whole))
        parts.append(f'<path class="band s{color}" d="M{upper}L{lower}z"/>')
    if len(points) > 1:
        joined = "L".join(f"{_n(at_x(p.x))} {_n(at_y(p.y))}" for p in points)
        parts.append(f'<path class="line s{color}{dash}" d="M{joined}"/>')
    parts += [_marker(color, at_x(p.x), at_y(p.y), _tip(series.name, p)) for p in points]
    return "".join(parts)


def _tip(name: str, p: Point) -> str:
    span = "" if p.lo is None or p.hi is None else f" [{p.lo:.3g}, {p.hi:.3g}]"
    return f"{name}: {p.y:.3g}{span}"


def _marker(color: int, x: float, y: float, tip: str) -> str:
    """Circle, square, triangle, diamond, down triangle, cross: told apart without colour."""
    title = f"<title>{escape(tip)}</title>" if tip else ""
    kind = f'class="mark s{color % SERIES}"'
    match color % SERIES:
        case 0:
            return f'<circle {kind} cx="{_n(x)}" cy="{_n(y)}" r="3.6">{title}</circle>'
        case 1:
            shape = f"M{_n(x - 3.3)} {_n(y - 3.3)}h6.6v6.6h-6.6z"
        case 2:
            shape = f"M{_n(x)} {_n(y - 4.4)}l4.2 7.4h-8.4z"
        case 3:
            shape = f"M{_n(x)} {_n(y - 4.6)}l4.6 4.6l-4.6 4.6l-4.6 -4.6z"
        case 4:
            shape = f"M{_n(x)} {_n(y + 4.4)}l4.2 -7.4h-8.4z"
        case _:
            shape = f"M{_n(x - 4)} {_n(y - 1.2)}h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z"
    return f'<path {kind} d="{shape}">{title}</path>'


def _frame(
    title: str, box: Box, x_label: str, y_label: str, x_ticks: Sequence[tuple[float, str]],
    y_ticks: Sequence[tuple[float, str]], grid: bool = True,
) -> str:  # fmt: skip
    left, top, right, bottom = box.inner
    parts = [_text(left, 15, title, "start", "title")]
    for place, label in y_ticks:
        if grid:
            parts.append(f'<path class="grid" d="M{_n(left)} {_n(place)}H{_n(right)}"/>')
        parts.append(_text(left - 6, place + 4, label, "end", "small"))
    for place, label in x_ticks:
        parts.append(f'<path class="tick" d="M{_n(place)} {_n(bottom)}v4"/>')
        parts.append(_text(place, bottom + 16, label, "middle", "small"))
    parts.append(f'<path class="axis" d="M{_n(left)} {_n(bottom)}H{_n(right)}"/>')
    parts.append(_text((left + right) / 2, box.height - 6, x_label, "middle", "small"))
    if y_label:
        middle = (top + bottom) / 2
        turn = f' transform="rotate(-90 12 {_n(middle)})"'
        parts.append(f'<text class="small" x="12" y="{_n(middle)}" text-anchor="middle"{turn}>{escape(y_label)}</text>')
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(box: Box, title: str, body: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_n(box.width)} {_n(box.height)}" width="{_n(box.width)}" height="{_n(box.height)}"'
    return f'<svg class="plot" {size} role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'


def _n(value: float) -> str:
    """A coordinate: one decimal, no trailing zero, never NaN."""
    if not math.isfinite(value):
        raise ValueError(f"a plot's coordinate is {value}")
    return f"{value:.1f}".rstrip("0").rstrip(".") or "0"
