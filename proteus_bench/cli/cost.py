"""`cost MODEL...`: tokens a second, peak memory and state of a schedule against its static twin, measured in pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import UsageError, unknown
from proteus_bench.leaderboard.cost import (
    FILE,
    WORDS,
    CostBlock,
    Measure,
    load_words,
    machine_words,
    of_record,
    sentences,
)
from proteus_bench.stats.ratio import MIN_PAIRS

if TYPE_CHECKING:
    from proteus_bench.cost.measure import Request

MIN_LENGTH = 128
OUT = Path("runs-out") / "cost.json"


@dataclass(frozen=True)
class Asked:
    """The options as they were given. runs: run folders whose methods get the figures."""

    models: Sequence[str]
    lengths: str
    measures: str
    pairs: int
    decode_tokens: int
    span: str
    wall: bool
    size: str | None
    seed: int
    runs: Sequence[Path]
    out: Path | None


def cost_command(asked: Asked, *, dry_run: bool, as_json: bool) -> int:
    """Measure what the file does not hold yet, save after every line, and show it. Errors carry their own exit codes."""
    request = _request(asked)
    loaded = [_load(text, asked.size, asked.seed, request) for text in dict.fromkeys(asked.models)]
    labels = _labels(asked.runs, [head for _, head in loaded])
    out = asked.out or OUT
    if dry_run:
        _print_plan(request, [head for _, head in loaded], out, as_json)
        return 0
    from proteus_bench.cost.file import document, put_into_run
    from proteus_bench.store import FolderLock, prove_writable

    for folder in (out.parent, *asked.runs):
        prove_writable(folder)
    with FolderLock(out.parent):
        blocks = [_measure(twins, head, request, out) for twins, head in loaded]
    for run, mine in labels.items():
        with FolderLock(run):
            put_into_run(run / FILE, [block for block in blocks if block.label in mine])
    if as_json:
        print_json(document(blocks))
    else:
        _show(blocks, [out, *(run / FILE for run in labels)])
    return 0


def _request(asked: Asked) -> Request:
    if asked.pairs < MIN_PAIRS:
        raise UsageError(f"--pairs must be at least {MIN_PAIRS}, for an interval of 95%")
    measures = tuple(dict.fromkeys(part.strip() for part in asked.measures.split(",")))
    for name in measures:
        if name not in get_args(Measure):
            raise unknown("measure", name, get_args(Measure))
    if asked.span not in ("own", "length"):
        raise unknown("span", asked.span, ("own", "length"))
    try:
        lengths = tuple(sorted({int(part) for part in asked.lengths.split(",")}))
    except ValueError:
        lengths = (0,)
    if lengths[0] < MIN_LENGTH or lengths[-1] > 1 << 24:
        raise UsageError(f"--lengths are tokens from {MIN_LENGTH} on, parted by commas, not {asked.lengths!r}")
    from proteus_bench.cost.measure import Request

    return Request(lengths, measures, asked.pairs, asked.decode_tokens, asked.span, "wall" if asked.wall else "cpu")


def _load(text: str, size: str | None, seed: int, request: Request) -> tuple[Any, dict[str, Any]]:
    """The twins of a model, and whose cost it will be."""
    import torch

    from proteus_bench.backends.local import LocalBackend
    from proteus_bench.cost.machine import machine, program
    from proteus_bench.cost.measure import Twins
    from proteus_bench.grammar import ZOO
    from proteus_bench.runner.models import parse

    spec = parse(text).with_size(size)
    if spec.source != ZOO:
        raise UsageError(f"{text} is no model of the zoo: it has no schedule whose cost could be measured")
    backend = LocalBackend(spec, seed)
    twins, info = Twins.of(backend.model, str(spec)), backend.info
    state, static_state = twins.state_bytes()
    return twins, {
        "label": str(spec), "seed": seed, "checkpoint_sha256": info.sha256, "capacity": info.capacity, "span": request.span,
        "n_params": info.n_params, "state_bytes": state, "static_state_bytes": static_state, "clock": request.clock,
        "machine": machine(torch.__version__, 1), "program": program(),
    }  # fmt: skip


def _labels(runs: Sequence[Path], heads: Sequence[dict[str, Any]]) -> dict[Path, set[str]]:
    """Which of the models each run holds. UsageError for a run with none, before anything is measured."""
    from proteus_bench.store.run_file import read_run_file

    found = {}
    for run in runs:
        records = read_run_file(run / "run.json").records
        found[run] = {head["label"] for head in heads if any(of_record(head, record) for record in records)}
        if not found[run]:
            names = ", ".join(head["label"] for head in heads)
            raise UsageError(f"{run} does not hold {names} with seed {heads[0]['seed']} and these weights")
    return found


def _measure(twins: Any, head: dict[str, Any], request: Request, out: Path) -> CostBlock:
    """All lines of one method. Those that the file holds, of the same weights, machine and commit, are not measured again."""
    from proteus_bench.cost.file import block_in, has_line, with_line
    from proteus_bench.cost.measure import line
    from proteus_bench.leaderboard.cost import read_cost

    block = block_in(read_cost(out), head)
    for length in request.lengths:
        for measure in request.measures:
            tokens = request.decode_tokens if measure == "decode" else length
            wanted = {"measure": measure, "length": length, "tokens": tokens, "n": request.pairs}
            words = f"{head['label']}: {measure} at {length:,}"
            if has_line(block, wanted):
                print(f"{words}: stands in {out}", file=sys.stderr)
                continue
            with _progress(words, request.pairs) as tick:
                block = with_line(out, head, line(twins, measure, length, request, tick))
    assert block is not None
    return block


@contextmanager
def _progress(words: str, pairs: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, one plain line elsewhere."""
    if not sys.stderr.isatty():
        print(f"{words}: {pairs} pairs", file=sys.stderr, flush=True)
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(words, total=pairs)
        yield lambda: bar.advance(task)


