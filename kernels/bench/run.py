"""Check every kernel against its definition, then time it: forward, forward + backward, static and scheduled.

    OMP_NUM_THREADS=1 python kernels/bench/run.py [--device cpu|cuda] [--ops delta comba linear titans_linear]
        [--shapes B,T,H,K,V[,C] ...] [--repeats N] [--json FILE] [--assert-goals]

What fails its check is reported and never timed, and the exit code is 1. Modes: static; open, a mask that leaves everything
open (what masking costs); key and value, a uniform schedule of 16 blocks over the pass. What is compared is called in
turn, round after round, and a ratio is the median over the rounds with its quartiles, so drift hits both sides.

FLOPs and bytes are those of `proteus_kernels.costs`, for a schedule at its mean number of open coordinates. Fractions are of
two ceilings: on a CPU the measured rates of a matrix product and of a copy; on a GPU of CEILINGS the rates given there.
The backward formula makes states again, as the kernels do; the torch form keeps them and can seem to exceed a ceiling.
On a CPU inputs are float32 and shapes small (under two minutes); on a GPU bfloat16 and large (under five).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ops import TOLERANCE, Shape, active, inputs, step, why_not, worst_error

from proteus_kernels.costs import FORMULAS
from proteus_kernels.dispatch import OPS

MODES = ("static", "open", "key", "value")
CEILINGS = {"H200": (790e12, 4.3e12)}
"""FLOP/s of bf16 products and bytes/s of a copy, by a part of the device's name."""
SHAPES = {
    "cpu": ["1,4096,4,32,32,32", "1,4096,2,128,128"],
    "cuda": ["8,8192,16,64,64", "8,8192,16,128,128", "4,8192,8,256,256"],
}
FORWARD_MS, OPEN_OVERHEAD, FASTER_AT_256 = 2.5, 1.03, 1.2
"""Goals on an H200: forward of B=8 T=8192 H=16 K=V=128; a full mask over none; static over a key schedule at K = 256."""
Timer = Callable[[Callable[[], None]], float]


