"""Training throughput (forward + backward) of one mixer: chunked form against definition and against titans-pytorch.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--length 4096] [--sizes 128x4 512x16 512x4] [--peers] [--json FILE]

Prints tokens/s, FLOPs by formula and the fraction of this core's measured matmul rate. Seconds are CPU seconds of the one
thread (--wall: of the clock), so what else runs on the core does not count. What is compared, the matmul too, is called in
turn, round after round, and a ratio is the median over the rounds: a busy machine slows both. Compare ratios of one run only.

FLOPs per token and head, forward (a multiply-add is 2): gated delta and linear Titans as in `proteus_kernels.costs`; MLP
Titans, N hidden units, K = V, blocks of c: 22KN (3 products to predict, 4 to write and 4 to read, W and S each) + 4c(K + N)
+ 2c^2. Backward counts twice. Two fractions: at the chunk that is asked for, and at the chunk (block) that the kernel cuts it
into, whose products are fewer: the first is for comparing kernels, the second says how busy the core is.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from proteus_bench.schedules import Capacity, Uniform
from proteus_kernels import costs, wy
from proteus_kernels.titans_runs import BLOCK, block_length
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS

CHUNK = 64
Run = Callable[[], Any]
CLOCK: dict[str, Callable[[], float]] = {"now": time.process_time}


@dataclass(frozen=True)
class Size:
    """Width of the model and number of heads; an MLP memory has four times a head's width of hidden units."""

    d: int
    heads: int

    @property
    def head(self) -> int:
        return self.d // self.heads

    @staticmethod
    def parse(text: str) -> Size:
        d, heads = map(int, text.split("x"))
        return Size(d, heads)


