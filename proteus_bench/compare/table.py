"""A comparison in a terminal: methods, headlines by family, tasks and lengths, and the verdicts in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from proteus_bench.compare.analyse import SUITE, Line, MethodLine, show_p, words
from proteus_bench.compare.capacity import budget_of
from proteus_bench.compare.pairs import Family
from proteus_bench.compare.report import GateResult, Report, SuiteReport
from proteus_bench.render.strip import schedule_strip
from proteus_bench.stats import Interval

WIDE = 96
_STYLES = {"better": "green", "worse": "red"}
WORDS = {"better": "better", "worse": "worse", "identical": "identical", "not_separable": "not separable"}


def print_report(console: Console, report: Report, notes: bool = True) -> None:
    """Print everything to ``console``. Names are shown as text: markup in them is not interpreted.

    ``notes``: False where the run's own notes stand above.
    """
    for suite in report.suites:
        _print_suite(console, suite, notes)
    for result in report.gates:
        state = "fires" if result.fired else "holds"
        text = f"gate {result.gate.text!r} on {result.suite}: {state}"
        console.print(Text(text, style="bold red" if result.fired else "bold green"))


def _print_suite(console: Console, suite: SuiteReport, notes: bool) -> None:
    short = short_names(suite)
    console.print(_methods_table(suite, short, console), "")
    for family in suite.families:
        mine = [line for line in suite.lines if line.family == family.name]
        title = family_title(family, short)
        console.print(_heads_table(title, short, [line for line in mine if line.headline], console.width), "")
        rest = [line for line in mine if not line.headline]
        if rest:
            console.print(_tasks_table(title, short, rest, console.width), "")
    for line in suite.lines:
        if line.headline:
            style = "bold" if line.outcome in _STYLES else ""
            console.print(Padding(Text(words(line), style=style), (0, 0, 1, 0)))
    for text in suite.capacity:
        console.print(Text(text, style="dim"))
    for note in suite.notes if notes else ():
        console.print(Text(f"note: {note}", style="yellow"))
    console.print()


def short_names(suite: SuiteReport) -> dict[str, str]:
    """What a method is called in a table: its schedule, where all methods have one backbone and that is enough."""
    found = [m.candidate for m in suite.methods]
    schedules = [c.first.schedule for c in found]
    if len({c.backbone for c in found}) == 1 and len(set(schedules)) == len(found) > 1:
        return {c.name: c.first.schedule for c in found}
    return {c.name: c.name for c in found}


def family_title(family: Family, short: dict[str, str]) -> str:
    """The family's name with its reference, when it has one."""
    references = list(dict.fromkeys(b.name for _, b in family.pairs))
    known = len(references) == 1 and short[references[0]] not in family.name.removeprefix("against ")
    return f"{family.name} ({short[references[0]]})" if known else family.name


