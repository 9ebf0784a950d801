"""`compare_runs`: run folders in, everything that a comparison says out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from proteus_bench.compare.analyse import (
    Line,
    MethodLine,
    capacity_words,
    compare_family,
    method_lines,
    ranking,
)
from proteus_bench.compare.capacity import merge_equivalent
from proteus_bench.compare.gates import Gate, parse_gate
from proteus_bench.compare.load import Candidate, load_runs
from proteus_bench.compare.pairs import Family, Pair, families, find, in_order, pair_up
from proteus_bench.errors import UsageError, nearest
from proteus_bench.stats import PairingError
from proteus_bench.store import digest

GATES = "asked by --fail-if"


@dataclass(frozen=True)
class SuiteReport:
    """What the runs say on one suite. capacity: one line a pair. notes: what a reader has to know beside the numbers."""

    suite: dict[str, Any]
    scorer: dict[str, Any]
    methods: list[MethodLine]
    families: list[Family]
    lines: list[Line]
    capacity: list[str]
    notes: list[str]


@dataclass(frozen=True)
class GateResult:
    """A gate on one suite: whether it fired, and the lines that made it (all looked at, when it did not)."""

    gate: Gate
    suite: str
    fired: bool
    lines: list[Line]


@dataclass(frozen=True)
class Report:
    """All suites, all gates."""

    suites: list[SuiteReport]
    gates: list[GateResult] = field(default_factory=list)

    @property
    def fired(self) -> list[GateResult]:
        """Gates whose forbidden claim is shown."""
        return [result for result in self.gates if result.fired]


def compare_runs(
    folders: Sequence[Path], *, against: Sequence[str] = (), common: bool = False, fail_if: Sequence[str] = ()
) -> Report:
    """Compare the methods of run folders, suite by suite.

    against: names of references (by default static and uniform of every backbone). common: leave out what only one side
    of a pair has, instead of refusing. fail_if: gates (`parse_gate`).
    Raises InvalidFileError or PairingError (exit 3) for damaged folders and for what cannot be paired, UsageError (exit
    2) for unknown names and for runs that hold one method only.
    """
    gates = [parse_gate(text) for text in fail_if]
    candidates, notes = load_runs(folders)
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(digest([candidate.suite, candidate.scorer]), []).append(candidate)
    _refuse_versions(list(groups.values()))
    _check_names([name for name in against] + [n for g in gates for n in (g.a, g.b)], candidates)
    suites, results = [], []
    for mine in groups.values():
        report, found = _suite(mine, notes, against, common, gates)
        suites.append(report)
        results += found
    for gate in gates:
        if all(result.gate is not gate for result in results):
            raise UsageError(f"gate {gate.text[:80]!r} cannot be judged: no suite holds both methods")
    return Report(suites, results)


def _refuse_versions(groups: list[list[Candidate]]) -> None:
    """Two groups are two suites: never one suite in two versions, nor with two scorers; and none has one method."""
    for left, right in itertools.combinations(groups, 2):
        a, b = left[0], right[0]
        if a.suite["name"] == b.suite["name"]:
            pair_up(a, b, common=True)  # refuses, and says what differs
    if len(groups) > 1:
        for group in groups:
            if len(group) == 1:
                c = group[0]
                other = next(g for g in groups if g is not group)[0]
                raise PairingError(
                    f"{c.name} was run on suite {c.suite['name']} and {other.name} on {other.suite['name']}: different "
                    "suites cannot be paired"
                )
    elif len(groups[0]) == 1:
        c = groups[0][0]
        raise UsageError(f"nothing to compare: these runs hold {c.name} on {c.suite['name']} only")


def _check_names(names: Sequence[str], candidates: Sequence[Candidate]) -> None:
    known = {c.name for c in candidates} | {c.label for c in candidates}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown method {name[:80]!r}{nearest(name, known)}")


def _suite(
    candidates: list[Candidate], notes: list[str], against: Sequence[str], common: bool, gates: Sequence[Gate]
) -> tuple[SuiteReport, list[GateResult]]:
    kept, names, same = merge_equivalent(candidates)
    kept = in_order(kept)
    said = [*notes, *same]
    against = [names.get(name, name) for name in against]
    asked_gates = [(gate, _resolved(gate, names)) for gate in gates]
    gates = [gate for _, gate in asked_gates]
    if len(kept) == 1 and not gates:
        return SuiteReport(kept[0].suite, kept[0].scorer, method_lines(kept, {}), [], [], [], said + _notes(kept)), []
    here = [name for name in against if any(name in (c.name, c.label) for c in kept)]
    said += [f"{name} was not run on {kept[0].suite['name']}" for name in against if name not in here]
    groups = families(kept, here) if not against or here else []
    asked = _gate_family(gates, kept, groups)
    if asked.pairs:
        groups = [*groups, asked]
    pairs: dict[tuple[str, str], Pair] = {}
    for a, b in dict.fromkeys((a.name, b.name) for family in groups for a, b in family.pairs):
        pairs[a, b] = pair_up(find(a, kept), find(b, kept), common=common)
    left_out = dict.fromkeys(text for pair in pairs.values() for text in pair.left_out)
    said += [f"left out: {text}" for text in left_out]
    ranks, why = _ranks(kept, common)
    lines = [line for family in groups for line in compare_family(family, pairs)]
    budgets = list(dict.fromkeys(text for family in groups for text in capacity_words(family)))
    report = SuiteReport(
        kept[0].suite, kept[0].scorer, method_lines(kept, ranks), groups, lines, budgets, said + why + _notes(kept)
    )
    return report, [_judge(asked, gate, report, kept) for asked, gate in asked_gates if _meant(gate, kept)]


def _resolved(gate: Gate, names: dict[str, str]) -> Gate:
    """The gate on the methods that are shown: a name that is not shown stands for its twin."""
    return replace(gate, a=names.get(gate.a, gate.a), b=names.get(gate.b, gate.b))


def _gate_family(gates: Sequence[Gate], kept: Sequence[Candidate], groups: Sequence[Family]) -> Family:
    """Pairs that only a gate asks for; a pair that is compared anyway is judged by the verdict that is printed."""
    compared = {(a.name, b.name) for family in groups for a, b in family.pairs}
    wanted = []
    for gate in gates:
        if _meant(gate, kept):
            a, b = find(gate.a, kept), find(gate.b, kept)
            if a is not b and (a.name, b.name) not in compared and (b.name, a.name) not in compared:
                wanted.append((a, b))
                compared.add((a.name, b.name))
    return Family(GATES, tuple(wanted))


def _meant(gate: Gate, kept: Sequence[Candidate]) -> bool:
    return all(any(name in (c.name, c.label) for c in kept) for name in (gate.a, gate.b))


_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _judge(asked: Gate, gate: Gate, report: SuiteReport, kept: Sequence[Candidate]) -> GateResult:
    a, b = find(gate.a, kept).name, find(gate.b, kept).name
    if a == b:  # one function: neither better nor worse than itself
        return GateResult(asked, report.suite["name"], gate.op in ("<=", ">="), [])
    sides = (replace(gate, a=a, b=b), replace(gate, a=b, op=_TURNED[gate.op], b=a))
    hits = [(side, line) for side in sides for line in report.lines if side.fits(line)]
    if not hits:
        places = {line.task for line in report.lines}
        raise UsageError(f"gate {gate.text[:80]!r} speaks of nothing compared on {report.suite['name']}"
                         f"{nearest(gate.task, places)}")  # fmt: skip
    shown = [line for side, line in hits if side.holds(line)]
    return GateResult(asked, report.suite["name"], bool(shown), shown or [line for _, line in hits])


def _ranks(kept: Sequence[Candidate], common: bool) -> tuple[dict[str, Any], list[str]]:
    """Ranks for three methods or more; a reason where there are none."""
    if len(kept) < 3:
        return {}, []
    if min(len(c.seeds) for c in kept) < 2:
        return {}, ["one seed: methods are not ranked"]
    try:
        pairs = {
            (a.name, b.name): pair_up(a, b, common=common) for a, b in itertools.combinations(kept, 2)
        }
    except PairingError as error:
        return {}, [f"no ranks: {error}"]
    return ranking(pairs, [c.name for c in kept]), []


def _notes(kept: Sequence[Candidate]) -> list[str]:
    notes = [
        f"{c.name} has no weights of its own: its schedule is applied at inference to those of {c.weights}"
        for c in kept
        if not c.own_weights
    ]
    for key, what in (("dtype", "number formats"), ("device", "devices"), ("backend", "back ends"),
                      ("batch_tokens", "batch sizes in tokens")):  # fmt: skip
        values = sorted({str(c.first.identity.get(key)) for c in kept})
        if len(values) > 1:
            notes.append(f"{what} differ ({', '.join(values)}): a part of a difference may come from there")
    versions = sorted(set().union(*(c.versions for c in kept)))
    if len(versions) > 1:
        notes.append(f"the runs are of different versions of proteus-bench: {', '.join(versions)}")
    if any(c.limited for c in kept):
        notes.append("a part of the suite's items only: not rankable on the leaderboard")
    seeds = min(len(c.seeds) for c in kept)
    if seeds == 1:
        notes.append("one seed: checkpoints are compared, nothing is claimed about the methods")
    elif seeds == 2:
        notes.append("two seeds: an interval can cover as little as 87% where it says 95; take three or more")
    return notes
