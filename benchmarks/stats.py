"""Time of the statistics at full size: 8 seeds x 500 items x 8 tasks, B = 10,000, one core. Budget of the paired
bootstrap: 1 second.

Run: OMP_NUM_THREADS=1 python benchmarks/stats.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np

from proteus_bench.stats import crossed_anova, improvement_ci, iqm_ci, pigeonhole_bootstrap, verdict

SEEDS, ITEMS, TASKS, B = 8, 500, 8, 10_000
REPEATS = 5


def seconds(call: Callable[[], object]) -> dict[str, float]:
    """Wall and CPU seconds: the median of the first tells what a user waits, the second what a busy machine hides."""
    wall, cpu = [], []
    for _ in range(REPEATS):
        begun, spent = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - spent)
    return {"wall_median": round(float(np.median(wall)), 4), "cpu_min": round(min(cpu), 4)}


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = ([(rng.random((SEEDS, ITEMS)) < rate).astype(float) for _ in range(TASKS)] for rate in (0.8, 0.7))
    paired = [x - y for x, y in zip(a, b, strict=True)]
    bounds = (-1.0, 1.0)
    crossed_anova(paired, bounds=bounds)  # pays for SciPy's import
    report = {
        "paired bootstrap": seconds(lambda: pigeonhole_bootstrap(paired, B, bounds=bounds)),
        "crossed variance": seconds(lambda: crossed_anova(paired, bounds=bounds)),
        "whole verdict": seconds(lambda: verdict("a", "b", paired, B=B)),
        "interquartile mean with interval": seconds(lambda: iqm_ci(a, B)),
        "probability of improvement with interval, B = 2,000": seconds(lambda: improvement_ci(a, b)),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
