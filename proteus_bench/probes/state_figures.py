"""The figures of the state side: traces, sets, occupancy, ranks, shares."""

from __future__ import annotations

from collections.abc import Iterator

from proteus_bench.probes.drawing import BLOCK_TICKS, Drawing, Figure, Row, cut, point, table, window, without_bands
from proteus_bench.probes.state import SEGMENTS
from proteus_bench.probes.svg import Axis, Box, Series, dot_chart, heat_map, line_chart

COLUMNS = 32
"""Steps of the context in a map of the memory over time."""


def memory_lines(d: Drawing) -> Iterator[Figure]:
    rows = d.find("state_retained")
    if not rows:
        return
    x = Axis("insertion block of the fact", -0.5, SEGMENTS - 0.5, BLOCK_TICKS)
    panels, marks = [], d.unlock_places()
    for layer in d.layers("state_retained"):
        kept, all_of_it = d.series("state_retained", layer=layer), (1, "all of it")
        low, high = window(kept)
        part = Axis("part of the trace", low, high)
        left = line_chart(f"layer {layer}: left at the end", cut(kept, low, high), x, part, rule=all_of_it, verticals=marks)
        strength = [without_bands(line) for line in d.series("state_written", layer=layer)]
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


def sets(d: Drawing) -> Iterator[Figure]:
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


def occupancy(d: Drawing) -> Iterator[Figure]:
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
                name = f"layer {layer + 1}: {d.short[model]}"
                row.append(heat_map(name, grid, x, "block", top=top, steps=opened, box=_map_box(len(grids))))
            panels.append(row)
        yield Figure(title, reading, panels, (), ((), ()))


def _map_box(panels: int, right: float = 68) -> Box:
    """Four maps or five stand in one row when they are smaller."""
    return Box(right=right) if panels < 4 else Box(312, 226, right=right) if panels == 4 else Box(268, 204, right=right)


def _columns(course: Row, kind: str, layer: int) -> list[list[float]]:
    """The course at equal steps of the context: the mark nearest to each."""
    marks, total = course["marks"], course["marks"][-1]
    wanted = [total * (i + 1) / COLUMNS for i in range(COLUMNS)]
    nearest = [min(range(len(marks)), key=lambda m, w=w: abs(marks[m] - w)) for w in wanted]  # type: ignore[misc]
    return [course[kind][m][layer] for m in nearest]


def shares(d: Drawing) -> Iterator[Figure]:
    rows = d.find("state_share")
    if not rows:
        return
    x = Axis("part of the text", -0.5, SEGMENTS - 0.5, BLOCK_TICKS)
    even, share = (100 / SEGMENTS, "even"), Axis("share of the final memory, %", 0)
    layers = d.layers("state_share")
    lines = {layer: d.series("state_share", 100, layer=layer) for layer in layers}
    panels = [[line_chart(f"layer {layer}", lines[layer], x, share, rule=even) for layer in layers]]
    for layer in layers:
        grids = {model: d.document["courses"][model]["share"][layer - 1] for model in d.models if model in d.document["courses"]}
        top = max(v for grid in grids.values() for column in grid for v in column)
        axis = Axis("part of the text", 0, SEGMENTS, [(i + 0.5, str(i + 1)) for i in (0, 3, 7, 11, 15)])
        panels.append(
            [
                heat_map(f"layer {layer}: {d.short[m]}", grid, axis, "memory block", top=top, box=_map_box(len(grids)))
                for m, grid in grids.items()
            ]
        )
    yield Figure(
        "Who wrote the memory?",
        "Each sixteenth of the text is exchanged for other text, and the change of the final memory is measured: its share of all "
        "such changes. A memory that is polluted early leans left, one that overwrites leans right, one that only appends is "
        "even. The maps split the shares by memory block.",
        panels,
        d.legend(),
        table(d.find("early_share"), ("measure", "model", "layer"), 100),
    )


def pollution(d: Drawing) -> Iterator[Figure]:
    rows = d.find("energy_before_unlock")
    if not rows or not any(row["value"] > 0 for row in rows):
        return
    x = Axis("memory block", 1.5, max(row["x"] for row in rows) + 0.5)
    panels = []
    for layer in d.layers("energy_before_unlock"):
        lines = d.series("energy_before_unlock", 100, layer=layer)
        high = 1.5 * max(p.y for line in lines for p in line.points) or 1.0
        axis = Axis("% of its final energy", 0, high)
        panels.append(line_chart(f"layer {layer}", cut(lines, 0, high), x, axis))
    yield Figure(
        "What stands in a block before it opens?",
        "Energy of each block at the token before its unlock, over its energy at the end. Zero where writes are gated.",
        [panels],
        d.legend([model for model in d.models if any(row["model"] == model for row in rows)]),
        table(rows, ("model", "layer", "x"), 100),
    )


MAKERS = (memory_lines, sets, occupancy, shares, pollution)
"""In reading order."""