def _print_plan(request: Request, heads: Sequence[dict[str, Any]], out: Path, as_json: bool) -> None:
    lines = len(request.lengths) * len(request.measures)
    calls = 2 * lines * (request.pairs + 2) * len(heads)
    if as_json:
        what = {"lengths": list(request.lengths), "measures": list(request.measures), "pairs": request.pairs}
        print_json({"methods": heads, **what, "calls": calls, "out": str(out)})
        return
    for head in heads:
        print(f"{head['label']} seed {head['seed']}: {head['n_params']:,} parameters, state {head['state_bytes']:,} bytes")
    lengths = ", ".join(f"{length:,}" for length in request.lengths)
    print(f"{', '.join(request.measures)} at {lengths} tokens, {request.pairs} pairs each: {calls} calls -> {out}")


def _show(blocks: Sequence[CostBlock], files: Sequence[Path]) -> None:
    rows = [
        (
            block.label, f"{line.length:,}", line.measure, f"{line.tokens_per_second:,.0f}",
            f"{line.static_tokens_per_second:,.0f}", f"{line.ratio:.3f} [{line.ci_low:.3f}, {line.ci_high:.3f}]", line.n,
            _peaks(line.peak_bytes, line.static_peak_bytes), WORDS[line.outcome],
        )
        for block in blocks
        for line in block.lines
    ]  # fmt: skip
    columns = (
        "method", "length", "what", "tokens/s", "static", "time / static [95%]", "n", "peak MB, static", "verdict",
    )  # fmt: skip
    print_table("what a schedule costs", columns, rows, right=(1, 3, 4, 5, 6, 7))
    for block in blocks:
        for sentence in sentences(block):
            print(sentence)
        print(f"{block.label}: state {block.state_bytes:,} bytes, static {block.static_state_bytes:,}; "
              f"span {'its own' if block.span == 'own' else 'each length'}, {block.capacity['span']:,} by itself")
    seconds = "seconds of the thread" if blocks[0].clock == "cpu" else "seconds of the clock"
    print(f"{seconds} on {machine_words(blocks[0].machine)}; {load_words(blocks)}")
    print(f"saved: {', '.join(map(str, files))}")


def _peaks(peak: int | None, static: int | None) -> str:
    return "" if peak is None or static is None else f"{peak / 1e6:.3g}, {static / 1e6:.3g}"
