"""Simulated experiments with a known truth: what an interval promises is checked on these.

The design is that of a real run: S training seeds x N items that all seeds (and both methods) share. Seeds and items are
drawn anew in every replication, because the target is new seeds and new items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from proteus_bench.stats.bootstrap import pigeonhole_bootstrap
from proteus_bench.stats.crossed import components, crossed_anova, variance_and_df
from proteus_bench.stats.intervals import ends

Kind = Literal["binary", "graded", "normal"]
NEEDLES = 4


@dataclass(frozen=True)
class Design:
    """One experiment. Seeds, items and what is left act on a probit scale, so that the true mean is known exactly.

    kind: binary scores, graded ones (hits out of four needles), or normal ones (sd 0.3 between items, 0.4 left over, and
    ``seed_sd`` between seeds, all on the scale of the score). mean: the true score. gap: with a value, the scores are
    paired differences to a second method whose probit is lower by ``gap`` standard deviations.
    """

    kind: Kind
    seeds: int
    items: int
    mean: float = 0.5
    seed_sd: float = 0.1
    item_sd: float = 1.0
    gap: float | None = None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """What the mean can be: scores, differences, or anything."""
        if self.kind == "normal":
            return None
        return (0.0, 1.0) if self.gap is None else (-1.0, 1.0)


def simulate(design: Design, replications: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Scores (or paired differences) ``[R, S, N]`` and the true mean."""
    from scipy.special import ndtr, ndtri

    shape = (replications, design.seeds, design.items)
    if design.kind == "normal":
        item = rng.normal(0, 0.3, (replications, 1, design.items))
        seed = rng.normal(0, design.seed_sd, (replications, design.seeds, 1))
        return design.mean + seed + item + rng.normal(0, 0.4, shape), design.mean
    scale = float(np.sqrt(1 + design.seed_sd**2 + design.item_sd**2))
    centre = float(ndtri(design.mean)) * scale
    item = rng.normal(0, design.item_sd, (replications, 1, design.items))

    def arm(shift: float) -> np.ndarray:
        p = ndtr(shift + item + rng.normal(0, design.seed_sd, (replications, design.seeds, 1)))
        if design.kind == "binary":
            return (rng.random(shape) < p).astype(np.float64)
        return rng.binomial(NEEDLES, p) / NEEDLES

    first = arm(centre)
    if design.gap is None:
        return first, design.mean
    return first - arm(centre - design.gap * scale), design.mean - float(ndtr(centre / scale - design.gap))


Hits = Callable[[np.ndarray, float, Design], np.ndarray]
"""Whether the interval of each replication ``[R, S, N]`` holds the truth, ``[R]``."""


def anova_hits(D: np.ndarray, truth: float, design: Design) -> np.ndarray:
    """The shipped primary interval (`crossed_anova`), on all replications at once."""
    c = components(D)
    variance, df = variance_and_df(c)
    lo, hi = ends(c.mean, np.sqrt(variance), df, 0.95, design.bounds)
    for index in np.flatnonzero(variance <= 0):  # constant scores take another way
        found = crossed_anova(D[index], bounds=design.bounds)
        lo[index], hi[index] = found.lo, found.hi
    return (lo <= truth) & (truth <= hi)


def pigeonhole_hits(D: np.ndarray, truth: float, design: Design, B: int = 1000) -> np.ndarray:
    """The shipped bootstrap, one replication after the other."""
    found = [pigeonhole_bootstrap(d, B, seed=i, bounds=design.bounds or (-1e9, 1e9)).overall for i, d in enumerate(D)]
    return np.array([i.lo is not None and i.hi is not None and i.lo <= truth <= i.hi for i in found])


def pooled_hits(D: np.ndarray, truth: float, design: Design) -> np.ndarray:
    """Wrong, and known to be: all S x N scores as independent (negative control)."""
    flat = D.reshape(len(D), -1)
    return np.abs(flat.mean(axis=1) - truth) <= 1.96 * flat.std(axis=1, ddof=1) / np.sqrt(flat.shape[1])


def seed_percentile_hits(D: np.ndarray, truth: float, design: Design) -> np.ndarray:
    """Wrong, and known to be: a percentile bootstrap over the seed means (negative control)."""
    rng = np.random.default_rng(8)
    seeds = D.shape[1]
    picks = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=999).T / seeds
    lo, hi = np.quantile(D.mean(axis=2) @ picks, [0.025, 0.975], axis=1)
    return (lo <= truth) & (truth <= hi)


def nested_hits(D: np.ndarray, truth: float, design: Design, B: int = 400) -> np.ndarray:
    """Wrong here, and known to be: items resampled anew inside every drawn seed, as if no item were shared."""
    rng = np.random.default_rng(7)
    out = np.empty(len(D), dtype=bool)
    S, N = D.shape[1:]
    for index, d in enumerate(D):
        rows = rng.integers(0, S, size=(B, S, 1))
        columns = rng.integers(0, N, size=(B, S, N))
        lo, hi = np.quantile(d[rows, columns].mean(axis=(1, 2)), [0.025, 0.975])
        out[index] = lo <= truth <= hi
    return out


def coverage(hits: Hits, design: Design, replications: int, seed: int = 0, batch_cells: int = 1 << 21) -> float:
    """Share of replications whose interval holds the truth, in bounded memory."""
    rng = np.random.default_rng([seed, design.seeds, design.items])
    step = max(1, batch_cells // (design.seeds * design.items))
    total = 0
    for start in range(0, replications, step):
        D, truth = simulate(design, min(step, replications - start), rng)
        total += int(hits(D, truth, design).sum())
    return total / replications
