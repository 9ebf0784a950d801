"""`report RUN`: the page of one run folder, from its files alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from proteus_bench.compare.analyse import SUITE, Line, words
from proteus_bench.compare.load import Candidate, Place, load_runs
from proteus_bench.compare.report import SuiteReport, compare_runs
from proteus_bench.errors import BenchError, InvalidFileError
from proteus_bench.leaderboard.cost import FILE as COST_FILE
from proteus_bench.leaderboard.cost import read_cost
from proteus_bench.probes.svg import SERIES, Axis, Point, Series, dot_chart, swatch
from proteus_bench.site.cost_figures import cost_sections
from proteus_bench.site.page import clean, render, write
from proteus_bench.site.run_figures import by_length, capacity, cost, depths, probe_figures
from proteus_bench.stats import Interval, cell_ci, crossed_anova
from proteus_bench.store.run_file import RunFile, read_run_file


def write_report(run: Path, out: Path) -> Path:
    """Write the page of a run folder to ``out``.

    Raises InvalidFileError (exit 3) for a folder that does not add up or has no whole cell, EnvironmentFault (exit 4) when
    the page cannot be saved.
    """
    return write(out, run_page(run))


class Cells:
    """Scores of the whole cells of a run: by method and (task, length), with their intervals."""

    def __init__(self, methods: Sequence[Candidate]) -> None:
        self.methods = [m for m in methods if m.cells]
        self.places: list[Place] = list(dict.fromkeys(place for m in self.methods for place in m.cells))
        self.places.sort(key=lambda place: place[1])  # tasks keep their order
        self.found = {(m.name, place): _interval(m, place) for m in self.methods for place in m.cells}

    def color(self, name: str) -> int:
        """The colour of a method, the same in every figure."""
        return [m.name for m in self.methods].index(name)


def _items(method: Candidate, place: Place) -> list[str]:
    """Items that all seeds have, in the order of a matrix's columns."""
    return sorted(set.intersection(*(set(held) for held in method.cells[place].values())))


def _matrix(method: Candidate, place: Place, column: str = "strict") -> np.ndarray | None:
    """``[seeds, items]``; None where a log-probability is not finite."""
    by_seed = method.cells[place]
    items = _items(method, place)
    values = [[getattr(by_seed[seed][item], column) for item in items] for seed in sorted(by_seed)]
    return None if any(v is None for row in values for v in row) else np.array(values, dtype=np.float64)


def _interval(method: Candidate, place: Place) -> tuple[Interval, float | None, int]:
    """Score with interval, mean log-probability, number of seeds."""
    scores = _matrix(method, place)
    assert scores is not None
    nats = _matrix(method, place, "logprob")
    interval = cell_ci(scores[0]) if len(scores) == 1 else crossed_anova(scores)
    return interval, None if nats is None else float(nats.mean()), len(scores)


def run_page(folder: Path) -> str:
    """The page as text."""
    run = read_run_file(folder / "run.json")
    candidates, _ = load_runs([folder])
    cells = Cells(candidates)
    if not cells.places:
        raise InvalidFileError(f"{folder} has no whole cell to report; repeat the run command to finish it")
    suite = _compared(folder, cells)
    values = {
        "title": clean(f"{cells.methods[0].label} on {run.suite.name}"),
        "heading": f"{cells.methods[0].label} on {run.suite.name}",
        "about": _about(run, cells),
        "verdicts": [words(line) for line in suite.lines if line.headline] if suite else [],
        "notes": [*run.notes, *(suite.capacity if suite else [])],
        "legend": [(m.name, i, m.first.schedule != "static") for i, m in enumerate(cells.methods)],
        "score_panels": _score_panels(cells),
        "rows": _rows(cells),
        "beyond": any(length > m.first.train_length for m in cells.methods for _, length in cells.places),
        "sections": [s for s in _sections(folder, run, cells, suite) if s is not None],
        "methods": _methods(folder, cells),
        "facts": _facts(run),
        "swatch": swatch,
    }
    return render("run.html.j2", values, script=True)


