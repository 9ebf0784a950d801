"""What one context with many questions costs, and how memory grows with context length, on a shipped micro model.

    OMP_NUM_THREADS=1 python benchmarks/serving.py [--model titans --schedule proteus] [--million] [--json FILE]

Ratios are taken within one run: the median of `repeats` calls with 8 questions over the median with 1 question.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from typing import Any

import torch

from proteus_bench.backends.base import AskIds
from proteus_bench.backends.recurrent import answer_recurrent
from proteus_models import zoo


def peak_mb() -> float:
    """Peak resident memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(model: Any, context: list[int], asks: list[AskIds]) -> float:
    start = time.perf_counter()
    answer_recurrent(model, [context], [asks])
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="titans")
    parser.add_argument("--schedule", default="proteus")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--million", action="store_true", help="also a context of 1,048,576 tokens")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    loaded = zoo.load(args.model, args.schedule)
    generator = torch.Generator().manual_seed(0)

    def tokens(n: int) -> list[int]:
        return torch.randint(300, 3000, (n,), generator=generator).tolist()

    context = tokens(16384)
    asks = [AskIds(tokens(20), tokens(7), 10, (-1,)) for _ in range(8)]
    timed(loaded.model, context, asks)
    pairs = [(timed(loaded.model, context, asks[:1]), timed(loaded.model, context, asks)) for _ in range(args.repeats)]
    one, eight = (statistics.median(x) for x in zip(*pairs, strict=True))
    result = {
        "model": f"{args.model}+{args.schedule}", "context_tokens": 16384, "repeats": args.repeats,
        "seconds_1_question": round(one, 3), "seconds_8_questions": round(eight, 3),
        "ratio": round(statistics.median(b / a for a, b in pairs), 3),
        "prefill_tokens_per_s": round(16384 / one), "state_bytes": loaded.model.init_state(1).nbytes,
        "peak_mb_16k": round(peak_mb()),
    }  # fmt: skip
    if args.million:
        long = tokens(1 << 20)
        before = peak_mb()  # the prompt itself, as a list of ints, is the caller's
        seconds = timed(loaded.model, long, asks[:1])
        result |= {
            "seconds_1m": round(seconds, 1),
            "peak_mb_1m": round(peak_mb()),
            "growth_mb": round(peak_mb() - before),
        }
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
