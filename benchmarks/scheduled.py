"""Cost of a schedule: time of the scheduled twin over its static twin, forward + backward of a whole micro decoder.

    OMP_NUM_THREADS=1 python benchmarks/scheduled.py [--length 4096] [--pairs 15] [--only gdn,swla] [--json FILE]

For every backbone with a context schedule and every axis that it has: uniform E = 16 (as many blocks as the head axis has
heads), span = length, one thread. Calls alternate, so that a machine's drift hits both; the median of the ratios is printed with
its quartiles. Above 1 the schedule costs time, below 1 it saves some.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from proteus_bench.schedules import Capacity, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM


def twins(mixer: str, axis: str, length: int) -> tuple[DecoderLM, DecoderLM]:
    """The scheduled and the static model on the same weights."""
    learned: Any = "learned" if axis == "hidden" else "zero"
    base = ModelConfig(
        mixer=mixer, vocab_size=3072, train_length=length, capacity=Capacity.static(axis=axis, span=length, m0=learned),  # type: ignore[arg-type]
        theta_max=0.1, memory="mlp" if axis == "hidden" and mixer != "titans-mlp" else "linear",
    )  # fmt: skip
    blocks = 2 if axis == "head" else 16
    capacity = Capacity(schedule=Uniform(blocks=blocks, span=length), axis=axis, m0=learned)  # type: ignore[arg-type]
    torch.manual_seed(0)
    static = DecoderLM(base)
    scheduled = DecoderLM(replace(base, capacity=capacity))
    scheduled.load_state_dict(static.state_dict())
    return scheduled, static


def step(model: DecoderLM, ids: torch.Tensor) -> float:
    """Seconds of one forward and backward; logits at 64 positions only, as in training."""
    began = time.perf_counter()
    h, _ = model.hidden(ids)
    model.logits(h[:, :: max(1, h.shape[1] // 64)]).logsumexp(-1).mean().backward()
    return time.perf_counter() - began


def measure(mixer: str, axis: str, length: int, pairs: int) -> dict[str, Any]:
    scheduled, static = twins(mixer, axis, length)
    ids = torch.randint(3072, (1, length), generator=torch.Generator().manual_seed(0))
    step(scheduled, ids), step(static, ids)
    ratios = []
    for n in range(pairs):
        first, second = (scheduled, static) if n % 2 else (static, scheduled)
        times = {id(model): step(model, ids) for model in (first, second)}
        ratios.append(times[id(scheduled)] / times[id(static)])
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"mixer": mixer, "axis": axis, "ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, mixer in MIXERS.items():
        if mixer.clock != "context" or (args.only and name not in args.only.split(",")):
            continue
        for axis in mixer.axes:
            row = measure(name, axis, args.length, args.pairs)
            rows.append(row)
            print(f"{name:14} {axis:7} {row['ratio']:.3f}  [{row['quartiles'][0]:.3f}, {row['quartiles'][1]:.3f}]", flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"length": args.length, "pairs": args.pairs, "torch": torch.__version__, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