def _compared(folder: Path, cells: Cells) -> SuiteReport | None:
    """The paired comparison, None where there is nothing to pair."""
    if len(cells.methods) < 2:
        return None
    try:
        return compare_runs([folder], common=True).suites[0]
    except BenchError:  # methods without a common item or seed: their scores still stand
        return None


def _about(run: RunFile, cells: Cells) -> str:
    lengths = ", ".join(f"{length:,}" for length in sorted({length for _, length in cells.places}))
    tasks = len({task for task, _ in cells.places})
    seeds = max(len(m.seeds) for m in cells.methods)
    return (
        f"Suite {run.suite.name} (version {run.suite.version}), {tasks} task{'s' if tasks > 1 else ''} at {lengths} tokens, "
        f"up to {seeds} training seed{'s' if seeds > 1 else ''} a method, scorer {run.scorer.id} {run.scorer.version}. "
        f"Run {run.run_id[:12]}, {run.status}."
    )


def _score_panels(cells: Cells) -> list[str]:
    several = len({length for _, length in cells.places}) > 1
    panels = []
    for column, label in (("strict", "score x 100"), ("logprob", "log-probability of the gold answer, nats")):
        lines = []
        for place in cells.places:
            series = [
                Series(clean(m.name), [dot], cells.color(m.name) % SERIES)
                for m in cells.methods
                if place in m.cells and (dot := _dot(cells, m.name, place, column)) is not None
            ]
            if series:
                text = clean(place[0])[:48] + (f" {place[1]:,}" if several else "")
                lines.append((text, series))
        if lines:
            axis = Axis(label, 0, 100) if column == "strict" else Axis(label)
            panels.append(dot_chart(label, lines, axis, width=500))
    return panels


def _dot(cells: Cells, name: str, place: Place, column: str) -> Point | None:
    interval, nats, _ = cells.found[name, place]
    if column == "logprob":
        return None if nats is None else Point(nats, nats)
    low, high = (None if v is None else 100 * v for v in (interval.lo, interval.hi))
    return Point(100 * interval.mean, 100 * interval.mean, low, high)


def _rows(cells: Cells) -> list[dict[str, Any]]:
    from proteus_bench.site.plots import whisker

    rows = []
    for place in cells.places:
        for m in cells.methods:
            if place not in m.cells:
                continue
            interval, nats, seeds = cells.found[m.name, place]
            span = "no interval"
            if interval.lo is not None and interval.hi is not None:
                span = f"{100 * interval.lo:.1f} to {100 * interval.hi:.1f}"
            rows.append(
                {
                    "task": place[0], "length": place[1], "beyond": place[1] > m.first.train_length, "method": m.name,
                    "score": f"{100 * interval.mean:.1f}", "span": span,
                    "whisker": whisker(interval.mean, interval.lo, interval.hi),
                    "logprob": "not finite" if nats is None else f"{nats:.2f}", "size": f"{seeds} x {interval.n}",
                }
            )  # fmt: skip
    return rows


def _sections(folder: Path, run: RunFile, cells: Cells, suite: SuiteReport | None) -> list[dict[str, Any] | None]:
    legend = [(m.name, i, m.first.schedule != "static") for i, m in enumerate(cells.methods)]
    found = [_differences(suite), by_length(cells, legend), depths(folder, run), capacity(folder, run, cells, legend)]
    paired = cost_sections(read_cost(folder / COST_FILE))
    return [*found, *paired, cost(folder, cells, legend), *probe_figures(folder)]


