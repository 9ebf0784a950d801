"""The figures of a probe's report, drawn from probe.json alone. A figure whose measures are not there is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proteus_bench.probes import state_figures
from proteus_bench.probes.drawing import BLOCK_TICKS, Drawing, Figure, Row, nats_chart, point, table
from proteus_bench.probes.state import SEGMENTS
from proteus_bench.probes.svg import Axis, Series, dot_chart, line_chart, number


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """All figures that the document has measures for, in reading order."""
    drawing = Drawing(document)
    text = (_capacity, _effects, _contrasts, _by_block, _forgetting, _rewriting)
    return [figure for maker in (*text, *state_figures.MAKERS) for figure in maker(drawing)]


def _capacity(d: Drawing) -> Iterator[Figure]:
    rows = d.find("recall_by_load")
    loads = sorted({row["x"] for row in rows})
    if len(loads) < 3:
        return
    x = Axis("pairs in the context", ticks=[(n, str(n)) for n in loads], log=True)
    yield Figure(
        "How much does it hold?",
        "Left: strict recall of the same asked pairs while the number of pairs around them grows; the dashed line is the 90% "
        "level whose crossing the table above gives. Middle: pairs held, recall times pairs; a memory that is full is flat "
        "here, a memory that is overloaded falls. Right: log-probability of the right value, which separates models long "
        "before whole answers do. Bands are 95% intervals.",
        [
            [
                line_chart("recall", d.series("recall_by_load", 100), x, Axis("recall, %", 0, 100), rule=(90, "90%")),
                line_chart("pairs held", d.series("pairs_held"), x, Axis("recall x pairs", 0)),
                nats_chart(d.series("logprob_by_load"), x),
            ]
        ],
        d.legend(),
        table(rows, ("model", "x"), 100),
    )


def _effects(d: Drawing) -> Iterator[Figure]:
    names = {"retroactive": "later facts on earlier ones", "proactive": "earlier facts on later ones"}
    rows = [row for name in names for row in d.find(name)]
    if not rows:
        return
    panels = []
    for column, scale, label in (("strict", 100.0, "recall lost, points"), ("logprob", 1.0, "log-probability lost, nats")):
        lines = []
        for name in names:
            for task in dict.fromkeys(row["task"] for row in d.find(name)):
                found = d.find(name, task=task, column=column)
                if found:
                    series = [Series(r["model"], [point(r, scale)], d.color[r["model"]]) for r in found]
                    lines.append((f"{name}, {_sets_of(found[0])}", series))
        if lines:
            panels.append(dot_chart(f"interference: {label}", lines, Axis(label)))
    yield Figure(
        "Does the other set destroy it?",
        "Recall of a set alone less recall of the same facts, at the same places, with the other set in the context: to the "
        "right of zero the other set destroys. Retroactive: set B follows A. Proactive: set A stood before B. Paired by item; "
        "bars are 95% intervals.",
        [panels],
        d.legend(),
        table(rows, ("measure", "model", "task", "column")),
    )


def _sets_of(row: Row) -> str:
    gap = f", gap {row['gap']}%" if row["gap"] else ""
    return f"A={row['a']} B={row['b']}{gap}"


def _contrasts(d: Drawing) -> Iterator[Figure]:
    rows = [*d.find("retroactive_contrast"), *d.find("proactive_contrast")]
    if not rows:
        return
    panels = []
    for column, scale, label in (("strict", 100.0, "points"), ("logprob", 1.0, "nats")):
        lines = []
        for row in rows:
            if row["column"] == column:
                name = row["measure"].removesuffix("_contrast")
                series = [Series(f"less {row['other']}", [point(row, scale)], d.color[row["other"]])]
                lines.append((f"{name}, {_sets_of(row)}", series))
        if lines:
            title = f"{d.short[d.models[0]]} less the others, {label}"
            panels.append(dot_chart(title, lines, Axis(f"difference of losses, {label}")))
    yield Figure(
        "Does the schedule protect?",
        f"What interference costs {d.models[0]} less what it costs each other model, on the same seeds and items: to the left "
        "of zero it protects. Note that a model that answers little has little to lose.",
        [panels],
        d.legend(d.models[1:]),
        table(rows, ("measure", "model", "other", "task", "column")),
    )


def _by_block(d: Drawing) -> Iterator[Figure]:
    tasks = [t for t in dict.fromkeys(r["task"] for r in d.find("recall_by_block")) if _shown_by_block(t)]
    for task in tasks:
        roles = list(dict.fromkeys(row["role"] for row in d.find("recall_by_block", task=task)))
        x, marks = Axis("insertion block of the fact", -0.5, SEGMENTS - 0.5, BLOCK_TICKS), d.unlock_places()
        lines = {
            name: [line for role in roles for line in d.series(name, scale, task=task, role=role)]
            for name, scale in (("recall_by_block", 100.0), ("logprob_by_block", 1.0))
        }
        recall = line_chart("recall", lines["recall_by_block"], x, Axis("recall, %", 0, 100), verticals=marks)
        panels = [recall, nats_chart(lines["logprob_by_block"], x, marks)]
        yield Figure(
            f"When was it written? {task}",
            "Recall by the sixteenth of the context in which the fact stands, the first on the left. Marks along the top edge: "
            "where a block of the scheduled memory opens.",
            [panels],
            d.legend(),
            table(d.find("recall_by_block", task=task), ("model", "role", "x"), 100),
        )


def _shown_by_block(task: str) -> bool:
    return task in (
        "capacity.mqar_4", "capacity.mqar_16", "capacity.mqar_64",
        "interference.a4_b0", "interference.a4_b4", "interference.a16_b0", "interference.a16_b16",
    )  # fmt: skip


def _forgetting(d: Drawing) -> Iterator[Figure]:
    rows = d.find("recall_by_distance")
    edges = sorted({row["x"] for row in rows})
    if len(edges) < 2:
        return
    x = Axis("tokens between fact and question, at most", ticks=[(n, number(n)) for n in edges], log=True)
    yield Figure(
        "How long does it keep?",
        "Recall of one of sixteen pairs against the distance between the fact and the end of the context; bins double.",
        [
            [
                line_chart("recall", d.series("recall_by_distance", 100), x, Axis("recall, %", 0, 100)),
                nats_chart(d.series("logprob_by_distance"), x),
            ]
        ],
        d.legend(),
        table(rows, ("model", "x"), 100),
    )


def _rewriting(d: Drawing) -> Iterator[Figure]:
    rows = d.find("rewriting_cost", column="strict")
    if not rows:
        return
    lines = []
    for label, name, extra in (
        ("last value of a rewritten key", "recall", {"role": "rewritten"}),
        ("key written once, as late", "recall", {"role": "once"}),
        ("once less rewritten", "rewriting_cost", {"column": "strict"}),
        ("answers with the old value", "stale", {}),
    ):
        for task in dict.fromkeys(row["task"] for row in rows):
            found = d.find(name, task=task, **extra)
            if found:
                lines.append((label, [Series(r["model"], [point(r, 100)], d.color[r["model"]]) for r in found]))
    yield Figure(
        "Can it be corrected?",
        "A key is written in the first half of the context and again, with another value, in the second: the last value counts. "
        "Control: keys written once at the places of the last values.",
        [[dot_chart("rewritten keys, points", lines, Axis("points"))]],
        d.legend(),
        table([*rows, *d.find("stale")], ("measure", "model", "task"), 100),
    )
