"""Training throughput (forward + backward) of one mixer: chunked form against definition and against titans-pytorch.

    OMP_NUM_THREADS=1 python benchmarks/training.py [--length 4096] [--json FILE]

Prints tokens/s, FLOPs by formula and the fraction of this core's measured matmul rate. Compare ratios of one run only.
FLOPs per token and head, forward (a multiply-add is 2), C the chunk: gated delta 6CK + 4CV + 6KV + C^2/3; linear Titans
4CK + 4CV + 8KV + 4C^2/3; MLP Titans with N hidden units 2(K+V)N(3 + 2 + 2) / 2 + 4C(K + 2N + V). Backward counts twice.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from proteus_bench.schedules import Capacity, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS

D, H, K = 128, 4, 32


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """Median wall time after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def speed_ratio(a: Callable[[], Any], b: Callable[[], Any], repeats: int) -> float:
    """Speed of a over speed of b: the median of ratios of calls that stand side by side, after a warm-up of both."""
    a()
    b()
    ratios = []
    for _ in range(repeats):
        t0 = time.perf_counter()
        a()
        t1 = time.perf_counter()
        b()
        ratios.append((time.perf_counter() - t1) / (t1 - t0))
    return statistics.median(ratios)


def matmul_rate() -> float:
    """FLOP/s of a 1024 x 1024 fp32 product on this core."""
    a, b = torch.randn(2, 1024, 1024)
    return 2 * 1024**3 / seconds(lambda: a @ b, 5)


def mixer(kind: str, chunk: int, *, scheduled: bool = False, axis: str | None = None, span: int = 4096) -> Any:
    axis = axis or ("hidden" if kind == "titans-mlp" else "value")
    m0 = "learned" if kind == "titans-mlp" else "zero"
    capacity = Capacity.static(axis=axis, m0=m0)
    if scheduled:
        capacity = Capacity(schedule=Uniform(blocks=16, span=span), axis=axis, m0=m0)
    config = ModelConfig(
        mixer=kind, vocab_size=2, train_length=span, capacity=capacity, d_model=D, n_heads=H, head_k=K, head_v=K,
        chunk=chunk, inner=chunk, memory_hidden=4 * K,
    )  # fmt: skip
    return MIXERS[kind](config)


def flops(kind: str, chunk: int) -> float:
    """Forward and backward, per token, projections (q, k, v, gate, output) included."""
    core = {
        "gdn": 10 * chunk * K + 6 * K * K + chunk**2 / 3,
        "titans": 8 * chunk * K + 8 * K * K + 4 * chunk**2 / 3,
        "titans-mlp": 7 * 2 * K * 4 * K * 2 + 4 * chunk * (2 * K + 8 * K),
    }[kind]
    return 3 * (H * core + 2 * D * 5 * H * K)


def step(module: Any, x: torch.Tensor, form: str) -> None:
    capacity = module.config.capacity
    active = None
    if not capacity.is_static:
        active = capacity.active_coords_range(0, x.shape[1], module.config.axis_dim()).tolist()
    y, _ = module(x, module.init_state(x.shape[0]), active, form)
    y.sum().backward()


def peer(length: int, chunk: int, repeats: int, batch_size: int | None) -> float | None:
    """titans-pytorch's NeuralMemory with a two-layer MLP at equal dims; None when it is not installed.

    batch_size None (its default) takes every gradient of the sequence at the INITIAL weights, which needs no recurrence;
    batch_size = chunk takes it at the start of each chunk, as the paper and our definition do.
    """
    try:
        from titans_pytorch import MemoryMLP, NeuralMemory
    except ImportError:
        return None
    memory = NeuralMemory(
        dim=D,
        chunk_size=chunk,
        dim_head=K,
        heads=H,
        model=MemoryMLP(dim=K, depth=2, expansion_factor=4.0),
        batch_size=batch_size,
    )
    x = torch.randn(1, length, D)

    def run() -> None:
        memory(x)[0].sum().backward()

    return length / seconds(run, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rate, rows = matmul_rate(), []
    x, short = torch.randn(1, args.length, D), torch.randn(1, 512, D)
    for kind in ("gdn", "titans", "titans-mlp"):
        module = mixer(kind, 64)
        fast = args.length / seconds(lambda: step(module, x, "chunk"), args.repeats)  # noqa: B023
        slow = 512 / seconds(lambda: step(module, short, "recurrent"), 2)  # noqa: B023
        twin = mixer(kind, 64, scheduled=True, span=args.length)
        ratio = speed_ratio(lambda: step(twin, x, "chunk"), lambda: step(module, x, "chunk"), args.repeats)  # noqa: B023
        rows.append(
            {
                "mixer": kind, "chunk_tokens_per_s": round(fast), "definition_tokens_per_s": round(slow),
                "chunk_over_definition": round(fast / slow, 1), "scheduled_over_static": round(ratio, 3),
                "flops_per_token": round(flops(kind, 64)), "fraction_of_matmul_rate": round(fast * flops(kind, 64) / rate, 3),
            }
        )  # fmt: skip
    for label, batch_size in (("initial weights (its default)", None), ("chunk-start weights", 64)):
        other = peer(args.length, 64, args.repeats, batch_size)
        if other is not None:
            rows.append(
                {"mixer": f"titans-pytorch NeuralMemory, MLP, gradients at {label}", "chunk_tokens_per_s": round(other)}
            )
            rows[-1]["ours_over_it"] = round(rows[2]["chunk_tokens_per_s"] / other, 2)
    result = {
        "d": D, "heads": H, "head": K, "length": args.length, "chunk": 64, "threads": 1, "repeats": args.repeats,
        "matmul_gflop_per_s": round(rate / 1e9, 1), "torch": torch.__version__, "machine": platform.machine(), "rows": rows,
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
