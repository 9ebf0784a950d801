"""Time of the paired bootstrap at full size: 8 seeds x 500 items x 8 tasks, B = 10,000, one core. Budget: 1 second.

Run: OMP_NUM_THREADS=1 python benchmarks/stats.py
"""

from __future__ import annotations

import json
import time

import numpy as np

from proteus_bench.stats import crossed_anova, pigeonhole_bootstrap


def main() -> None:
    rng = np.random.default_rng(0)
    tasks = [(rng.random((8, 500)) < 0.8).astype(float) - (rng.random((8, 500)) < 0.7) for _ in range(8)]
    crossed_anova(tasks, bounds=(-1, 1))  # pays for SciPy's import
    report = {}
    for name, call in (("bootstrap_s", pigeonhole_bootstrap), ("anova_s", crossed_anova)):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            call(tasks, bounds=(-1.0, 1.0))
            times.append(time.perf_counter() - start)
        report[name] = {"median": round(float(np.median(times)), 4), "min": round(min(times), 4)}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
