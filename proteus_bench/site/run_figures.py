"""Figures of one run: lengths, depths, capacity, cost, and those of a probe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proteus_bench.compare.pairs import indices_of
from proteus_bench.errors import BenchError
from proteus_bench.leaderboard.checks import timing_of
from proteus_bench.leaderboard.course import capacity_course
from proteus_bench.leaderboard.entry import depth_bins
from proteus_bench.leaderboard.items import depths_of
from proteus_bench.leaderboard.opening import plain_file
from proteus_bench.leaderboard.schema import DEPTH_BINS
from proteus_bench.probes.svg import SERIES, Axis, Point, Series, line_chart
from proteus_bench.site import plots
from proteus_bench.site.board_page import depth_values
from proteus_bench.site.page import clean
from proteus_bench.stats import crossed_anova, draws_key, pool_draws
from proteus_bench.store import read_json, read_log
from proteus_bench.store.run_file import RunFile

if TYPE_CHECKING:
    from proteus_bench.site.run_page import Cells

Legend = Sequence[tuple[str, int, bool]]
Section = dict[str, Any]


def by_length(cells: Cells, legend: Legend) -> Section | None:
    """Mean over the tasks that stand at every length, where there is more than one length."""
    lengths = sorted({length for _, length in cells.places})
    if len(lengths) < 2:
        return None
    tasks = [t for t in dict.fromkeys(task for task, _ in cells.places) if all((t, at) in cells.places for at in lengths)]
    if not tasks:
        return None
    series = []
    for m in cells.methods:
        points = [p for at in lengths if (p := _mean_at(cells, m, tasks, at)) is not None]
        series.append(Series(clean(m.name), points, cells.color(m.name) % SERIES, m.first.schedule != "static"))
    trained = sorted({m.first.train_length for m in cells.methods})
    return {
        "title": "Longer contexts",
        "reading": "Mean score over the tasks against the length of the context; bands are 95% intervals. To the right of the "
        "dashed mark a context is longer than any in training.",
        "panels": [plots.length_curves("score by length", series, trained)],
        "legend": legend,
        "table": None,
    }


def _mean_at(cells: Cells, method: Any, tasks: Sequence[str], length: int) -> Point | None:
    from proteus_bench.site.run_page import _items, _matrix

    places = [(task, length) for task in tasks]
    if any(place not in method.cells for place in places):
        return None
    seeds = set.intersection(*(set(method.cells[place]) for place in places))
    found = [_matrix(method, place) for place in places]
    if any(m is None or len(m) != len(seeds) for m in found):
        return None
    matrices = [m for m in found if m is not None]
    mean = 100 * float(sum(m.mean() for m in matrices)) / len(matrices)
    if len(seeds) < 2:
        return Point(length, mean)
    keys = [draws_key(p[0], method.draws, indices_of(next(iter(method.cells[p].values())), _items(method, p))) for p in places]
    pooled, weights = pool_draws(matrices, keys)
    interval = crossed_anova(pooled, weights=weights)
    low, high = (None if v is None else 100 * v for v in (interval.lo, interval.hi))
    return Point(length, mean, low, high)


def _rows(folder: Path, run: RunFile, label: str) -> list[tuple[str, int, list[dict[str, Any]]]]:
    """(task, length, rows) of every whole cell of a method, all seeds. The logs were checked when scores were read."""
    return [
        (cell.task, cell.length, read_log(plain_file(folder, cell.file)))
        for record in run.records
        if record.label == label
        for cell in record.cells
        if cell.status in ("complete", "diverged")
    ]


def depths(folder: Path, run: RunFile) -> Section | None:
    """Score by depth and length, over questions of items with a single planted fact."""
    panels, more = [], []
    for label in dict.fromkeys(record.label for record in run.records):
        found = []
        for task, length, rows in _rows(folder, run, label):
            try:
                bins = depth_bins(depths_of(rows, None))
            except (KeyError, TypeError):  # rows of a source that notes no depths
                continue
            found += [(task, length, b.part, b.score, b.n) for b in bins]
        lengths = sorted({length for _, length, *_ in found})
        if found:
            values = depth_values([(length, part, score, n) for _, length, part, score, n in found])
            panels.append(plots.depth_map(clean(label)[:40], lengths, values, DEPTH_BINS))
            more += [(label, task, str(length), f"{10 * part}-{10 * part + 10}%", f"{100 * score:.1f}", str(n))
                     for task, length, part, score, n in found]  # fmt: skip
    if not panels:
        return None
    return {
        "title": "Where the fact stands",
        "reading": "Score x 100 by the depth of the fact (the beginning of the context on top) and the length of the context, "
        "over the tasks that plant a single fact.",
        "panels": panels,
        "legend": None,
        "table": (("method", "task", "length", "depth", "score x 100", "questions"), more),
    }


def capacity(folder: Path, run: RunFile, cells: Cells, legend: Legend) -> Section | None:
    """How much of the memory is open along the longest context."""
    length = max(at for _, at in cells.places)
    lines = []
    for m in cells.methods:
        rows = [row for _, at, found in _rows(folder, run, m.label) if at == length for row in found]
        traces = [row["unlocks"] for row in rows if isinstance(row.get("unlocks"), list)]
        course = capacity_course(m.capacity, length, traces)
        if course is not None:
            lines.append((clean(m.name), course[1], cells.color(m.name), m.first.schedule != "static", course[0]))
    if not lines:
        return None
    trained = sorted({m.first.train_length for m in cells.methods})
    return {
        "title": "How much is open, when",
        "reading": f"Share of the memory that is open along a context of {length:,} tokens; of a schedule that the data "
        "decides, the mean over all contexts.",
        "panels": [plots.courses("open memory", [line[:4] for line in lines], length, trained)],
        "legend": legend,
        "says": [f"{name}: {100 * mean:.1f}% open on average" for name, *_, mean in lines],
        "table": None,
    }


def seconds_of(folder: Path) -> dict[str, float]:
    """Seconds by method, as the run reported them; {} without a readable timing.json."""
    try:
        timed = timing_of(folder)
    except BenchError:
        return {}
    found: dict[str, float] = {}
    for cell in timed:
        found[cell["model"]] = found.get(cell["model"], 0.0) + cell["seconds"]
    return found


def cost(folder: Path, cells: Cells, legend: Legend) -> Section | None:
    """Seconds an item by length, of one process."""
    try:
        timed = timing_of(folder)
    except BenchError:
        return None
    lengths = sorted({length for _, length in cells.places})
    series, numbers = [], []
    for m in cells.methods:
        points = []
        for at in lengths:
            seconds = sum(c["seconds"] for c in timed if c["model"] == m.label and c["length"] == at)
            items = sum(len(i) for (_, length), held in m.cells.items() if length == at for i in held.values())
            if seconds > 0 and items:
                points.append(Point(at, seconds / items))
                rate = f"{at * items / seconds:,.0f}"
                numbers.append((m.name, f"{at:,}", f"{seconds / items:.3f}", rate, f"{m.first.state_bytes:,}"))
        if points:
            series.append(Series(clean(m.name), points, cells.color(m.name) % SERIES, m.first.schedule != "static"))
    if not series:
        return None
    top = 1.2 * max(p.y for s in series for p in s.points)
    x = Axis("tokens of context", lengths[0] / 1.2, lengths[-1] * 1.2, [(v, plots.tokens(v)) for v in lengths], log=True)
    return {
        "title": "What it costs",
        "reading": "Seconds of one process for one item, questions included, as this machine took them: not a benchmark of speed "
        "when other work ran beside it.",
        "panels": [line_chart("seconds an item", series, x, Axis("seconds an item", 0, top))],
        "legend": legend,
        "table": (("method", "length", "seconds an item", "context tokens a second", "state bytes"), numbers),
    }


def probe_figures(folder: Path) -> list[Section]:
    """The figures of probe.json, where the run was a probe: interference, capacity, gates."""
    path = folder / "probe.json"
    if not path.is_file() or path.is_symlink():
        return []
    from proteus_bench.probes.figures import figures

    return [
        {
            "title": f.title, "reading": f.reading, "panels": list(f.panels), "legend": f.legend,
            "table": f.table if f.table[1] else None,
        }
        for f in figures(read_json(path))
    ]  # fmt: skip