def rounds(runs: dict[str, Run], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, called in turn `repeats` times after a warm-up of all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            start = CLOCK["now"]()
            run()
            times[name].append(CLOCK["now"]() - start)
    return {name: x[1:] for name, x in times.items()}


def ratio(slow: list[float], fast: list[float]) -> dict[str, float]:
    """Speed of `fast` over that of `slow`: median, least and greatest over the rounds."""
    found = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return {"median": round(statistics.median(found), 3), "min": round(found[0], 3), "max": round(found[-1], 3)}


MATMUL = 1024


def matmul() -> Run:
    """A square fp32 product of 2 MATMUL^3 FLOPs."""
    a, b = torch.randn(2, MATMUL, MATMUL)
    return lambda: a @ b


def mixer(kind: str, size: Size, *, scheduled: bool = False, span: int = 4096) -> Any:
    axis = "hidden" if kind == "titans-mlp" else "value"
    m0 = "learned" if kind == "titans-mlp" else "zero"
    capacity = Capacity.static(axis=axis, m0=m0)
    if scheduled:
        capacity = Capacity(schedule=Uniform(blocks=16, span=span), axis=axis, m0=m0)
    config = ModelConfig(
        mixer=kind, vocab_size=2, train_length=span, capacity=capacity, d_model=size.d, n_heads=size.heads,
        head_k=size.head, head_v=size.head, chunk=CHUNK, inner=CHUNK, memory_hidden=4 * size.head,
    )  # fmt: skip
    return MIXERS[kind](config)


def run_chunk(kind: str, size: Size) -> int:
    """Positions of a chunk as it runs."""
    if kind == "gdn":
        return min(CHUNK, wy.BLOCK)
    return block_length(CHUNK, BLOCK if kind == "titans" else size.head)


def flops(kind: str, size: Size, chunk: int) -> float:
    """Forward and backward, per token, projections (q, k, v, gate, output) included."""
    k, n = size.head, 4 * size.head
    core = {
        "gdn": costs.delta(k, k, chunk).flops,
        "titans": costs.titans(k, k, chunk).flops,
        "titans-mlp": 22 * k * n + 4 * chunk * (k + n) + 2 * chunk**2,
    }[kind]
    return 3 * (size.heads * core + 2 * size.d * 5 * size.d)


def step(module: Any, x: torch.Tensor, form: str) -> None:
    capacity = module.config.capacity
    active = None
    if not capacity.is_static:
        active = capacity.active_coords_range(0, x.shape[1], module.config.axis_dim()).tolist()
    y, _ = module(x, module.init_state(x.shape[0]), active, form)
    y.backward(x.detach())  # a dense gradient, as a model has it


def peers(x: torch.Tensor, size: Size) -> dict[str, Run]:
    """Steps of titans-pytorch's NeuralMemory with a two-layer MLP at equal dims; none when it is not installed.

    batch_size None (its default) takes every gradient of the sequence at the INITIAL weights, which needs no recurrence;
    batch_size = chunk takes it at the start of each chunk, as the paper and our definition do. Both share one rate of
    momentum and decay over a chunk, where ours has one a token.
    """
    try:
        from titans_pytorch import MemoryMLP, NeuralMemory
    except ImportError:
        return {}

    def run(batch_size: int | None) -> Run:
        memory = NeuralMemory(
            dim=size.d, chunk_size=CHUNK, dim_head=size.head, heads=size.heads,
            model=MemoryMLP(dim=size.head, depth=2, expansion_factor=4.0), batch_size=batch_size,
        )  # fmt: skip
        return lambda: memory(x)[0].sum().backward()

    return {"initial weights (its default)": run(None), f"chunk-start weights (batch_size={CHUNK})": run(CHUNK)}


def own_row(kind: str, size: Size, length: int, repeats: int) -> dict[str, Any]:
    x, short = (torch.randn(1, n, size.d, requires_grad=True) for n in (length, 512))
    module, twin = mixer(kind, size), mixer(kind, size, scheduled=True, span=length)
    runs = {"matmul": matmul(), "static": lambda: step(module, x, "chunk"), "scheduled": lambda: step(twin, x, "chunk")}
    times, chunk = rounds(runs, repeats), run_chunk(kind, size)
    fast = length / statistics.median(times["static"])
    slow = 512 / statistics.median(rounds({"": lambda: step(module, short, "recurrent")}, 2)[""])
    asked, real = (length * flops(kind, size, c) / (2 * MATMUL**3) for c in (CHUNK, chunk))  # in matmuls
    share = statistics.median(a / b for a, b in zip(times["matmul"], times["static"], strict=True))
    return {
        "mixer": kind, "d": size.d, "heads": size.heads, "head": size.head,
        "chunk_tokens_per_s": round(fast), "definition_tokens_per_s": round(slow),
        "chunk_over_definition": round(fast / slow, 1), "scheduled_over_static": ratio(times["static"], times["scheduled"]),
        "matmul_gflop_per_s": round(2e-9 * MATMUL**3 / statistics.median(times["matmul"]), 1),
        "flops_per_token": round(flops(kind, size, CHUNK)), "fraction_of_matmul_rate": round(asked * share, 3),
        "chunk_that_runs": chunk, "fraction_at_that_chunk": round(real * share, 3),
    }  # fmt: skip


def peer_rows(size: Size, length: int, repeats: int) -> list[dict[str, Any]]:
    x = torch.randn(1, length, size.d)
    others, module = peers(x, size), mixer("titans-mlp", size)
    times = rounds({"ours": lambda: step(module, x, "chunk"), **others}, repeats if others else 0)
    return [
        {
            "peer": f"titans-pytorch NeuralMemory, MLP, gradients at {name}",
            "d": size.d, "heads": size.heads, "head": size.head,
            "tokens_per_s": round(length / statistics.median(times[name])),
            "ours_tokens_per_s": round(length / statistics.median(times["ours"])),
            "ours_over_it": ratio(times[name], times["ours"]),
        }
        for name in others
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", type=Size.parse, default=[Size(128, 4), Size(512, 16), Size(512, 4)])
    parser.add_argument("--peers", action="store_true", help="the comparison with titans-pytorch alone")
    parser.add_argument("--wall", action="store_true", help="seconds of the clock instead of the thread")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.wall:
        CLOCK["now"] = time.perf_counter
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for size in args.sizes:
        if not args.peers:
            kinds = ("gdn", "titans", "titans-mlp")
            rows += [own_row(kind, size, args.length, args.repeats) for kind in kinds]
        rows += peer_rows(size, args.length, args.repeats)
    result = {
        "length": args.length, "chunk": CHUNK, "threads": 1, "repeats": args.repeats,
        "seconds": "wall" if args.wall else "cpu",
        "torch": torch.__version__, "machine": platform.machine(), "rows": rows,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
