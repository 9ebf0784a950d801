"""cost.json: lines join it one by one, so that a command that was cut off goes on where it stood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from proteus_bench import __version__
from proteus_bench.leaderboard.cost import (
    COST,
    CostBlock,
    CostFile,
    CostLine,
    Measure,
    cost_block,
    read_cost,
)
from proteus_bench.store import write_json

MEASURED = ("measure", "length", "tokens", "seconds", "static_seconds", "peak_bytes", "static_peak_bytes", "load")


def block_in(blocks: Sequence[CostBlock], head: dict[str, Any]) -> CostBlock | None:
    """The block of this very model, machine, program, span and clock."""
    return next((one for one in blocks if all(one.model_dump()[key] == value for key, value in head.items())), None)


def has_line(block: CostBlock | None, line: dict[str, Any]) -> bool:
    """Whether the block holds a line of this measure, length, tokens and number of pairs (``n``)."""
    return block is not None and any(all(getattr(one, key) == line[key] for key in line) for one in block.lines)


def with_line(path: Path, head: dict[str, Any], line: dict[str, Any]) -> CostBlock:
    """Put a measured line into the file; it takes the place of one of the same measure and length. The new block."""
    blocks = read_cost(path)
    held = block_in(blocks, head)
    place = (line["measure"], line["length"])
    lines = [measured(one) for one in held.lines if (one.measure, one.length) != place] if held else []
    order = get_args(Measure)
    lines = sorted([*lines, line], key=lambda one: (one["length"], order.index(one["measure"])))
    made = cost_block(head, lines)
    save(path, [made if one is held else one for one in blocks] if held else [*blocks, made])
    return made


def measured(line: CostLine) -> dict[str, Any]:
    """What of a line was measured and does not follow from anything."""
    return {key: getattr(line, key) for key in MEASURED}


def save(path: Path, blocks: Sequence[CostBlock]) -> None:
    """Write a cost.json, checked against its own schema."""
    write_json(path, document(blocks))


def document(blocks: Sequence[CostBlock]) -> dict[str, Any]:
    """The file as plain values."""
    costs = [block.model_dump() for block in blocks]
    return CostFile.model_validate({"schema": COST, "version": __version__, "costs": costs}).model_dump(by_alias=True)


def put_into_run(path: Path, blocks: Sequence[CostBlock]) -> None:
    """Blocks beside run.json; one takes the place of what stood there for the same model."""
    labels = {block.label for block in blocks}
    save(path, [*(one for one in read_cost(path) if one.label not in labels), *blocks])
