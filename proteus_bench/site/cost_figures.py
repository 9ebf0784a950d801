"""What schedules cost against their static twins: one section a machine, because seconds of two machines do not compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proteus_bench.leaderboard.cost import (
    MARGIN,
    WORDS,
    CostBlock,
    CostFigure,
    CostSummary,
    load_words,
    machine_key,
    machine_words,
    sentences,
)
from proteus_bench.probes.svg import SERIES, Axis, Point, Series, dot_chart
from proteus_bench.site import plots
from proteus_bench.site.page import clean

Block = CostBlock | CostSummary
_HEADS = (
    "method", "length", "what", "time / static", "95% interval", "pairs", "tokens/s", "static", "peak MB", "static",
    "state bytes", "static", "verdict",
)  # fmt: skip


def cost_sections(blocks: Sequence[Block | None]) -> list[dict[str, Any]]:
    """A section for every machine and clock, blocks in alphabetical order. One measurement that several boards show is one."""
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        if block is None:
            continue
        mine = groups.setdefault((machine_words(block.machine) + machine_key(block.machine), block.clock), [])
        if block not in mine:
            mine.append(block)
    return [_section(sorted(mine, key=lambda b: (b.label, b.seed, b.span))) for _, mine in sorted(groups.items())]


def _section(blocks: Sequence[Block]) -> dict[str, Any]:
    seconds = "of the thread" if blocks[0].clock == "cpu" else "of the clock"
    names = [_name(block) for block in blocks]
    places = list(dict.fromkeys((line.length, line.measure) for block in blocks for line in block.lines))
    rows = []
    for length, measure in sorted(places, key=lambda place: place[0]):
        series = [
            Series(clean(name), [_dot(line)], i % SERIES)
            for i, (name, block) in enumerate(zip(names, blocks, strict=True))
            for line in block.lines
            if (line.length, line.measure) == (length, measure)
        ]
        rows.append((f"{measure} {plots.tokens(length)}", series))
    label = "time more than static, %"
    return {
        "title": "What a schedule costs",
        "reading": f"Time under the schedule over that of the static twin on the same weights: medians of paired calls in one "
        f"process, with 95% intervals; seconds {seconds}. \"No additional cost\" is said where the whole interval lies below "
        f"{100 * (MARGIN - 1):.0f}%. Measured on {clean(machine_words(blocks[0].machine))}; figures of other machines stand apart. "
        "The arithmetic is checked, the seconds are the submitter's.",
        "panels": [dot_chart(label, rows, Axis(label), width=540)],
        "legend": [(clean(name), i % SERIES, True) for i, name in enumerate(names)],
        "says": [clean(text) for block in blocks for text in sentences(block)] + [text for text in [load_words(blocks)] if text],
        "table": (_HEADS, [_row(name, block, line) for name, block in zip(names, blocks, strict=True) for line in block.lines]),
    }  # fmt: skip


def _name(block: Block) -> str:
    return block.label + ("" if block.span == "own" else ", span = length")


def _dot(line: CostFigure) -> Point:
    middle, low, high = (100 * (value - 1) for value in (line.ratio, line.ci_low, line.ci_high))
    return Point(middle, middle, low, high)


def _row(name: str, block: Block, line: CostFigure) -> tuple[str, ...]:
    peaks = ["" if value is None else f"{value / 1e6:.1f}" for value in (line.peak_bytes, line.static_peak_bytes)]
    return (
        name, f"{line.length:,}", line.measure, f"{line.ratio:.3f}", f"{line.ci_low:.3f} to {line.ci_high:.3f}", str(line.n),
        f"{line.tokens_per_second:,.0f}", f"{line.static_tokens_per_second:,.0f}", *peaks, f"{block.state_bytes:,}",
        f"{block.static_state_bytes:,}", WORDS[line.outcome],
    )  # fmt: skip
