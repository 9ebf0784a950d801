"""The report of a run: scores, paired verdicts, schedule strips, and every choice behind them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proteus_bench.render.strip import schedule_strip
from proteus_bench.runner.results import SUITE, Comparison, MethodScore
from proteus_bench.schedules import Capacity
from proteus_bench.schedules.opened import Traces, active_share
from proteus_bench.stats import Interval


@dataclass(frozen=True)
class Shown:
    """One method for the strip: its name, capacity and training length in tokens; `traces` where the data decided k(t).

    has_memory: False for a model that has no memory to open: one outside the zoo, or softmax attention.
    """

    model: str
    capacity: Capacity
    train_length: int
    state_bytes: int
    n_params: int
    traces: Traces = ()
    has_memory: bool = True


def print_report(
    console: Console,
    title: str,
    scores: Sequence[MethodScore],
    comparisons: Sequence[Comparison],
    methods: Sequence[Shown],
    notes: Sequence[str],
) -> None:
    """Print everything to ``console``. Names are shown as text: markup in them is not interpreted."""
    console.print(_score_table(title, scores, {m.model: m.train_length for m in methods}))
    if comparisons:
        _print_comparisons(console, comparisons)
    length = max((score.length for score in scores), default=0)
    drawn = [method for method in methods if method.has_memory]
    if length and drawn:
        _print_strips(console, drawn, length)
    for method in methods:
        if not method.has_memory:
            size = f"{method.n_params:,} parameters" if method.n_params else "of unknown size"
            console.print(Text(f"{method.model}: {size}, trained on texts of {method.train_length:,} tokens", style="dim"))
    for note in _length_notes(scores, methods) + _diverged_notes(scores) + list(notes):
        console.print(Text(f"note: {note}", style="yellow"))


def _score_table(title: str, scores: Sequence[MethodScore], trained: dict[str, int]) -> Table:
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False}
    table = Table(title=title, title_justify="left", title_style="bold", **look)
    for name, justify in (
        ("task", "left"),
        ("length", "right"),
        ("model", "left"),
        ("score", "right"),
        ("95% interval", "right"),
        ("gold log-prob", "right"),
        ("seeds x items", "right"),
    ):
        # A long name gives way, down to a readable width, before a number is cut.
        long = name == "model"
        overflow, least = ("fold", 18) if long else ("ellipsis", None)
        table.add_column(name, justify=justify, no_wrap=not long, overflow=overflow, min_width=least)  # type: ignore[arg-type]
    previous = None
    for score in sorted(scores, key=lambda s: (s.length, s.task)):
        place = (score.task, score.length)
        beyond = "*" if score.length > trained.get(score.model, score.length) else ""
        head = ("", "") if place == previous else (score.task, f"{score.length}{beyond}")
        if previous is not None and place != previous:
            table.add_section()
        previous = place
        table.add_row(
            *head,
            Text(score.model),
            Text(f"{100 * score.interval.mean:.1f}", style="bold"),
            _range(score.interval.lo, score.interval.hi),
            "not finite" if score.logprob is None else f"{score.logprob:.2f}",
            f"{score.seeds} x {score.items}",
        )
    return table


def _range(lo: float | None, hi: float | None, signed: bool = False) -> str:
    if lo is None or hi is None:
        return "no interval"
    form = "{:+.1f}" if signed else "{:.1f}"
    return f"[{form.format(100 * lo)}, {form.format(100 * hi)}]"


def _print_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    pairs = list(dict.fromkeys((line.verdict.a, line.verdict.b) for line in comparisons))
    what = f"{pairs[0][0]} - {pairs[0][1]}" if len(pairs) == 1 else "differences"
    title = Text(f"paired, same seeds and items: {what}; points of strict score, nats of the gold answer")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    left = ("task", "a - b", "")
    names = ["task", "length", *(["a - b"] if len(pairs) > 1 else []), "points", "95% interval", ""]
    for name in (*names, "log-prob", "95% interval"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    styles = {"better": "green", "worse": "red"}
    words = {"better": "a better", "worse": "a worse", "identical": "identical", "not_separable": "not separable"}
    for line in comparisons:
        v = line.verdict
        if line.task == SUITE:
            table.add_section()
        table.add_row(
            Text(line.task, style="bold" if line.task == SUITE else ""),
            "" if line.length is None else str(line.length),
            *([Text(f"{v.a} - {v.b}")] if len(pairs) > 1 else []),
            f"{100 * v.primary.mean:+.1f}",
            _range(v.primary.lo, v.primary.hi, signed=True),
            Text(words[v.outcome], style=styles.get(v.outcome, "")),
            *_logprob_cells(line.logprob),
        )
    console.print(table)
    whole = [line for line in comparisons if line.task == SUITE] or list(comparisons)
    for line in whole:
        text = f"{line.verdict.text}.\n{_logprob_words(line)}"
        console.print(Padding(Text(text, style="bold"), (0, 0, 1, 0)))


def _logprob_words(line: Comparison) -> str:
    """The same comparison in nats: continuous, so it separates models long before whole answers do."""
    i, v = line.logprob, line.verdict
    if i is None:
        return "The gold log-probability is not finite everywhere: no comparison in nats."
    if i.lo is None or i.hi is None:
        return f"The gold log-probability differs by {i.mean:+.2f} nats an item; {i.note}."
    span = f"{abs(i.mean):.2f} nats an item (difference {i.mean:+.2f} [{i.lo:+.2f}, {i.hi:+.2f}])"
    span += f", {i.note}" if i.note.startswith("without") else ""
    if not i.excludes_zero:
        return f"The gold log-probability does not separate them: {span}."
    return f"{v.a} gives the gold answer {'more' if i.mean > 0 else 'less'} probability, by {span}."


def _logprob_cells(interval: Interval | None) -> tuple[str, Text]:
    """The difference in nats per item; coloured when its interval excludes zero."""
    if interval is None:
        return "not finite", Text("")
    if interval.lo is None or interval.hi is None:
        return f"{interval.mean:+.2f}", Text("no interval")
    style = ("green" if interval.mean > 0 else "red") if interval.excludes_zero else ""
    return f"{interval.mean:+.2f}", Text(f"[{interval.lo:+.2f}, {interval.hi:+.2f}]", style=style)


def _print_strips(console: Console, methods: Sequence[Shown], length: int) -> None:
    unicode = (getattr(console.file, "encoding", None) or "ascii").lower().replace("-", "").startswith("utf")
    trained = sorted({m.train_length for m in methods if m.train_length < length})
    mark = f"; {'│' if unicode else '|'} = training length {', '.join(map(str, trained))}" if trained else ""
    console.print(Text(f"memory open along positions 1..{length}{mark}", style="bold"))
    name_width = max(len(m.model) for m in methods)
    width = max(8, min(64, console.width - name_width - 24))
    for method in methods:
        strip = schedule_strip(method.capacity, length, method.train_length, width, unicode, method.traces)
        share = active_share(method.capacity, length, method.traces)
        bound = "at most " if method.capacity.is_data_dependent and not method.traces else ""
        line = f"{method.model:<{name_width}}  {strip}  {bound}{100 * share:5.1f}% open"
        console.print(Text(line), no_wrap=True, crop=False)
    for method in methods:
        size = f"{method.n_params:,} parameters, state {method.state_bytes:,} bytes"
        console.print(Text(f"{method.model}: {method.capacity.describe()}; {size}", style="dim"))
    console.print()


def _length_notes(scores: Sequence[MethodScore], methods: Sequence[Shown]) -> list[str]:
    notes = []
    for trained in sorted({m.train_length for m in methods}):
        beyond = sorted({s.length for s in scores if s.length > trained})
        if beyond:
            lengths = ", ".join(map(str, beyond))
            notes.append(f"* length {lengths} is beyond the training length {trained}: this measures extrapolation")
    return notes


def _diverged_notes(scores: Sequence[MethodScore]) -> list[str]:
    diverged = sorted({s.model for s in scores if s.logprob is None and not s.unscored})
    notes = [f"the state of {model} diverged on some items (log-probability not finite)" for model in diverged]
    unscored = sorted({s.model for s in scores if s.unscored})
    return notes + [f"{model} gives no log-probabilities: only its answers are scored" for model in unscored]


def report_console(stream: Any = None) -> Console:
    """A console on ``stream`` (stdout), 110 columns wide where there is no terminal."""
    target = sys.stdout if stream is None else stream
    return Console(file=target, markup=False, highlight=False, width=None if target.isatty() else 110)
