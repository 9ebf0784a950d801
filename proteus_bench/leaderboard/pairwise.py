"""All pairs of a board at once: the paired crossed ANOVA of `stats.verdict`, from Gram matrices of the methods' effects.

A difference of two methods has row, column and residual effects that are differences of theirs, so every sum of squares
that the test needs is G_aa + G_bb - 2 G_ab. A thousand methods (half a million pairs) take a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proteus_bench.stats import holm, verdict
from proteus_bench.stats.ranks import Rank

LEVEL = 0.95
# A sum of squares below this share of its parts is a rounding error of the subtraction.
_NOTHING = 1e-10
# Variances that are equal up to rounding count as equal, on the side of fewer degrees of freedom.
_BELOW = 1 - 1e-9


@dataclass(frozen=True)
class Method:
    """One method: scores ``[S, N]`` a task, the tasks in one order for all methods, rows in the order of ``seeds``."""

    name: str
    seeds: tuple[int, ...]
    tasks: tuple[np.ndarray, ...]


def pair_tests(
    methods: Sequence[Method], weights: Sequence[float] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(mean difference over tasks ``[M, M]``, two-sided p ``[M, M]``) of row less column, over the seeds both have.

    ``weights`` of the tasks sum to one (equal by default).
    p is 1 on the diagonal and for two methods that share less than two seeds: nothing is claimed of those.
    """
    count = len(methods)
    mean_MM, p_MM = np.zeros((count, count)), np.ones((count, count))
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, method in enumerate(methods):
        groups.setdefault(method.seeds, []).append(index)
    listed = sorted(groups.items())
    for i, (left, a) in enumerate(listed):
        for right, b in listed[i:]:
            shared = sorted(set(left) & set(right))
            if len(shared) < 2:
                continue
            members = a if left == right else [*a, *b]
            mean, p = _tests([_restricted(methods[m], shared) for m in members], weights)
            at = np.ix_(members, members)
            if left == right:
                mean_MM[at], p_MM[at] = mean, p
            else:
                rows, columns = slice(0, len(a)), slice(len(a), None)
                mean_MM[np.ix_(a, b)], p_MM[np.ix_(a, b)] = mean[rows, columns], p[rows, columns]
                mean_MM[np.ix_(b, a)], p_MM[np.ix_(b, a)] = mean[columns, rows], p[columns, rows]
    return mean_MM, p_MM


def _restricted(method: Method, seeds: Sequence[int]) -> Method:
    rows = [method.seeds.index(seed) for seed in seeds]
    return Method(method.name, tuple(seeds), tuple(task[rows] for task in method.tasks))


def _tests(methods: Sequence[Method], weights: Sequence[float] | None) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import stdtr

    seeds, tasks = len(methods[0].seeds), len(methods[0].tasks)
    w_K = np.full(tasks, 1 / tasks) if weights is None else np.asarray(weights, dtype=np.float64)
    items_K = np.array([task.shape[1] for task in methods[0].tasks])
    stacked = [np.stack([method.tasks[k] for method in methods]) for k in range(len(items_K))]
    means_KM = np.stack([scores.mean(axis=(1, 2)) for scores in stacked])
    mean_M = w_K @ means_KM
    mean_MM = mean_M[:, None] - mean_M[None, :]
    variance_MM, df_MM = _variances(stacked, w_K, seeds, items_K)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_MM = 2 * stdtr(df_MM, -np.abs(mean_MM) / np.sqrt(variance_MM))
    odd = ~(variance_MM > 0) & (np.abs(mean_MM) > 0)  # constant differences and the like: one by one, as `compare` does
    for a, b in zip(*np.nonzero(np.triu(odd)), strict=True):
        differences = [scores[a] - scores[b] for scores in stacked]
        found = verdict("a", "b", differences, B=0, weights=list(w_K)).p_value
        p_MM[a, b] = p_MM[b, a] = 1.0 if found is None else found
    p_MM[~(variance_MM > 0) & ~odd] = 1.0
    np.fill_diagonal(p_MM, 1.0)
    return mean_MM, np.nan_to_num(p_MM, nan=1.0)


