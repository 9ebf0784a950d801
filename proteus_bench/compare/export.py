"""A comparison as one JSON document, as CSV rows, and as Markdown. Fractions and nats in JSON and CSV, points in text."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from proteus_bench.compare.analyse import Line, MethodLine, show_p, words
from proteus_bench.compare.capacity import budget_of, budget_words
from proteus_bench.compare.pairs import find
from proteus_bench.compare.report import Report, SuiteReport
from proteus_bench.compare.table import WORDS, family_title, interval, percent, short_names
from proteus_bench.stats import Interval

SCHEMA = "proteus-bench/compare@1"
# What a spreadsheet would read as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def document(report: Report) -> dict[str, Any]:
    """Everything, as plain values; the same runs give the same document."""
    return {
        "schema": SCHEMA,
        "methods": [_method(suite, m) for suite in report.suites for m in suite.methods],
        "comparisons": [comparison(suite, line) for suite in report.suites for line in suite.lines],
        "notes": {suite.suite["name"]: suite.notes for suite in report.suites},
        "gates": [
            {
                "gate": result.gate.text,
                "suite": result.suite,
                "fired": result.fired,
                "verdicts": [words(line) for line in result.lines],
            }
            for result in report.gates
        ],
    }


def _method(suite: SuiteReport, m: MethodLine) -> dict[str, Any]:
    c, budget = m.candidate, budget_of(m.candidate)
    return {
        "method": c.name,
        "model": c.first.model,
        "schedule": c.first.schedule,
        "suite": suite.suite["name"],
        "suite_version": suite.suite["version"],
        "suite_sha256": suite.suite["sha256"],
        "scorer": suite.scorer["id"],
        "scorer_version": suite.scorer["version"],
        "seeds": list(c.seeds),
        "score": m.score.mean,
        **_ends("ci", m.score),
        "ci_method": m.score.method,
        "iqm": m.iqm,
        "rank_best": m.rank.best if m.rank else None,
        "rank_worst": m.rank.worst if m.rank else None,
        "tie_group": m.rank.group if m.rank else None,
        "capacity": c.capacity,
        "active_fraction_span": budget.span,
        "active_fraction": {str(length): value for length, value in budget.here.items()},
        "weights": c.weights,
        "own_weights": c.own_weights,
        "state_bytes": c.first.state_bytes,
        "n_params": c.first.n_params,
        "train_length": c.first.train_length,
        "runs": c.runs,
    }


def comparison(suite: SuiteReport, line: Line) -> dict[str, Any]:
    """One line as plain values. ``outcome`` is the one after correction."""
    v = line.verdict
    found = [m.candidate for m in suite.methods]
    _, equal = budget_words(find(v.a, found), find(v.b, found))
    return {
        "suite": suite.suite["name"],
        "family": line.family,
        "a": v.a,
        "b": v.b,
        "task": line.task,
        "length": line.length,
        "diff": v.primary.mean,
        **_ends("ci", v.primary),
        "ci_method": v.primary.method,
        **_ends("bootstrap", v.bootstrap),
        "n_seeds": v.seeds,
        "n_items": v.items,
        "claim": v.claim,
        "p_value": line.p,
        "p_adjusted": line.p_adjusted,
        "correction": line.correction,
        "family_size": line.family_size,
        "sign_flip_p": v.sign_flip_p,
        "sign_flip_floor": v.sign_flip_floor,
        "outcome": line.outcome,
        "one_function": line.same_outputs,
        "equal_capacity": equal,
        "detectable": line.detectable,
        "improvement": line.improvement.mean if line.improvement else None,
        **_ends("improvement_ci", line.improvement),
        "logprob_diff": line.logprob.mean if line.logprob else None,
        **_ends("logprob_ci", line.logprob),
        "verdict": words(line),
    }


def _ends(name: str, i: Interval | None) -> dict[str, float | None]:
    return {f"{name}_low": i.lo if i else None, f"{name}_high": i.hi if i else None}


def to_csv(report: Report) -> str:
    """The comparisons, one a row. Text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    sink = io.StringIO()
    rows = [comparison(suite, line) for suite in report.suites for line in suite.lines]
    columns = list(rows[0]) if rows else ["suite", "family", "a", "b"]
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row[column]) for column in columns])
    return sink.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return "" if value is None else value


