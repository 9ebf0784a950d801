"""Length curves across boards: the same weights on suites of the same tasks at other lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proteus_bench.leaderboard.board_schema import Board, BoardRow, LengthScore
from proteus_bench.probes.svg import SERIES, Point, Series
from proteus_bench.site import plots
from proteus_bench.site.page import clean

PANELS = 8

Family = tuple[str, ...]


def length_figures(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """One figure for every set of tasks that was asked at two lengths or more; one panel a backbone."""
    families: dict[Family, list[tuple[Board, BoardRow]]] = {}
    for board in boards:
        for row in board.rows:
            families.setdefault(tuple(sorted({cell.task for cell in row.cells})), []).append((board, row))
    figures = [_figure(rows) for _, rows in sorted(families.items())]
    return [figure for figure in figures if figure is not None]


def _figure(rows: Sequence[tuple[Board, BoardRow]]) -> dict[str, Any] | None:
    lines: dict[tuple[str, str, str], dict[int, LengthScore]] = {}
    first: dict[tuple[str, str, str], BoardRow] = {}
    for _, row in rows:
        key = (f"{row.model} {row.size}", row.label, row.weights)
        first.setdefault(key, row)
        for block in row.lengths:
            held = lines.setdefault(key, {})
            if block.length not in held or block.n > held[block.length].n:
                held[block.length] = block
    grown = {key: held for key, held in sorted(lines.items()) if len(held) > 1}
    if not grown:
        return None
    suites = sorted({board.suite.name for board, _ in rows})
    panels, legend = [], []
    names = list(dict.fromkeys(key[1] for key in grown))
    color = {name: i for i, name in enumerate(names)}
    for backbone in list(dict.fromkeys(key[0] for key in grown))[:PANELS]:
        mine = [key for key in grown if key[0] == backbone][:SERIES]
        series = [
            Series(clean(key[1]), [_point(block) for _, block in sorted(grown[key].items())], color[key[1]], "+" in key[1])
            for key in mine
        ]
        trained = sorted({first[key].train_length for key in mine})
        panels.append(plots.length_curves(clean(backbone), series, trained))
        legend += [(clean(key[1]), color[key[1]], "+" in key[1]) for key in mine]
    return {
        "title": "Longer contexts",
        "reading": f"Mean score over the tasks of {', '.join(map(clean, suites))} against the length of the context; bands are 95% "
        "intervals over seeds and items. To the right of the dashed mark a context is longer than any in training.",
        "panels": panels,
        "legend": list(dict.fromkeys(legend)),
    }


def _point(block: Any) -> Point:
    low, high = (None if v is None else 100 * v for v in (block.ci_low, block.ci_high))
    return Point(block.length, 100 * block.score, low, high)
