"""Cost of a schedule while decoding: time of one position of the scheduled model over its static twin, inside the span.

    OMP_NUM_THREADS=1 python benchmarks/decoding.py [--models gdn,titans,comba] [--axes none,value,key,head] [--pairs 1500]

Both are the same trained model of the zoo (batch 1, a context of 1,024 tokens behind it), one under uniform E = 16 (E = 2 on the
head axis), the other without a schedule. Calls alternate and change order; CPU seconds of one thread. `none` runs the static
model against itself: what the measurement itself gives.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from statistics import median, quantiles

import torch

from proteus_bench.cost.measure import paired
from proteus_bench.schedules import Capacity, Uniform
from proteus_models import zoo

CONTEXT, SPAN = 1024, 8192


def measure(name: str, axis: str, pairs: int) -> str:
    models = []
    for scheduled in (axis != "none", False):
        model = zoo.load(name, "static", "micro", 0).model.eval()
        if scheduled:
            model.set_capacity(Capacity(schedule=Uniform(blocks=2 if axis == "head" else 16, span=SPAN), axis=axis))
        models.append(model)
    ids = torch.randint(models[0].config.vocab_size, (1, CONTEXT), generator=torch.Generator().manual_seed(0))
    states = [model.prefill(ids)[1] for model in models]

    def step(which: int) -> None:
        _, states[which] = models[which].prefill(ids[:, :1], states[which])

    seconds = paired(partial(step, 0), partial(step, 1), pairs, time.process_time, lambda: None)
    low, middle, high = quantiles([a / b for a, b in zip(*seconds, strict=True)], n=4)
    return f"{name:10s} {axis:6s} {middle:6.3f}  [{low:.3f}, {high:.3f}]  {1e6 * median(seconds[1]):7.0f} us static, n = {pairs}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gdn,titans,comba")
    parser.add_argument("--axes", default="none,value,key,head")
    parser.add_argument("--pairs", type=int, default=1500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in args.models.split(","):
            for axis in args.axes.split(","):
                print(measure(name, axis, args.pairs), flush=True)


if __name__ == "__main__":
    main()