def _variances(
    stacked: Sequence[np.ndarray], w_K: np.ndarray, seeds: int, items_K: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Variance of the mean difference and its Satterthwaite degrees of freedom, ``[M, M]`` each; 0 where it has none."""
    if items_K.min() < 2:
        shape = (len(stacked[0]),) * 2
        return np.zeros(shape), np.ones(shape)
    parts = [_mean_squares(scores) for scores in stacked]
    if len(parts) == 1:
        return _one_task(*parts[0], seeds, int(items_K[0]))
    means_MS = sum(w * scores.mean(axis=2) for w, scores in zip(w_K, stacked, strict=True))
    centred_MS = means_MS - means_MS.mean(axis=1, keepdims=True)
    seed_MM = _distances(centred_MS) / (seeds - 1) / seeds
    scale_K = w_K**2 / (seeds * items_K)
    item_KMM = np.stack([scale * part[1] for scale, part in zip(scale_K, parts, strict=True)])
    res_KMM = np.stack([scale * part[2] for scale, part in zip(scale_K, parts, strict=True)])
    one_K = (items_K - 1)[:, None, None]
    floor_MM = res_KMM.sum(axis=0)
    total_MM = seed_MM + item_KMM.sum(axis=0) - floor_MM
    with np.errstate(divide="ignore", invalid="ignore"):
        low_df = floor_MM**2 / (res_KMM**2 / ((seeds - 1) * one_K)).sum(axis=0)
        spread = seed_MM**2 / (seeds - 1) + (item_KMM**2 / one_K + res_KMM**2 / ((seeds - 1) * one_K)).sum(axis=0)
        df = np.maximum(total_MM**2 / spread, min(seeds - 1, int(items_K.min()) - 1))
    floored = total_MM < floor_MM * _BELOW
    return np.where(floored, floor_MM, np.maximum(total_MM, 0)), np.where(floored, low_df, df)


def _one_task(
    ms_seed: np.ndarray, ms_item: np.ndarray, ms_res: np.ndarray, seeds: int, items: int
) -> tuple[np.ndarray, np.ndarray]:
    raw = ms_seed + ms_item - ms_res
    floored = raw < ms_res * _BELOW
    total = np.where(floored, ms_res, raw)
    full = (seeds - 1) * (items - 1)
    spread = ms_seed**2 / (seeds - 1) + ms_item**2 / (items - 1) + ms_res**2 / full
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(floored, full, total**2 / spread)
    return total / (seeds * items), np.maximum(np.nan_to_num(df, nan=1.0), min(seeds, items) - 1)


def _mean_squares(scores_MSN: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean squares (seed, item, residual) of every pair's differences on one task, ``[M, M]`` each."""
    count, seeds, items = scores_MSN.shape
    mean = scores_MSN.mean(axis=(1, 2), keepdims=True)
    row = scores_MSN.mean(axis=2, keepdims=True) - mean
    column = scores_MSN.mean(axis=1, keepdims=True) - mean
    residual = scores_MSN - mean - row - column
    return (
        items * _distances(row.reshape(count, -1)) / (seeds - 1),
        seeds * _distances(column.reshape(count, -1)) / (items - 1),
        _distances(residual.reshape(count, -1)) / ((seeds - 1) * (items - 1)),
    )


def _distances(x_MD: np.ndarray) -> np.ndarray:
    """Squared distances of all pairs of rows; what rounding leaves of equal rows is zero."""
    gram = x_MD @ x_MD.T
    own = np.diag(gram)
    both = own[:, None] + own[None, :]
    found = both - gram - gram.T
    return np.where(found > _NOTHING * both, found, 0.0)


def ranking(methods: Sequence[Method], weights: Sequence[float] | None = None) -> dict[str, Rank]:
    """Rank intervals from Holm-corrected comparisons of all pairs (`pair_tests`), by name; {} for less than two methods."""
    if len(methods) < 2:
        return {}
    mean_MM, p_MM = pair_tests(methods, weights)
    upper = np.triu_indices(len(methods), 1)
    adjusted = np.array(holm(p_MM[upper].tolist()))
    signs = np.where(adjusted < 1 - LEVEL, np.sign(mean_MM[upper]), 0).astype(int)
    won = np.zeros_like(mean_MM, dtype=int)
    won[upper] = signs
    won.T[upper] = -signs
    return _ranks([method.name for method in methods], won)


def _ranks(names: Sequence[str], won_MM: np.ndarray) -> dict[str, Rank]:
    """`stats.rank_intervals`, counted from a matrix: 1 where the row is shown better than the column, -1 worse."""
    spans = [
        (int(1 + (row < 0).sum()), int(len(names) - (row > 0).sum())) for row in won_MM
    ]  # places taken by those shown better, and by those shown worse
    groups = {span: index for index, span in enumerate(sorted(set(spans)), 1)}
    return {name: Rank(name, *span, groups[span]) for name, span in zip(names, spans, strict=True)}
