"""`compare` and `plan`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json
from proteus_bench.errors import GateError, UsageError


def compare_command(
    runs: Sequence[Path], *, against: Sequence[str], common: bool, fail_if: Sequence[str], form: str
) -> None:
    """Compare run folders and print the result. Raises GateError (exit 6) after printing when a gate fires."""
    from proteus_bench.compare import compare_runs

    report = compare_runs(runs, against=against, common=common, fail_if=fail_if)
    show(report, form)
    if report.fired:
        from proteus_bench.compare.table import gate_words

        raise GateError("; ".join(gate_words(result) for result in report.fired))


def show(report: Any, form: str) -> None:
    """Print a comparison on stdout as table, json, markdown or csv."""
    from proteus_bench.compare import export, table
    from proteus_bench.render.report import report_console

    if form == "json":
        print_json(export.document(report))
    elif form == "table":
        table.print_report(report_console(), report)
    else:
        sys.stdout.write(export.to_markdown(report) if form == "markdown" else export.to_csv(report))


def one_format(json: bool, markdown: bool, csv: bool) -> str:
    """The format that was asked for. UsageError for two at once."""
    asked = [name for name, on in (("json", json), ("markdown", markdown), ("csv", csv)) if on]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} exclude each other: one document on stdout")
    return asked[0] if asked else "table"


def plan_command(
    runs: Sequence[Path],
    *,
    a: str | None,
    b: str | None,
    difference: float | None,
    seeds: str,
    items: str | None,
    variances: tuple[float | None, float | None, float | None],
    power: float,
    as_json: bool,
) -> None:
    """Print what numbers of seeds and items can find, from a pilot run or from given standard deviations."""
    from proteus_bench.compare import planning

    if not 0.5 <= power < 1:
        raise UsageError(f"--power is a fraction from 0.5 to below 1, not {power}")
    if difference is not None and not 0 < difference <= 100:
        raise UsageError(f"--difference is a number of points from 0 to 100, not {difference}")
    pilots = planning.pilots(runs, a, b, variances)
    counts = planning.numbers(seeds, "--seeds", 2, 1000)
    sizes = planning.numbers(items, "--items", 2, 10_000_000) if items is not None else None
    plans = [planning.make_plan(pilot, counts, sizes, difference, power) for pilot in pilots]
    if as_json:
        print_json({"plans": [planning.as_dict(plan) for plan in plans]})
    else:
        planning.print_plans(plans)
