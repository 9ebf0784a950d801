"""`plan`: how many seeds and items a difference takes, from the variances of a pilot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.compare.capacity import merge_equivalent
from proteus_bench.compare.load import load_runs
from proteus_bench.compare.pairs import families, find, in_order, pair_up
from proteus_bench.errors import UsageError
from proteus_bench.stats import Variances, detectable, items_needed, pilot_variances, seeds_needed

SEEDS = (3, 5, 8, 10)
ITEMS = (50, 100, 200, 500)


@dataclass(frozen=True)
class Pilot:
    """Where variances come from. mean: the difference seen (None when none was); seeds, items a task: of the pilot."""

    name: str
    variances: Variances
    mean: float | None = None
    seeds: int | None = None
    items: int | None = None
    tasks: int = 1


@dataclass(frozen=True)
class Plan:
    """What can be found. detectable[seeds][items]: the difference (fraction). With ``difference``: what it takes."""

    pilot: Pilot
    power: float
    seeds: tuple[int, ...]
    items: tuple[int, ...]
    detectable: dict[int, dict[int, float]]
    difference: float | None
    items_needed: dict[int, int | None]
    seeds_needed: dict[int, int | None]


def pilots(
    runs: Sequence[Path],
    a: str | None,
    b: str | None,
    deviations: tuple[float | None, float | None, float | None],
) -> list[Pilot]:
    """From given standard deviations in points (seed, item, residual), or from the pairs of run folders.

    Raises UsageError when neither or both are given.
    """
    given = [value for value in deviations if value is not None]
    if bool(runs) == bool(given):
        raise UsageError("plan needs run folders, or --seed-sd, --item-sd and --residual-sd in points")
    if given:
        if any(not 0 <= value <= 100 for value in given):
            raise UsageError("standard deviations are points from 0 to 100")
        seed, item, residual = (((value or 0.0) / 100) ** 2 for value in deviations)
        return [Pilot("given standard deviations", Variances(seed, item, residual))]
    candidates, _ = load_runs(runs)
    shown, names, _ = merge_equivalent(candidates)
    kept = in_order(shown)
    a, b = (None if name is None else names.get(name, name) for name in (a, b))
    if (a is None) != (b is None):
        raise UsageError("--a and --b name a pair together")
    wanted = [(find(a, kept), find(b, kept))] if a and b else [p for f in families(kept) for p in f.pairs]
    if not wanted:
        raise UsageError("these runs hold one method only: a plan needs a pair")
    found = []
    for left, right in wanted:
        pair = pair_up(left, right, common=True)
        D, weights = pair.differences()
        try:
            variances, mean = pilot_variances(D, weights)
        except ValueError as error:
            raise UsageError(f"{left.name} and {right.name}: {error}") from error
        size = round(len(D) / sum(1 / task.shape[1] for task in D))
        found.append(Pilot(f"{left.name} - {right.name}", variances, mean, len(pair.seeds), size, len(D)))
    return found


def numbers(text: str | None, flag: str, low: int, high: int) -> tuple[int, ...]:
    """``3,5,8`` as numbers. UsageError outside of ``low`` to ``high``."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"{flag} is a list of numbers such as 3,5,8, not {text!r}")
    values = tuple(dict.fromkeys(int(part) for part in parts))
    if not all(low <= value <= high for value in values):
        raise UsageError(f"{flag} takes numbers from {low} to {high}")
    return values


def make_plan(
    pilot: Pilot, seeds: tuple[int, ...], items: tuple[int, ...] | None, difference: float | None, power: float
) -> Plan:
    """Fill the table, and with ``difference`` (points) say what it takes."""
    sizes = items or tuple(sorted({*ITEMS, *([pilot.items] if pilot.items and pilot.items > 1 else [])}))
    counts = tuple(sorted({*seeds, *([pilot.seeds] if pilot.seeds and pilot.seeds > 1 else [])}))
    v = pilot.variances
    table = {s: {n: detectable(v, s, n, power=power) for n in sizes} for s in counts}
    share = None if difference is None else difference / 100
    return Plan(
        pilot,
        power,
        counts,
        sizes,
        table,
        share,
        {} if share is None else {s: items_needed(share, v, s, power=power) for s in counts},
        {} if share is None else {n: seeds_needed(share, v, n, power=power) for n in sizes},
    )


def as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values; differences and standard deviations are fractions."""
    pilot, v = plan.pilot, plan.pilot.variances
    return {
        "pilot": pilot.name,
        "difference_seen": pilot.mean,
        "pilot_seeds": pilot.seeds,
        "pilot_items_per_task": pilot.items,
        "tasks": pilot.tasks,
        "sd": {"seed": v.seed**0.5, "item": v.item**0.5, "residual": v.residual**0.5},
        "power": plan.power,
        "detectable": [
            {"seeds": s, "items_per_task": n, "difference": value}
            for s, row in plan.detectable.items()
            for n, value in row.items()
        ],
        "difference": plan.difference,
        "items_needed": [{"seeds": s, "items_per_task": n} for s, n in plan.items_needed.items()],
        "seeds_needed": [{"items_per_task": n, "seeds": s} for n, s in plan.seeds_needed.items()],
    }


def print_plans(plans: Sequence[Plan]) -> None:
    """One table a pilot, and sentences."""
    from proteus_bench.cli.output import console, print_table

    out = console()
    for plan in plans:
        v = plan.pilot.variances
        name = f"{plan.pilot.name}: differences in points that are found with {100 * plan.power:.0f}% power"
        per = "items" if plan.pilot.tasks == 1 else "items a task"
        rows = [[f"{s} seeds", *(_points(plan.detectable[s][n]) for n in plan.items)] for s in plan.seeds]
        print_table(name, ["", *(f"{n} {per}" for n in plan.items)], rows, range(1, len(plan.items) + 1))
        deviations = ", ".join(
            f"{what} {100 * value**0.5:.1f}"
            for what, value in (("seed", v.seed), ("item", v.item), ("residual", v.residual))
        )
        out.print(f"standard deviations of the paired difference, points: {deviations}", style="dim")
        for sentence in _sentences(plan, per):
            out.print(sentence)
        out.print()


def _points(value: float) -> str:
    return f"{100 * value:.1f}" if value <= 1 else "> 100"


def _sentences(plan: Plan, per: str) -> list[str]:
    said = []
    pilot = plan.pilot
    if pilot.mean is not None and pilot.seeds and pilot.seeds > 1 and pilot.items in plan.items:
        least = plan.detectable[pilot.seeds][pilot.items]
        size = f"{pilot.seeds} seeds x {pilot.items} {per}"
        seen = f"the difference seen is {100 * pilot.mean:+.1f} points"
        said.append(f"{seen}; {size} find differences from {_points(least)} points on")
        if least > abs(pilot.mean):
            said.append("a difference of the size seen would most likely be missed by a run of this size")
    if pilot.seeds == 1:
        said.append("the pilot has one seed: the variance between seeds is unknown and counted as zero (a lower bound)")
    elif pilot.seeds in (2, 3):
        said.append(f"a seed variance from {pilot.seeds} seeds is itself uncertain: plan for more than the table says")
    if plan.difference is not None:
        wanted = f"{100 * plan.difference:.3g} points"
        for s, n in plan.items_needed.items():
            said.append(f"{wanted} with {s} seeds: " + (f"{n:,} {per}" if n else "no number of items is enough"))
        for items, count in plan.seeds_needed.items():
            said.append(f"{wanted} with {items} {per}: " + (f"{count} seeds" if count else "no number of seeds is enough"))
    return said