def _table(title: str, columns: Sequence[tuple[str, str]]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name, justify in columns:
        fold = justify == "name"
        table.add_column(
            name,
            justify="left" if fold else justify,  # type: ignore[arg-type]
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
        )
    return table


def _methods_table(suite: SuiteReport, short: dict[str, str], console: Console) -> Table:
    methods = suite.methods
    found = [m.candidate for m in methods]
    weights = {c.name: "own" if c.own_weights else short.get(c.weights, c.weights) for c in found}
    lent = any(not c.own_weights for c in found)
    ranks = any(m.rank for m in methods)
    counts = {len(c.seeds) for c in found}
    name_width = 34 if console.width >= WIDE else 21
    used = 40 + max(min(name_width, len(short[c.name])) for c in found) + 6 * ranks + 7 * (len(counts) > 1)
    used += lent * (2 + max(10, *map(len, weights.values())))
    strips = _strips(methods, console, min(24, console.width - used - 2)) if console.width - used >= 10 else {}
    columns = [("method", "name"), ("score", "right"), ("95% interval", "right")]
    columns += [("rank", "right")] if ranks else []
    columns += [("open", "right"), ("span", "right")]
    columns += [("opening", "left")] if strips else []
    columns += [("weights of", "name")] if lent else []
    columns += [("seeds", "right")] if len(counts) > 1 else []
    table = _table(_methods_title(suite), columns)
    for m in methods:
        c, budget = m.candidate, budget_of(m.candidate)
        here = list(budget.here.values())
        row: list[str | Text] = [wrapped(short[c.name], name_width), Text(f"{100 * m.score.mean:.1f}", style="bold")]
        row += [interval(m.score, 100)]
        row += [str(m.rank or "-")] if ranks else []
        row += [percent(here[-1] if here else None), percent(budget.span)]
        row += [strips.get(c.name, "")] if strips else []
        row += [Text(weights[c.name])] if lent else []
        table.add_row(*row, *([str(len(c.seeds))] if len(counts) > 1 else []))
    table.caption = "open: mean share of the state that is open over the context; span: over the span"
    table.caption_justify = "left"
    return table


def _methods_title(suite: SuiteReport) -> str:
    found = [m.candidate for m in suite.methods]
    backbones, counts = {c.first.model for c in found}, {len(c.seeds) for c in found}
    of = f"{next(iter(backbones))} on " if len(backbones) == 1 else ""
    title = f"{of}{suite.suite['name']} (version {suite.suite['version']}), {suite.scorer['id']} score x 100"
    seeds = next(iter(counts))
    return title if len(counts) > 1 else f"{title}, {seeds} seed{'s' if seeds > 1 else ''}"


def _strips(methods: Sequence[MethodLine], console: Console, width: int) -> dict[str, str]:
    encoding = (getattr(console.file, "encoding", None) or "ascii").lower().replace("-", "")
    found = {}
    for m in methods:
        capacity = m.candidate.evaluated
        length = max(m.candidate.lengths, default=0)
        if capacity is not None and length and capacity.schedule.monotone:
            train, traces = m.candidate.first.train_length, m.candidate.traces.get(length, ())
            unicode = encoding.startswith("utf")
            found[m.candidate.name] = schedule_strip(capacity, length, train, width, unicode, traces)
    return found


def percent(value: float | None) -> str:
    """A mean active fraction as a percentage; a question mark where it is not known beforehand."""
    return "?" if value is None else f"{100 * value:.1f}%"


def _heads_table(title: str, short: dict[str, str], lines: Sequence[Line], width: int) -> Table:
    one = len({line.verdict.b for line in lines}) == 1
    columns = [("a" if one else "a - b", "name"), ("points", "right"), ("95% interval", "right")]
    columns += [(_p_name(lines), "right"), ("", "left")]
    wide = width >= WIDE
    columns += [("log-prob", "right"), ("95% interval", "right")] if wide else []
    table = _table(f"{title}: paired differences over the suite", columns)
    for line in lines:
        v = line.verdict
        row: list[str | Text] = [_pair_name(line, short, one, width), f"{100 * v.primary.mean:+.1f}"]
        row += [interval(v.primary, 100, signed=True), show_p(line.p_adjusted), outcome_text(line)]
        table.add_row(*row, *(_nats(line) if wide else ()))
    return table


def _pair_name(line: Line, short: dict[str, str], one: bool, width: int) -> Text:
    v = line.verdict
    name = short[v.a] if one else f"{short[v.a]} - {short[v.b]}"
    return wrapped(name, 30 if width >= WIDE else 21)


def wrapped(name: str, width: int) -> Text:
    """A long name in several lines, cut where its parts end instead of in the middle of a word."""
    lines = [""]
    for part in re.findall(r"[^(,+ ]*[(,+ ]?", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append(" ")
        lines[-1] += part
    return Text("\n".join(line.rstrip() for line in lines))


def _p_name(lines: Sequence[Line]) -> str:
    kind = {"holm": "Holm", "bh": "BH"}[lines[0].correction]
    return f"p ({kind})" if any(line.family_size > 1 for line in lines) else "p"


def _tasks_table(title: str, short: dict[str, str], lines: Sequence[Line], width: int) -> Table:
    several = len({(line.verdict.a, line.verdict.b) for line in lines}) > 1
    one = len({line.verdict.b for line in lines}) == 1
    lengths = len({line.length for line in lines}) > 1
    wide = width >= WIDE
    columns = [("task", "left"), *([("length", "right")] if lengths else [])]
    columns += [("a" if one else "a - b", "name")] if several else []
    columns += [("points", "right"), ("95% interval", "right")]
    columns += [(_p_name(lines), "right")] if wide or not several else []
    columns += [("", "left")]
    columns += [("log-prob", "right")] if wide else []
    where = "" if lengths else f" at {lines[0].length:,} tokens"
    table = _table(f"{title}, by task{where} (exploratory)", columns)
    previous = None
    for line in sorted(lines, key=lambda x: (x.length or 0, x.task == SUITE, x.task)):
        v, place = line.verdict, (line.task, line.length)
        first = place != previous
        if previous is not None and first and several:
            table.add_section()
        previous = place
        row = [Text(line.task if first else "")]
        row += [Text(f"{line.length:,}" if first else "")] if lengths else []
        row += [_pair_name(line, short, one, width)] if several else []
        row += [Text(f"{100 * v.primary.mean:+.1f}"), Text(interval(v.primary, 100, signed=True))]
        row += [Text(show_p(line.p_adjusted))] if wide or not several else []
        row += [outcome_text(line, short=several and not wide)]
        row += [Text(_nats(line)[0])] if wide else []
        table.add_row(*row)
    return table


def outcome_text(line: Line, short: bool = False) -> Text:
    """The outcome after correction; in little room only what was shown."""
    word = "one function" if line.same_outputs else WORDS[line.outcome]
    if short and line.outcome == "not_separable":
        word = "-"
    return Text(word, style=_STYLES.get(line.outcome, ""))


def _nats(line: Line) -> tuple[str, Text]:
    i = line.logprob
    if i is None:
        return "not finite", Text("")
    style = ("green" if i.mean > 0 else "red") if i.excludes_zero else ""
    return f"{i.mean:+.2f}", Text(interval(i, 1, signed=True, digits=2), style=style)


def interval(i: Interval, scale: float, signed: bool = False, digits: int = 1) -> str:
    """``[ lo, hi ]`` with its numbers under each other, or that there is none."""
    if i.lo is None or i.hi is None:
        return "no interval"
    sign = "+" if signed else ""
    width = 6 if signed or digits > 1 else 5
    lo, hi = (f"{scale * end:{sign}{width}.{digits}f}" for end in (i.lo, i.hi))
    return f"[{lo}, {hi}]"


def gate_words(result: GateResult) -> str:
    """One line for a gate that fired."""
    if not result.lines:
        return f"gate {result.gate.text!r} fires on {result.suite}: both are one function"
    line = result.lines[0]
    place = "" if line.headline else f" on {line.task}" + (f" at {line.length}" if line.length else "")
    return f"gate {result.gate.text!r} fires on {result.suite}{place}: {line.verdict.text}"