def timer(device: str) -> Timer:
    """Seconds of one call: of the device, or of the one thread, so what else runs on the core does not count."""

    def on_cpu(run: Callable[[], None]) -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    def on_gpu(run: Callable[[], None]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(5_000_000)  # some milliseconds, in which the launches of the call queue up behind it
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    return on_cpu if device == "cpu" else on_gpu


def in_turn(runs: dict[str, Callable[[], None]], repeats: int, clock: Timer) -> dict[str, list[float]]:
    """Seconds of each over the rounds, after a warm-up of all. Each round begins with another: the first often pays more."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for round_ in range(repeats + 2):
        for i in range(len(names)):
            name = names[(round_ + i) % len(names)]
            seconds = clock(runs[name])
            if round_ > 1:
                times[name].append(seconds)
    return times


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"q1": round(low, 4), "median": round(middle, 4), "q3": round(high, 4)}


def ceilings(device: str, clock: Timer) -> dict[str, Any]:
    """FLOP/s and bytes/s, and where they are from."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    for part, (rate, bandwidth) in CEILINGS.items():
        if device == "cuda" and part in name:
            return {"name": name, "source": "table", "flops": rate, "bytes": bandwidth}
    n, dtype = (1024, torch.float32) if device == "cpu" else (8192, torch.bfloat16)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    source = torch.empty(64 * 2**20 // 4, device=device).fill_(1.0)
    target = torch.empty_like(source)
    times = in_turn({"product": lambda: a @ b, "copy": lambda: target.copy_(source)}, 15, clock)  # type: ignore[dict-item]
    product, copy = min(times["product"]), min(times["copy"])  # a ceiling: the best that was seen
    return {"name": name, "source": "measured", "flops": 2 * n**3 / product, "bytes": 2 * source.nbytes / copy}


def check(op: str, backend: str, shape: Shape, mode: str, device: str) -> dict[str, Any]:
    """Error against the definition on a short pass of the same K, V and C, its unlocks inside chunks."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    short = Shape(B=1, T=2 * shape.C + 21, H=2, K=shape.K, V=shape.V, C=shape.C)
    error = worst_error(op, backend, short, mode, dtype, device)
    return {"error": error, "tolerance": TOLERANCE[dtype], "passed": error <= TOLERANCE[dtype]}


def figures(op: str, shape: Shape, mode: str, backward: bool, seconds: list[float], top: dict[str, Any]) -> dict[str, Any]:
    """Time of the pass, its FLOPs and bytes by formula, and what part of either ceiling that is."""
    opened, axis = active(mode, shape)
    mean = shape.V if axis == "value" else shape.K
    if opened is not None:
        mean = statistics.fmean(opened)  # type: ignore[assignment]
    K, V = (shape.K, mean) if axis == "value" else (mean, shape.V)
    costs = [f(K, V, shape.C) for f in FORMULAS[op][: 2 if backward else 1]]
    heads, median = shape.B * shape.T * shape.H, statistics.median(seconds)
    flops, moved, least = (heads * sum(getattr(c, x) for c in costs) for x in ("flops", "moved", "least"))
    return {
        "ms": {k: round(v, 4) for k, v in spread([1e3 * s for s in seconds]).items()},
        "flops": flops, "bytes_moved": moved, "bytes_least": least,
        "of_flops": round(flops / median / top["flops"], 4), "of_bytes": round(moved / median / top["bytes"], 4),
    }  # fmt: skip


def measure(op: str, shape: Shape, device: str, repeats: int, clock: Timer, top: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of every backend and mode: checked, then timed in turn."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x = inputs(op, shape, dtype, device)
    rows = []
    for backend in ("chunk", *OPS[op]):
        for mode in MODES:
            row = {"op": op, "backend": backend, "mode": mode, "shape": str(shape), "skipped": why_not(op, backend, x, shape, mode)}
            rows.append(row if row["skipped"] else row | {"check": check(op, backend, shape, mode, device)})
    for name, backward in (("forward", False), ("both", True)):
        good = {f"{r['backend']} {r['mode']}": r for r in rows if r.get("check", {}).get("passed") and "out_of_memory" not in r}
        runs = {n: step(op, r["backend"], x, shape, r["mode"], backward) for n, r in good.items()}
        runs = {n: run for n, run in runs.items() if _fits(run, good[n])}
        times = in_turn(runs, repeats, clock)
        for label, seconds in times.items():
            row = good[label]
            row[name] = figures(op, shape, row["mode"], backward, seconds, top)
            for against in (f"{row['backend']} static", "fla static"):
                if against in times and against != label:
                    ratios = [a / b for a, b in zip(seconds, times[against], strict=True)]
                    row[name][f"over {against.replace(row['backend'] + ' ', '')}"] = spread(ratios)
    return rows


def _fits(run: Callable[[], None], row: dict[str, Any]) -> bool:
    try:
        run()
    except torch.cuda.OutOfMemoryError:
        row["out_of_memory"] = True
        torch.cuda.empty_cache()
        return False
    return True


def broken_goals(rows: list[dict[str, Any]]) -> list[str]:
    """The goals for a GPU that these rows do not meet, a line each; a goal without a row is not met."""
    wrong = []

    def hold(what: str, op: str, mode: str, shape: str, value: Callable[[dict[str, Any]], float], limit: float) -> None:
        found = [r for r in rows if (r["op"], r["backend"], r["mode"]) == (op, "triton", mode) and shape in r["shape"]]
        reached = [value(r) for r in found if "both" in r]
        if not reached:
            wrong.append(f"{what}: not measured")
        wrong.extend(f"{what}: {x:.3f} > {limit}" for x in reached if x > limit)

    for op in ("delta", "titans_linear"):
        milliseconds = lambda r: r["forward"]["ms"]["median"]  # noqa: E731
        hold(f"{op} forward, ms", op, "static", "B=8 T=8192 H=16 K=128 V=128 C=64", milliseconds, FORWARD_MS)
        for part in ("forward", "both"):
            ratio = lambda r, part=part: r[part]["over static"]["median"]  # noqa: E731
            hold(f"{op} {part}, full mask over none", op, "open", "K=128", ratio, OPEN_OVERHEAD)
            hold(f"{op} {part}, schedule over static", op, "key", "K=256", ratio, 1 / FASTER_AT_256)
    for row in rows:
        for part in ("forward", "both"):
            over = row.get(part, {}).get("over fla static", {}).get("median", 0) if row["backend"] == "triton" else 0
            if row["mode"] == "static" and over > 1:
                wrong.append(f"{row['op']} {part} at {row['shape']}: {over:.3f} of fla's time")
    return wrong


def line(row: dict[str, Any]) -> str:
    name = f"{row['op']}--{row['backend']} {row['mode']} {row['shape']}"
    if row["skipped"]:
        return f"{row['op']}--{row['backend']}: not run, {row['skipped']}"
    if not row["check"]["passed"]:
        return f"{name}: WRONG, error {row['check']['error']:.1e}, not timed"
    if "both" not in row:
        return f"{name}: out of memory"
    parts = []
    for part in ("forward", "both"):
        f = row[part]
        ratio = f", {f['over static']['median']:.3f} of static" if "over static" in f else ""
        parts.append(
            f"{part} {f['ms']['median']:.2f} ms, {f['flops'] / 1e9:.2f} GFLOP {100 * f['of_flops']:.1f}%, "
            f"{f['bytes_moved'] / 1e6:.0f} MB {100 * f['of_bytes']:.1f}%{ratio}"
        )
    return f"{name}: error {row['check']['error']:.0e}; " + "; ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ops", nargs="+", choices=list(FORMULAS), default=list(FORMULAS))
    parser.add_argument("--shapes", nargs="+", type=Shape.parse)
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--assert-goals", action="store_true", help="the goals for an H200; only with --device cuda")
    args = parser.parse_args()
    if args.assert_goals and args.device != "cuda":
        parser.error("the goals are for a GPU: --assert-goals needs --device cuda")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device")
    torch.manual_seed(0)
    if args.device == "cpu":
        torch.set_num_threads(1)
        torch.empty(30 * 2**20, dtype=torch.uint8)  # freed at once: from here on the C library keeps blocks of this size
    clock = timer(args.device)
    top = ceilings(args.device, clock)
    print(f"{top['name']}: {top['flops'] / 1e9:.0f} GFLOP/s, {top['bytes'] / 1e9:.1f} GB/s ({top['source']})", flush=True)
    rows = []
    for shape in args.shapes or map(Shape.parse, SHAPES[args.device]):
        for op in args.ops:
            new = measure(op, shape, args.device, args.repeats or (5 if args.device == "cpu" else 20), clock, top)
            for text in dict.fromkeys(map(line, new)):
                print(text, flush=True)
            rows += new
    if args.json:
        found = {"device": args.device, "ceilings": top, "torch": torch.__version__, "rows": rows}
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [line(r) for r in rows if not r["skipped"] and not r["check"]["passed"]]
    wrong += broken_goals(rows) if args.assert_goals else []
    for text in wrong:
        print(text, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