def _differences(suite: SuiteReport | None) -> dict[str, Any] | None:
    """Paired differences by task and over the suite, points and nats."""
    lines = [] if suite is None else suite.lines
    if not lines:
        return None
    names = list(dict.fromkeys(f"{line.verdict.a} - {line.verdict.b}" for line in lines))
    panels = []
    for scale, label in ((100.0, "points"), (1.0, "nats an item")):
        rows = []
        for where in dict.fromkeys((line.task, line.length) for line in lines):
            mine = [line for line in lines if (line.task, line.length) == where]
            series = [s for line in mine if (s := _difference(line, names, scale)) is not None]
            if series:
                rows.append((_where(*where), series))
        if rows:
            panels.append(dot_chart(f"difference, {label}", rows, Axis(label), width=500))
    return {
        "title": "Paired differences",
        "reading": "The first method less the second, on the same seeds and items, with 95% intervals; the line marks zero. "
        "The mean over the suite decides (corrected by Holm); single tasks are exploratory (Benjamini-Hochberg).",
        "panels": panels,
        "legend": [(name, i % SERIES, False) for i, name in enumerate(names)],
        "table": (
            ("a - b", "task", "length", "points", "95% interval", "p corrected", "outcome"),
            [_difference_row(line) for line in lines],
        ),
    }


def _where(task: str, length: int | None) -> str:
    if task == SUITE:
        return "mean of all" if length is None else f"mean at {length:,}"
    return clean(task)[:48]


def _difference(line: Line, names: Sequence[str], scale: float) -> Series | None:
    interval = line.verdict.primary if scale > 1 else line.logprob
    if interval is None:
        return None
    low, high = (None if v is None else scale * v for v in (interval.lo, interval.hi))
    name = f"{line.verdict.a} - {line.verdict.b}"
    made = Point(scale * interval.mean, scale * interval.mean, low, high)
    return Series(clean(name), [made], names.index(name) % SERIES)


def _difference_row(line: Line) -> tuple[str, ...]:
    from proteus_bench.compare.analyse import show_p
    from proteus_bench.compare.table import WORDS

    v = line.verdict
    span = "no interval" if v.primary.lo is None or v.primary.hi is None else (
        f"{100 * v.primary.lo:+.1f} to {100 * v.primary.hi:+.1f}"
    )  # fmt: skip
    return (
        f"{v.a} - {v.b}", line.task, "" if line.length is None else f"{line.length:,}", f"{100 * v.primary.mean:+.1f}", span,
        show_p(line.p_adjusted), "one function" if line.same_outputs else WORDS[line.outcome],
    )  # fmt: skip


def _methods(folder: Path, cells: Cells) -> list[dict[str, Any]]:
    from proteus_bench.site.run_figures import seconds_of

    timed = seconds_of(folder)
    rows = []
    for m in cells.methods:
        items = sum(len(items) for by_seed in m.cells.values() for items in by_seed.values())
        seconds = timed.get(m.label)
        rows.append(
            {
                "name": m.name, "seeds": ", ".join(map(str, m.seeds)), "weights": m.weights,
                "train_length": m.first.train_length, "n_params": m.first.n_params, "state_bytes": m.first.state_bytes,
                "capacity": _described(m.capacity),
                "seconds": "" if seconds is None or not items else f"{seconds / items:.3g}",
            }
        )  # fmt: skip
    return rows


def _described(capacity: Mapping[str, Any]) -> str:
    """Every choice of a capacity in one line."""
    from proteus_bench.registry import stored_capacity

    try:
        return stored_capacity(capacity).describe()
    except (BenchError, NotImplementedError, TypeError, ValueError):
        return "its schedule is not known here"


def _facts(run: RunFile) -> list[tuple[str, str]]:
    environment = run.environment
    packages = environment.get("packages")
    listed = packages if isinstance(packages, dict) else {}
    commit = environment.get("commit")
    return [
        ("run", run.run_id),
        ("suite file", run.suite.sha256),
        ("program", f"proteus-bench {environment.get('proteus_bench')}"),
        ("commit", f"{commit}{' (with changes)' if environment.get('dirty') else ''}" if commit else "an installed package"),
        ("machine", f"{environment.get('system')} {environment.get('machine')}, Python {environment.get('python')}"),
        ("packages", ", ".join(f"{name} {version}" for name, version in sorted(listed.items()))),
        ("settings", ", ".join(f"{key} {value}" for key, value in sorted(run.spec.items()) if value not in (None, [], ""))),
    ]
