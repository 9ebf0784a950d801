"""The figures of a probe's report, drawn from probe.json alone. A figure whose measures are not there is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from proteus_bench.probes.drawing import BLOCK_TICKS, Drawing, Figure, Row, point, table
from proteus_bench.probes.state import SEGMENTS
from proteus_bench.probes.svg import Axis, Point, Series, dot_chart, heat_map, line_chart, number

COLUMNS = 32
"""Steps of the context in a map of the memory over time."""


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """All figures that the document has measures for, in reading order."""
    drawing = Drawing(document)
    makers: tuple[Callable[[Drawing], Iterator[Figure]], ...] = (
        _capacity, _effects, _contrasts, _by_block, _forgetting, _rewriting, _memory_lines, _sets, _occupancy, _shares,
        _pollution,
    )  # fmt: skip
    return [figure for maker in makers for figure in maker(drawing)]


def _capacity(d: Drawing) -> Iterator[Figure]:
    rows = d.find("recall_by_load")
    loads = sorted({row["x"] for row in rows})
    if len(loads) < 2:
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
                line_chart("log-probability", d.series("logprob_by_load"), x, Axis("nats a value")),
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
            panels.append(dot_chart(f"{d.models[0]} less the others, {label}", lines, Axis(f"difference of losses, {label}")))
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
        panels, x = [], Axis("insertion block of the fact", -0.5, SEGMENTS - 0.5, BLOCK_TICKS)
        for name, scale, y in (
            ("recall_by_block", 100.0, Axis("recall, %", 0, 100)),
            ("logprob_by_block", 1.0, Axis("nats a value")),
        ):
            lines = [line for role in roles for line in d.series(name, scale, task=task, role=role)]
            panels.append(line_chart("recall" if scale > 1 else "log-probability", lines, x, y, verticals=d.unlock_places()))
        yield Figure(
            f"When was it written? {task}",
            "Recall by the sixteenth of the context in which the fact stands, the first on the left. Marks along the top edge: "
            "where a block of the scheduled memory opens.",
            [panels],
            d.legend(),
            table(d.find("recall_by_block", task=task), ("model", "role", "x"), 100),
        )


def _shown_by_block(task: str) -> bool:
    return task in ("capacity.mqar_16", "capacity.mqar_64", "interference.a16_b0", "interference.a16_b16")


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
                line_chart("log-probability", d.series("logprob_by_distance"), x, Axis("nats a value")),
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


def _memory_lines(d: Drawing) -> Iterator[Figure]:
    rows = d.find("state_retained")
    if not rows:
        return
    x = Axis("insertion block of the fact", -0.5, SEGMENTS - 0.5, BLOCK_TICKS)
    panels, marks = [], d.unlock_places()
    for layer in d.layers("state_retained"):
        kept, all_of_it = d.series("state_retained", layer=layer), (1, "all of it")
        low, high = _window(kept)
        part = Axis("part of the trace", low, high)
        left = line_chart(f"layer {layer}: left at the end", _cut(kept, low, high), x, part, rule=all_of_it, verticals=marks)
        strength = [_without_bands(line) for line in d.series("state_written", layer=layer)]
        wide = line_chart(f"layer {layer}: strength of writing", strength, x, Axis("norm of the trace", 0), verticals=marks)
        panels.append([left, wide])
    yield Figure(
        "What is left of it in the memory?",
        "The same context twice, with the value of one fact exchanged: the difference of the two memories right behind the fact "
        "is its trace. Left of each pair: the part of the trace that stands in the memory at the context's end, along its own "
        "direction (1 = append-only, 0 = overwritten). Right: how strongly it was written at all. No knowledge of keys is used.",
        panels,
        d.legend(),
        table(rows, ("model", "layer", "x")),
    )


def _window(lines: Sequence[Series]) -> tuple[float, float]:
    """Where the means are, with room; a band that is far wider than all of them would flatten them."""
    means = [p.y for line in lines for p in line.points]
    return min(-0.25, min(means) - 0.25), max(1.25, max(means) + 0.25)


def _cut(lines: Sequence[Series], low: float, high: float) -> list[Series]:
    """Bands cut at the edges of the plot."""

    def inside(value: float | None) -> float | None:
        return None if value is None else min(high, max(low, value))

    cut = [Series(s.name, [Point(p.x, p.y, inside(p.lo), inside(p.hi)) for p in s.points], s.color) for s in lines]
    return cut


def _without_bands(line: Series) -> Series:
    return Series(line.name, [Point(p.x, p.y) for p in line.points], line.color)


def _sets(d: Drawing) -> Iterator[Figure]:
    words = {
        "retained_before_facts": "trace of A left, B behind it",
        "retained_before_prose": "trace of A left, prose behind it",
        "state_retroactive": "lost to B's facts",
        "state_proactive": "strength of B lost to A",
        "keys_error_joint": "read-out error of A's keys, B",
        "keys_error_alone": "read-out error of A's keys, prose",
        "keys_overlap": "cos2 of A's keys and B's",
        "keys_overlap_prose": "cos2 of A's keys and prose",
    }
    rows = [row for name in words for row in d.find(name)]
    if not rows:
        return
    panels = []
    for layer in sorted({row["layer"] for row in rows}):
        lines = []
        for name, label in words.items():
            found = [row for row in d.find(name, layer=layer) if not name.startswith("keys_error")]
            if found:
                lines.append((label, [Series(r["model"], [point(r)], d.color[r["model"]]) for r in found]))
        panels.append(dot_chart(f"layer {layer}", lines, Axis("part (1 = all)")))
    yield Figure(
        "What do the sets do to each other in the memory?",
        "Traces as above: what is left of A's facts at the end with B's facts behind them, and with prose in B's place; how much "
        "weaker B is written when A stood before it; and how far the keys of both sets point the same way (squared cosine). "
        "Read-out errors of A's keys are in the table.",
        [panels],
        d.legend(),
        table(rows, ("measure", "model", "layer")),
    )


def _occupancy(d: Drawing) -> Iterator[Figure]:
    for kind, title, reading in (
        ("energy", "Which blocks are full, and when?",
         "Energy (squared norm of the change since the start) of each memory block along the context, as a share of the whole "
         "memory's energy at the end. The staircase is the schedule: above and left of it a block is locked."),
        ("rank", "How many directions does a block use?",
         "Effective rank of each block: exp of the entropy of its squared singular values, mean over heads."),
    ):  # fmt: skip
        panels = []
        courses = {m: d.document["courses"][m] for m in d.models if m in d.document["courses"]}
        if not courses:
            return
        for layer in range(len(next(iter(courses.values()))["energy"][0])):
            grids = {model: _columns(course, kind, layer) for model, course in courses.items()}
            top = max((v for grid in grids.values() for column in grid for v in column), default=1.0)
            row = []
            for model, grid in grids.items():
                total = courses[model]["marks"][-1]
                steps = [at - 1 for at in courses[model]["unlocks"]]
                x = Axis("position in the context", 0, total)
                opened = steps if any(steps) else ()
                row.append(heat_map(f"{model}, layer {layer + 1}", grid, x, "block", top=top, steps=opened))
            panels.append(row)
        yield Figure(title, reading, panels, (), ((), ()))


def _columns(course: Row, kind: str, layer: int) -> list[list[float]]:
    """The course at equal steps of the context: the mark nearest to each."""
    marks, total = course["marks"], course["marks"][-1]
    wanted = [total * (i + 1) / COLUMNS for i in range(COLUMNS)]
    nearest = [min(range(len(marks)), key=lambda m, w=w: abs(marks[m] - w)) for w in wanted]  # type: ignore[misc]
    return [course[kind][m][layer] for m in nearest]


def _shares(d: Drawing) -> Iterator[Figure]:
    rows = d.find("state_share")
    if not rows:
        return
    x = Axis("part of the text", -0.5, SEGMENTS - 0.5, BLOCK_TICKS)
    panels: list[list[str]] = []
    for layer in d.layers("state_share"):
        even = (100 / SEGMENTS, "even")
        lines = d.series("state_share", 100, layer=layer)
        row = [line_chart(f"layer {layer}", lines, x, Axis("share of the final memory, %", 0), rule=even)]
        grids = {model: d.document["courses"][model]["share"][layer - 1] for model in d.models if model in d.document["courses"]}
        top = max(v for grid in grids.values() for column in grid for v in column)
        ticks = [(i + 0.5, str(i + 1)) for i in (0, 3, 7, 11, 15)]
        for model, grid in grids.items():
            axis = Axis("part of the text", 0, SEGMENTS, ticks)
            row.append(heat_map(f"{model}, layer {layer}", grid, axis, "memory block", top=top))
        panels.append(row)
    yield Figure(
        "Who wrote the memory?",
        "Each sixteenth of the text is exchanged for other text, and the change of the final memory is measured: its share of all "
        "such changes. A memory that is polluted early leans left, one that overwrites leans right, one that only appends is "
        "even. The maps split the shares by memory block.",
        panels,
        d.legend(),
        table(d.find("early_share"), ("measure", "model", "layer"), 100),
    )


def _pollution(d: Drawing) -> Iterator[Figure]:
    rows = d.find("energy_before_unlock")
    if not rows or not any(row["value"] > 0 for row in rows):
        return
    x = Axis("memory block", 1.5, max(row["x"] for row in rows) + 0.5)
    panels = [
        line_chart(f"layer {layer}", d.series("energy_before_unlock", 100, layer=layer), x, Axis("% of its final energy", 0))
        for layer in d.layers("energy_before_unlock")
    ]
    yield Figure(
        "What stands in a block before it opens?",
        "Energy of each block at the token before its unlock, over its energy at the end. Zero where writes are gated.",
        [panels],
        d.legend(),
        table(rows, ("model", "layer", "x"), 100),
    )
