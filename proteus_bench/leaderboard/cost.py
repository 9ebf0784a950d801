"""What a schedule costs against its static twin: paired seconds, and everything that follows from them. No torch.

cost.json stands beside run.json, as timing.json does: seconds differ from one repeat to the next, and run.json must not.
Whoever reads a figure computes it again from the seconds it holds; that they were measured, nobody can check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from proteus_bench.leaderboard.forms import Count, Length, Strict, Text, read_as, rounded
from proteus_bench.stats import median_ratio
from proteus_bench.stats.ratio import MIN_PAIRS
from proteus_bench.store.canonical import digest
from proteus_bench.store.run_file import Name, Record, Sha256

COST = "proteus-bench/cost@1"
FILE = "cost.json"
MARGIN = 1.03
"""The claim "no additional cost" stands when the whole interval of time over static time lies below this."""
LEVEL = 0.95
MAX_PAIRS = 10_001
WORDS = {
    "saves": "costs less", "no_extra": "no additional cost", "extra": "costs more", "unsettled": "not settled",
}  # fmt: skip

Measure = Literal["train", "prefill", "decode"]
Outcome = Literal["saves", "no_extra", "extra", "unsettled"]


def parse_seconds(text: str) -> list[float]:
    """Times above zero, parted by spaces. ValueError for anything else."""
    values = [float(part) for part in text.split(" ")]
    if not MIN_PAIRS <= len(values) <= MAX_PAIRS or not all(0 < value < 1e9 for value in values):
        raise ValueError(f"{MIN_PAIRS} to {MAX_PAIRS} times above zero are needed")
    return values


def _seconds(text: str) -> str:
    parse_seconds(text)
    return text


Seconds = Annotated[str, Field(pattern=r"^[0-9.e-]+( [0-9.e-]+)*$", max_length=1 << 18), AfterValidator(_seconds)]
Bytes = Annotated[int, Field(ge=1, le=1 << 53)]


class Machine(Strict):
    """Where the seconds were measured. Figures of two machines do not compare: only ratios inside one do."""

    cpu: Text
    cores: Count
    threads: int = Field(ge=1)
    system: Text
    python: Text
    torch: Text


class CostFigure(Strict):
    """One measure at one length. ratio: median of scheduled over static seconds, pair by pair, with its 95% interval.

    tokens: of one call; tokens_per_second: from the median of its seconds. peak_bytes: of the tensors that live at once
    during a call, beyond the model and its state; None where it was not measured. load: processes that ran or waited for a
    core when it began.
    """

    measure: Measure
    length: Length
    tokens: Length
    n: int = Field(ge=MIN_PAIRS)
    ratio: float = Field(gt=0)
    ci_low: float = Field(gt=0)
    ci_high: float = Field(gt=0)
    tokens_per_second: float = Field(ge=0)
    static_tokens_per_second: float = Field(ge=0)
    peak_bytes: Bytes | None
    static_peak_bytes: Bytes | None
    load: float | None = Field(ge=0)
    outcome: Outcome


class CostLine(CostFigure):
    """A figure with its seconds, in the order of the pairs."""

    seconds: Seconds
    static_seconds: Seconds


class _Head(Strict):
    """Whose cost it is. span: the schedule's own, or stretched to every length. clock: seconds of the thread or of the wall.

    program: its version and commit. time, memory: the verdicts over all lines.
    """

    label: Text
    seed: Count
    checkpoint_sha256: str = Sha256
    capacity: dict[str, Any]
    span: Literal["own", "length"]
    n_params: Count
    state_bytes: Bytes
    static_state_bytes: Bytes
    machine: Machine
    program: Text
    clock: Literal["cpu", "wall"]
    margin: float = Field(ge=MARGIN, le=MARGIN)
    time: Outcome
    memory: Literal["no_extra", "extra"] | None


class CostBlock(_Head):
    """The cost of one method, with the seconds."""

    lines: list[CostLine] = Field(min_length=1, max_length=1000)


class CostSummary(_Head):
    """The same without the seconds: what a row of the leaderboard shows."""

    lines: list[CostFigure]


class CostFile(Strict):
    """cost.json."""

    schema_: Literal["proteus-bench/cost@1"] = Field(alias="schema")
    version: str = Name
    costs: list[CostBlock] = Field(min_length=1, max_length=1000)


def figures(tokens: int, seconds: str, static_seconds: str) -> dict[str, Any]:
    """Everything of a line that follows from its seconds."""
    scheduled, static = parse_seconds(seconds), parse_seconds(static_seconds)
    found = median_ratio(scheduled, static, LEVEL)
    assert found.lo is not None and found.hi is not None  # MIN_PAIRS sees to it
    return {
        "n": found.n,
        "ratio": rounded(found.mean),
        "ci_low": rounded(found.lo),
        "ci_high": rounded(found.hi),
        "tokens_per_second": rounded(tokens / median(scheduled)),
        "static_tokens_per_second": rounded(tokens / median(static)),
        "outcome": _outcome(found.lo, found.hi),
    }


def _outcome(low: float, high: float) -> Outcome:
    if high < 1:
        return "saves"
    if high <= MARGIN:
        return "no_extra"
    return "extra" if low > MARGIN else "unsettled"


def time_verdict(lines: Sequence[CostLine]) -> Outcome:
    """Over all lines. "No additional cost" says so of every line, at 95% each (an intersection-union test needs no more).

    One line that costs more is enough to contradict it, so there the level is corrected (Bonferroni) for their number.
    """
    if all(line.outcome == "saves" for line in lines):
        return "saves"
    if all(line.outcome in ("saves", "no_extra") for line in lines):
        return "no_extra"
    level = 1 - (1 - LEVEL) / len(lines)
    for line in lines:
        low = median_ratio(parse_seconds(line.seconds), parse_seconds(line.static_seconds), level).lo
        if low is not None and low > MARGIN:
            return "extra"
    return "unsettled"


def memory_verdict(state: int, static_state: int, lines: Sequence[CostFigure]) -> Literal["no_extra", "extra"] | None:
    """Bytes are counted and not sampled: they exceed the margin or they do not. None where no peak was measured."""
    pairs = [(line.peak_bytes, line.static_peak_bytes) for line in lines]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return None
    return "no_extra" if all(a <= MARGIN * b for a, b in [(state, static_state), *known]) else "extra"


def cost_block(head: dict[str, Any], lines: Sequence[dict[str, Any]]) -> CostBlock:
    """A block from what was measured (``seconds``, ``static_seconds``, ``tokens``, peaks): the rest is computed."""
    made = [CostLine(**line, **figures(line["tokens"], line["seconds"], line["static_seconds"])) for line in lines]
    memory = memory_verdict(head["state_bytes"], head["static_state_bytes"], made)
    return CostBlock(**head, margin=MARGIN, time=time_verdict(made), memory=memory, lines=made)


def of_record(head: CostBlock | dict[str, Any], record: Record) -> bool:
    """Whether a cost is of this record's model: its name, seed, weights, capacity and state."""
    data = head if isinstance(head, dict) else head.model_dump()
    mine = [data[key] for key in ("label", "seed", "capacity", "state_bytes", "checkpoint_sha256")]
    theirs = [record.label, record.seed, record.capacity, record.state_bytes, record.identity.get("checkpoint_sha256")]
    return mine == theirs