def to_markdown(report: Report) -> str:
    """Tables and verdicts for an issue or a paper's appendix."""
    parts = [_suite_markdown(suite) for suite in report.suites]
    gates = [
        f"- gate `{result.gate.text.replace('`', '')}` on {_md(result.suite)}: "
        f"**{'fires' if result.fired else 'holds'}**"
        for result in report.gates
    ]
    return "\n\n".join([*parts, *(["\n".join(gates)] if gates else [])]) + "\n"


def _suite_markdown(suite: SuiteReport) -> str:
    short = short_names(suite)
    head = f"### {_md(suite.suite['name'])} (version {_md(suite.suite['version'])})"
    blocks = [head, _methods_markdown(suite, short)]
    for family in suite.families:
        mine = [line for line in suite.lines if line.family == family.name]
        blocks.append(f"**{_md(family_title(family, short))}**")
        blocks.append(_lines_markdown([line for line in mine if line.headline], short))
        rest = [line for line in mine if not line.headline]
        if rest:
            blocks.append(_lines_markdown(rest, short))
    said = [words(line) for line in suite.lines if line.headline]
    blocks.append("\n".join(f"- {_md(text)}" for text in [*said, *suite.capacity, *suite.notes]))
    return "\n\n".join(block for block in blocks if block)


def _methods_markdown(suite: SuiteReport, short: dict[str, str]) -> str:
    rows = []
    for m in suite.methods:
        budget = budget_of(m.candidate)
        here = list(budget.here.values())
        weights = "own" if m.candidate.own_weights else _md(m.candidate.weights)
        rank, seeds = str(m.rank or "-"), str(len(m.candidate.seeds))
        score = f"{100 * m.score.mean:.1f}"
        opened = (percent(here[-1] if here else None), percent(budget.span))
        rows.append([_md(short[m.candidate.name]), score, _flat(interval(m.score, 100)), rank, *opened, weights, seeds])
    columns = ["method", "score x 100", "95% interval", "rank", "open", "open over the span", "weights of", "seeds"]
    return _markdown_table(columns, rows, right=(1, 2, 3, 4, 5, 7))


def _lines_markdown(lines: list[Line], short: dict[str, str]) -> str:
    kind = {"holm": "Holm", "bh": "BH, exploratory"}[lines[0].correction]
    columns = ["task", "length", "a - b", "points", "95% interval", f"p ({kind})", "verdict", "log-prob", "95% interval"]
    rows = []
    for line in lines:
        v, nats = line.verdict, line.logprob
        rows.append(
            [
                _md(line.task),
                "" if line.length is None else str(line.length),
                _md(f"{short[v.a]} - {short[v.b]}"),
                f"{100 * v.primary.mean:+.1f}",
                _flat(interval(v.primary, 100, signed=True)),
                show_p(line.p_adjusted),
                "one function" if line.same_outputs else WORDS[line.outcome],
                "not finite" if nats is None else f"{nats.mean:+.2f}",
                "" if nats is None else _flat(interval(nats, 1, signed=True, digits=2)),
            ]
        )
    return _markdown_table(columns, rows, right=(1, 3, 4, 5, 7, 8))


def _markdown_table(columns: list[str], rows: list[list[str]], right: tuple[int, ...]) -> str:
    rule = ["--:" if index in right else "---" for index in range(len(columns))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, rule, *rows])


def _flat(text: str) -> str:
    return re.sub(r" +", " ", text).replace("[ ", "[")


def _md(text: str) -> str:
    """Text as text: what Markdown or HTML would read as markup is escaped."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_|\[\]#~])", r"\\\1", escaped)
