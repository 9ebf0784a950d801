"""The leaderboard's page, from leaderboard.json alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from proteus_bench.leaderboard.board_schema import Board, BoardRow, Leaderboard
from proteus_bench.leaderboard.schema import DEPTH_BINS
from proteus_bench.probes.svg import Axis, Point, Series, dot_chart, line_chart, swatch
from proteus_bench.site import plots
from proteus_bench.site.cost_figures import cost_sections
from proteus_bench.site.effect_figures import effect_figure
from proteus_bench.site.page import clean, render, write

SHOWN = 6
"""Methods in a plot: as many as there are colours and markers."""
MAPS = 4
WORDS = {"better": "better", "worse": "worse", "identical": "identical", "not_separable": "not separable"}


def write_page(board: Leaderboard, folder: Path) -> Path:
    """Write ``folder/index.html``. EnvironmentFault (exit 4) when it cannot be saved."""
    return write(folder / "index.html", board_page(board))


def board_page(board: Leaderboard) -> str:
    """The page as text: one file, nothing loaded from anywhere."""
    return render(
        "leaderboard.html.j2",
        {
            "title": "proteus-bench leaderboard",
            "suites": sorted({one.suite.name for one in board.boards}),
            "boards": [_board(one) for one in board.boards],
            "curves": _curves(board.boards),
            "costs": cost_sections([row.paired_cost for one in board.boards for row in one.rows]),
            "published": board.published,
            "archive": [
                {"suite": _title(one), "archived": one.archived, "rows": len(one.rows), "table": table(one)}
                for one in board.archive
            ],
            "retired": board.retired,
            "swatch": swatch,
        },
        script=True,
    )


def _title(board: Board) -> str:
    return f"{board.suite.name} (version {board.suite.version})"


def _board(board: Board) -> dict[str, Any]:
    shown = board.rows[:SHOWN]
    return {
        "suite": board.suite.name,
        "about": _about(board),
        "table": table(board),
        "figures": _figures(board, shown),
        "legend": [(row.label, i, row.schedule != "static") for i, row in enumerate(shown)],
        "cut": SHOWN if len(board.rows) > SHOWN else 0,
    }


def _about(board: Board) -> str:
    tasks = len({cell.task for cell in board.rows[0].cells})
    ranked = sum(row.ranked for row in board.rows)
    parts = [
        f"version {board.suite.version}", f"{tasks} task{'s' if tasks > 1 else ''}",
        f"scorer {board.scorer.id} {board.scorer.version}", f"{ranked} of {len(board.rows)} rows ranked",
        f"items {board.items_sha256[:8]}", f"tokenizer {board.tokenizer_sha256[:8]}",
    ]  # fmt: skip
    if board.family_size > 1:
        parts.append(f"differences to static corrected (Holm) over {board.family_size} schedules")
    return ", ".join(parts)


# -- the table: text is escaped here, cell by cell, because a thousand rows through a template take seconds

_HEADS = (
    ("rank", "ascending", ""), ("method", "ascending", ""), ("score x 100", "descending", "n"), ("", "", ""),
    ("less static", "descending", "n"), ("open", "ascending", "n"), ("seeds x items", "descending", "n"),
    ("size", "ascending", "n"), ("s an item", "ascending", "n"), ("checked to", "descending", ""),
)  # fmt: skip


def table(board: Board) -> str:
    """All rows of a board as an HTML table."""
    count = sum(row.ranked for row in board.rows)
    body = "".join(_row(row, count) for row in board.rows)
    label = escape(clean(f"results on {board.suite.name}"))
    heads = "".join(_head(*head) for head in _HEADS)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="board"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _head(text: str, first: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    if not text:
        return '<th scope="col"><span class="w-scale"><span>0</span><span>100</span></span></th>'
    return f'<th scope="col"{style} data-first="{first}"><button type="button">{text}</button></th>'


def _row(row: BoardRow, count: int) -> str:
    kind = "unranked" if row.rank_best is None else "odd" if (row.tie_group or 0) % 2 else ""
    cells = (
        _rank(row, count), _name(row), _score(row), f"<td>{_whisker(row)}</td>", _against(row), _open(row), _items(row),
        _size(row), _cost(row), _tier(row),
    )  # fmt: skip
    return f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{''.join(cells)}</tr>\n"


def _rank(row: BoardRow, count: int) -> str:
    if row.rank_best is None or row.rank_worst is None:
        return '<td class="rank" data-v="">not ranked</td>'
    places = str(row.rank_best) if row.rank_best == row.rank_worst else f"{row.rank_best}&#8211;{row.rank_worst}"
    value = row.rank_best + row.rank_worst / 1e4
    return f'<td class="rank" data-v="{value:g}">{places}{plots.rank_bar(row.rank_best, row.rank_worst, count)}</td>'


def _name(row: BoardRow) -> str:
    notes = []
    if not row.ranked and row.reason:
        notes.append(row.reason)
    if row.trained_schedule not in (row.schedule, row.schedule.partition("(")[0]):
        notes.append(f"weights trained under {row.trained_schedule}")
    if row.diverged_seeds:
        notes.append(f"{len(row.diverged_seeds)} of {len(row.seeds)} seeds diverged on some items")
    if row.statement.configs_tried:
        notes.append(f"{row.statement.configs_tried:,} configurations tried")
    if row.statement.submitter:
        notes.append(f"by {row.statement.submitter}")
    small = f"<small>{escape(clean('; '.join(notes)))}</small>" if notes else ""
    # A long name may break where a reader would break it.
    name = re.sub(r"([+,](?=.))|(?=\()", r"\1<wbr>", escape(clean(row.label)))
    link = row.statement.link
    if link is not None and link.startswith("https://"):
        name = f'<a href="{escape(clean(link))}" rel="noopener noreferrer">{name}</a>'
    named = row.size == "micro" or row.label.endswith(f"@{row.size}")
    size = "" if named else f" @{escape(clean(row.size))}"
    return f'<td class="name"><b>{name}</b>{size}{small}</td>'


def _score(row: BoardRow) -> str:
    block = row.overall
    span = "no interval" if block.ci_low is None or block.ci_high is None else f"{_x(block.ci_low)} to {_x(block.ci_high)}"
    return f'<td class="n" data-v="{block.score:g}"><b>{_x(block.score)}</b><small>{span}</small></td>'


def _x(value: float) -> str:
    return f"{100 * value:.1f}"


def _whisker(row: BoardRow) -> str:
    return plots.whisker(row.overall.score, row.overall.ci_low, row.overall.ci_high)


def _against(row: BoardRow) -> str:
    a = row.against_static
    if a is None:
        return '<td class="n" data-v="">&#8211;</td>'
    span = "" if a.ci_low is None or a.ci_high is None else f"<small>{100 * a.ci_low:+.1f} to {100 * a.ci_high:+.1f}</small>"
    kind = f' class="{a.outcome}"' if a.outcome in ("better", "worse") else ' class="soft"'
    said = WORDS[a.outcome] if a.seeds > 1 else "one seed"  # its interval is over items: two checkpoints, no claim
    word = f"<small><span{kind}>{said}</span></small>"
    return f'<td class="n" data-v="{a.diff:g}"><b>{100 * a.diff:+.1f}</b>{span}{word}</td>'


def _open(row: BoardRow) -> str:
    if row.active is None:
        return '<td class="n" data-v="">?</td>'
    return f'<td class="n" data-v="{row.active:g}">{100 * row.active:.0f}%</td>'


def _items(row: BoardRow) -> str:
    return f'<td class="n" data-v="{len(row.seeds)}">{len(row.seeds)} x {row.overall.n:,}</td>'


def _size(row: BoardRow) -> str:
    trained = "" if row.trained_tokens is None else f"<small>{_short(row.trained_tokens)} tokens</small>"
    state = f"<small>state {_short(row.state_bytes)}B</small>"
    return f'<td class="n" data-v="{row.n_params}">{_short(row.n_params)}{state}{trained}</td>'


def _short(value: int) -> str:
    for power, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= power:
            return f"{value / power:.3g} {letter}"
    return f"{value} "


def _cost(row: BoardRow) -> str:
    if row.cost is None:
        return '<td class="n" data-v="">&#8211;</td>'
    return f'<td class="n" data-v="{row.cost.seconds_per_item:g}">{row.cost.seconds_per_item:.3g}</td>'


def _tier(row: BoardRow) -> str:
    kind = "tag v" if int(row.tier[1]) >= 2 else "tag"
    return f'<td data-v="{row.tier[1]}"><span class="{kind}">{row.tier}</span></td>'


# -- figures


def _figures(board: Board, rows: Sequence[BoardRow]) -> list[dict[str, Any]]:
    found = [_by_task(rows), _depths(board, rows), effect_figure(rows), _open_course(board, rows), _cost_figure(rows)]
    return [figure for figure in found if figure is not None]


def point(block: Any, x: float = 0.0) -> Point:
    """A score block x 100 as a point."""
    low, high = (None if v is None else 100 * v for v in (block.ci_low, block.ci_high))
    return Point(x, 100 * block.score, low, high)


def _by_task(rows: Sequence[BoardRow]) -> dict[str, Any]:
    several = len({cell.length for cell in rows[0].cells}) > 1
    lines = []
    for i, cell in enumerate(rows[0].cells):
        label = clean(cell.task) + (f" {plots.tokens(cell.length)}" if several else "")
        series = [Series(clean(row.label), [_dot(row.cells[i])], color) for color, row in enumerate(rows)]
        lines.append((label[:48], series))
    return {
        "title": "By task",
        "reading": "Score x 100 of each task with its 95% interval over seeds and items.",
        "panels": [dot_chart("score x 100", lines, Axis("score x 100", 0, 100), width=540)],
    }


def _dot(block: Any) -> Point:
    made = point(block)
    return Point(made.y, made.y, made.lo, made.hi)


def _depths(board: Board, rows: Sequence[BoardRow]) -> dict[str, Any] | None:
    panels = []
    for row in rows[:MAPS]:
        values = depth_values([(cell.length, b.part, b.score, b.n) for cell in row.cells for b in cell.depths])
        if values:
            lengths = sorted({cell.length for cell in row.cells})
            panels.append(plots.depth_map(clean(row.label)[:40], lengths, values, DEPTH_BINS))
    if not panels:
        return None
    return {
        "title": "Where the fact stands",
        "reading": "Score x 100 by the depth of the asked fact (the beginning of the context on top) and the length of the "
        "context, over all tasks whose questions ask for one fact.",
        "panels": panels,
    }


def depth_values(found: Sequence[tuple[int, int, float, int]]) -> dict[tuple[int, int], tuple[float, int]]:
    """(length, part, mean score, count) of several tasks to means by (length, part)."""
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for length, part, score, n in found:
        total, count = sums.get((length, part), (0.0, 0))
        sums[length, part] = (total + score * n, count + n)
    return {key: (total / count, count) for key, (total, count) in sorted(sums.items())}


def _open_course(board: Board, rows: Sequence[BoardRow]) -> dict[str, Any] | None:
    length = max(cell.length for cell in rows[0].cells)
    lines = [(clean(row.label), row.opening, i, row.schedule != "static") for i, row in enumerate(rows) if row.opening]
    if not lines:
        return None
    trained = sorted({row.train_length for row in rows})
    return {
        "title": "How much is open, when",
        "reading": "Share of the memory that is open along the longest context.",
        "panels": [plots.courses("open memory", [(a, b or [], c, d) for a, b, c, d in lines], length, trained)],
    }


def _cost_figure(rows: Sequence[BoardRow]) -> dict[str, Any] | None:
    timed = [(i, row) for i, row in enumerate(rows) if row.cost is not None and row.cost.seconds_per_item > 0]
    if not timed:
        return None
    seconds = [row.cost.seconds_per_item for _, row in timed if row.cost is not None]
    x = Axis("seconds an item (as reported)", 0, 1.15 * max(seconds))
    series = [
        Series(clean(row.label), [point(row.overall, row.cost.seconds_per_item)], i) for i, row in timed if row.cost is not None
    ]
    return {
        "title": "What it costs",
        "reading": "Score against the time of one item, as the run reported it (CPU seconds for models of this zoo): machines "
        "differ, and nobody checks it.",
        "panels": [line_chart("score and time", series, x, Axis("score x 100", 0, 100))],
    }


def _curves(boards: Sequence[Board]) -> list[dict[str, Any]]:
    from proteus_bench.site.curves import length_figures

    return length_figures(boards)