def cost_reasons(block: CostBlock) -> Iterator[str]:
    """Why a block does not add up: its figures must follow from its seconds."""
    places = [(line.measure, line.length) for line in block.lines]
    if len(set(places)) != len(places):
        yield "its cost has a line that stands twice"
    for line in block.lines:
        where = f"its cost of {line.measure} at {line.length}"
        try:
            again = figures(line.tokens, line.seconds, line.static_seconds)
        except ValueError as error:
            yield f"{where}: {error}"
            return
        for name, value in again.items():
            mine = getattr(line, name)
            near = abs(mine - value) <= 1e-7 * max(1.0, abs(value)) if isinstance(value, float) else mine == value
            if not near:
                yield f"{where}: {name} is {mine}, its seconds give {value}"
    if (time := time_verdict(block.lines)) != block.time:
        yield f"its cost is called {block.time}, its seconds give {time}"
    if (memory := memory_verdict(block.state_bytes, block.static_state_bytes, block.lines)) != block.memory:
        yield f"its cost in memory is called {block.memory}, its bytes give {memory}"


def read_cost(path: Path) -> list[CostBlock]:
    """The blocks of a cost.json, [] when there is none. InvalidFileError (exit 3) for one that is malformed."""
    if not path.is_file():
        return []
    file: CostFile = read_as(CostFile, path)
    return file.costs


def machine_key(machine: Machine) -> str:
    """What groups figures: equal for one description of a machine."""
    return digest(machine.model_dump())[:16]


def machine_words(machine: Machine) -> str:
    """A machine in one line."""
    threads = f"{machine.threads} thread{'s' if machine.threads > 1 else ''}"
    return f"{machine.cpu}, {machine.cores} cores, {threads}, {machine.system}, Python {machine.python}, torch {machine.torch}"


def load_words(blocks: Sequence[CostBlock | CostSummary]) -> str:
    """How busy the machine was; '' where nobody knows."""
    loads = [line.load for block in blocks for line in block.lines if line.load is not None]
    return f"load of the machine when a line began: {min(loads):.1f} to {max(loads):.1f}" if loads else ""


def sentences(block: CostBlock | CostSummary) -> list[str]:
    """The verdicts in words, with the lines behind them."""
    found = [f"{block.label}: {WORDS[block.time]} in time against its static twin (margin {block.margin})"]
    for outcome, words in WORDS.items():
        mine = [f"{line.measure} at {line.length:,} x{line.ratio:.3f}" for line in block.lines if line.outcome == outcome]
        if mine:
            found[0] += f"; {words}: {', '.join(mine)}"
    if block.memory is not None:
        found.append(f"{block.label}: {WORDS[block.memory]} in memory (state and peak)")
    return [*found, f"{block.label}: measured with seed {block.seed} by {block.program}"]
