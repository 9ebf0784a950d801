"""The pigeonhole bootstrap: seeds and items resampled independently of each other (Owen's two-way resampling)."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from proteus_bench.stats.crossed import Bounds, _constant, as_tasks
from proteus_bench.stats.intervals import Interval, check_level

# Rows of counts that stay in cache: 512 x 500 items x 8 bytes = 2 MB.
_CHUNK = 512


@dataclass(frozen=True)
class BootstrapResult:
    """Intervals per task and for their weighted mean. ``draws``: resampled means, ``[B, tasks]``."""

    tasks: tuple[Interval, ...]
    overall: Interval
    draws: np.ndarray


def stream(*parts: object) -> np.random.Generator:
    """A PCG64 stream of its own, derived from the text of ``parts`` (a result's hash, a name): no global state."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int.from_bytes(digest, "big"))))


def pigeonhole_bootstrap(
    D: np.ndarray | Sequence[np.ndarray],
    B: int = 10_000,
    seed: int | str = 0,
    level: float = 0.95,
    bounds: Bounds = (0.0, 1.0),
    weights: Sequence[float] | None = None,
) -> BootstrapResult:
    """Percentile intervals of means over ``D[S, N]`` (or one matrix per task) from B resamples of seeds and of items.

    One resample of seeds serves all tasks, because the same checkpoints were scored on all of them; items are resampled
    inside each task. The result depends on the arguments only, bit for bit. One seed gives no interval over seeds
    (``lo`` and ``hi`` None). Constant scores give a Wilson-type bound instead of width zero.
    """
    tasks, w_K = as_tasks(D, weights)
    check_level(level)
    if B < 1:
        raise ValueError(f"B must be at least 1, got {B}")
    seeds = tasks[0].shape[0]
    rng = stream("pigeonhole", seed)
    seeds_BS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=B) / seeds
    draws_BK = np.empty((B, len(tasks)))
    for k, task in enumerate(tasks):
        draws_BK[:, k] = (_item_means(task, B, rng) * seeds_BS).sum(axis=1)
    single = tuple(_percentile(draws_BK[:, k], [task], np.ones(1), level, bounds) for k, task in enumerate(tasks))
    return BootstrapResult(single, _percentile(draws_BK @ w_K, tasks, w_K, level, bounds), draws_BK)


def joint_draws(
    tasks: Sequence[np.ndarray], B: int, seed: int | str = 0, keys: Sequence[Hashable] | None = None
) -> np.ndarray:
    """Per-seed task means under resampling of seeds and items, for statistics that are no means.

    tasks: ``[S, N_k]`` each -> ``[B, S, K]``; or ``[M, S, N_k]`` (M methods on the same seeds and items, drawn alike) ->
    ``[B, M, S, K]``. One draw of seeds serves all tasks and methods, one draw of items all tasks of equal ``keys``.
    """
    rng = stream("joint", seed)
    lead = tasks[0].shape[:-1]
    seeds = lead[-1]
    picks_BS = rng.integers(0, seeds, size=(B, seeds))
    index = picks_BS if len(lead) == 1 else picks_BS[:, None, :]
    groups: dict[Hashable, list[int]] = {}
    for k, key in enumerate(range(len(tasks)) if keys is None else keys):
        groups.setdefault(key, []).append(k)
    draws: list[np.ndarray] = [np.empty(0)] * len(tasks)
    for members in groups.values():
        rows = np.concatenate([tasks[k].reshape(-1, tasks[k].shape[-1]) for k in members])
        found = _item_means(rows, B, rng).reshape(B, len(members), *lead)
        for at, k in enumerate(members):
            means = found[:, at]
            draws[k] = np.take_along_axis(means, np.broadcast_to(index, means.shape), axis=-1)
    return np.stack(draws, axis=-1)


def _item_means(D: np.ndarray, B: int, rng: np.random.Generator) -> np.ndarray:
    """Mean of each seed's row under B resamples of the columns, ``[B, S]``: counts x matrix.

    Counting uniform draws gives multinomial counts, about ten times faster than `Generator.multinomial` for wide N.
    """
    items = D.shape[1]
    columns_NS = np.ascontiguousarray(D.T) / items
    out_BS = np.empty((B, D.shape[0]))
    offset = np.arange(_CHUNK, dtype=np.int64)[:, None] * items
    for start in range(0, B, _CHUNK):
        rows = min(_CHUNK, B - start)
        picks = rng.integers(0, items, size=(rows, items), dtype=np.int32) + offset[:rows]
        counts = np.bincount(picks.ravel(), minlength=rows * items).reshape(rows, items)
        out_BS[start : start + rows] = counts.astype(np.float64) @ columns_NS
    return out_BS


def _percentile(
    draws_B: np.ndarray, tasks: list[np.ndarray], w_K: np.ndarray, level: float, bounds: Bounds
) -> Interval:
    mean = float(sum(w * task.mean() for w, task in zip(w_K, tasks, strict=True)))
    items = sum(task.shape[1] for task in tasks)
    if tasks[0].shape[0] < 2:
        note = "one seed: no interval over seeds"
        return Interval(mean, None, None, items, "pigeonhole_bootstrap", level, note=note)
    if all(np.ptp(task) == 0 for task in tasks):
        lo, hi = _constant(tasks, w_K, level, bounds)
        return Interval(mean, lo, hi, items, "wilson_constant", level, note="all scores equal: bound over items only")
    lo, hi = (float(x) for x in np.quantile(draws_B, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(mean, lo, hi, items, "pigeonhole_bootstrap", level, se=float(draws_B.std()))
