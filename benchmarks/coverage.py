"""Simulated coverage of every interval, and of the wrong ones that must fail. Prints the tables of docs/statistics.md.

Run: OMP_NUM_THREADS=1 python benchmarks/coverage.py [--quick]     (about two minutes on one idle core; --quick: seconds)
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import numpy as np

from proteus_bench.stats import crossed_anova
from proteus_bench.stats.simulate import (
    Design,
    Kind,
    anova_hits,
    coverage,
    nested_hits,
    pigeonhole_hits,
    pooled_hits,
    seed_percentile_hits,
    simulate,
)

SEEDS = (3, 5, 8)
ITEMS = (50, 500)
KINDS: tuple[Kind, ...] = ("binary", "graded")


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*names: str) -> None:
    row(*names)
    row(*("--:" if index > 1 else "---" for index in range(len(names))))


def shown(values: Sequence[float]) -> str:
    """Lowest and highest coverage over the settings of a cell."""
    return f"{100 * min(values):.1f}-{100 * max(values):.1f}"


def primary(factor: float) -> None:
    print("\nPrimary interval (crossed variance), lowest and highest over true score .5 and .8 and seed sd 0, .1, .3\n")
    head("S", "N", "binary", "graded", "binary, paired", "graded, paired")
    for seeds, items in itertools.product(SEEDS, ITEMS):
        cells = []
        for gap, kind in itertools.product((None, 0.3), KINDS):
            settings = itertools.product((0.5, 0.8), (0.0, 0.1, 0.3))
            designs = [Design(kind, seeds, items, mean, sd, gap=gap) for mean, sd in settings]
            cells.append(shown([coverage(anova_hits, d, int(factor * (4000 if items < 100 else 2000))) for d in designs]))
        row(seeds, items, *cells)


def corners(factor: float) -> None:
    print("\nCorners: true score .95 (binary), and two seeds\n")
    head("what", "N", "S = 2", "S = 3", "S = 5", "S = 8")
    for name, items, mean, gap in (
        ("score .95", 50, 0.95, None),
        ("score .95", 500, 0.95, None),
        ("paired, .5", 50, 0.5, 0.3),
        ("paired, .5", 500, 0.5, 0.3),
    ):
        cells = []
        for seeds in (2, 3, 5, 8):
            designs = [Design("binary", seeds, items, mean, sd, gap=gap) for sd in (0.0, 0.1, 0.3)]
            cells.append(shown([coverage(anova_hits, d, int(factor * (3000 if items < 100 else 1000))) for d in designs]))
        row(name, items, *cells)


def methods(factor: float) -> None:
    print("\nThe same data through other methods (normal scores: seed sd .03, item .3, residual .4)\n")
    head("method", "N", "S = 3", "S = 5", "S = 8")
    for name, hits, replications in (
        ("crossed variance (primary)", anova_hits, 4000),
        ("pigeonhole bootstrap", pigeonhole_hits, 600),
        ("WRONG: all scores independent", pooled_hits, 4000),
        ("WRONG: percentile over seeds", seed_percentile_hits, 4000),
        ("WRONG: seeds, then items inside", nested_hits, 300),
    ):
        for items in ITEMS:
            designs = [Design("normal", seeds, items, 0.0, 0.03) for seeds in SEEDS]
            count = int(factor * replications / (1 if items < 100 else 2))
            row(name, items, *(f"{100 * coverage(hits, d, max(20, count)):.1f}" for d in designs))
    print("\nSeeds that differ much (sd .08, N = 500)\n")
    head("method", "", "S = 3", "S = 5", "S = 8")
    for name, hits, replications in (("crossed variance", anova_hits, 2000), ("pigeonhole", pigeonhole_hits, 600)):
        designs = [Design("normal", seeds, 500, 0.0, 0.08) for seeds in SEEDS]
        row(name, "", *(f"{100 * coverage(hits, d, max(20, int(factor * replications))):.1f}" for d in designs))


def suite(factor: float) -> None:
    print("\nMean over a suite of 8 tasks of 50 items: one effect of a checkpoint on all tasks (sd .2), paired, binary\n")
    head("S", "seed sd of each task", "coverage")
    for seeds, sd in itertools.product(SEEDS, (0.0, 0.2)):
        rng = np.random.default_rng([seeds, int(10 * sd)])
        hits, count = 0, max(20, int(factor * 1500))
        for _ in range(count):
            tasks, truth = _suite(seeds, sd, rng)
            found = crossed_anova(tasks, bounds=(-1.0, 1.0))
            hits += found.lo is not None and found.hi is not None and found.lo <= truth <= found.hi
        row(seeds, sd, f"{100 * hits / count:.1f}")


def _suite(seeds: int, sd: float, rng: np.random.Generator) -> tuple[list[np.ndarray], float]:
    """Differences of two methods of equal truth whose checkpoints are better or worse on all tasks together."""
    shared = rng.normal(0, 0.2, (2, seeds, 1))
    tasks = []
    for _ in range(8):
        item = rng.normal(0, 1, (1, 50))
        own = rng.normal(0, sd, (2, seeds, 1)) if sd else np.zeros((2, seeds, 1))
        sides = (item + shared + own + rng.normal(0, 1, (2, seeds, 50))) > 0
        tasks.append(sides[0].astype(np.float64) - sides[1])
    return tasks, 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few replications: does it run?")
    factor = 0.02 if parser.parse_args().quick else 1.0
    simulate(Design("binary", 2, 2), 1, np.random.default_rng(0))  # pays for SciPy's import
    for part in (primary, corners, methods, suite):
        part(factor)


if __name__ == "__main__":
    main()
