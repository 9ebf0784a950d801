"""Paired differences: exact pairing or refusal, exact sign flips, and corrections for many comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proteus_bench.errors import InvalidFileError
from proteus_bench.stats.intervals import check_scores

_MAX_FLIPPED_SEEDS = 20


class PairingError(InvalidFileError):
    """Two sets of scores that are not of the same seeds and items (exit 3)."""


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Scores of one model on one task: ``scores[S, N]``, row = training seed, column = item; keys sorted, unique."""

    seeds: tuple[int, ...]
    items: tuple[str, ...]
    scores: np.ndarray

    def __post_init__(self) -> None:
        if self.scores.shape != (len(self.seeds), len(self.items)):
            raise PairingError(f"scores {self.scores.shape} for {len(self.seeds)} seeds x {len(self.items)} items")
        check_scores(self.scores)


def score_matrix(rows: Iterable[tuple[int, str, float]]) -> ScoreMatrix:
    """Arrange rows (training seed, item id, score) as a complete matrix.

    Raises PairingError for a duplicate or a missing (seed, item): an incomplete run is not compared.
    """
    table: dict[tuple[int, str], float] = {}
    for seed, item, score in rows:
        if (seed, item) in table:
            raise PairingError(f"seed {seed}, item {item} is scored twice")
        table[seed, item] = float(score)
    seeds = tuple(sorted({seed for seed, _ in table}))
    items = tuple(sorted({item for _, item in table}))
    if not table:
        raise PairingError("no scores to compare")
    for seed in seeds:
        for item in items:
            if (seed, item) not in table:
                raise PairingError(f"seed {seed} has no score for item {item}")
    scores = np.array([[table[seed, item] for item in items] for seed in seeds])
    return ScoreMatrix(seeds, items, scores)


def paired_difference(a: ScoreMatrix, b: ScoreMatrix) -> ScoreMatrix:
    """a - b on (seed, item id). Raises PairingError unless both have exactly the same seeds and items."""
    for kind, left, right in (("seed", a.seeds, b.seeds), ("item", a.items, b.items)):
        odd = sorted(set(left) ^ set(right), key=str)
        if odd:
            raise PairingError(f"not paired: {kind} {odd[0]} is on one side only ({len(odd)} such {kind}s)")
        if len(left) != len(set(left)) or len(right) != len(set(right)):
            raise PairingError(f"not paired: a {kind} stands twice")
    rows = [b.seeds.index(seed) for seed in a.seeds]
    place = {item: index for index, item in enumerate(b.items)}
    columns = [place[item] for item in a.items]
    return ScoreMatrix(a.seeds, a.items, a.scores - b.scores[np.ix_(rows, columns)])


def sign_flip(differences: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Exact two-sided sign-flip test of mean zero over independent units (per-seed mean differences).

    Returns (p, floor): the smallest p that this many units can give is 2 / 2^S, so 3 seeds can never be significant.
    Raises ValueError beyond 20 units (2^20 sign patterns).
    """
    d_S = np.asarray(differences, dtype=np.float64)
    check_scores(d_S)
    if d_S.ndim != 1 or d_S.size > _MAX_FLIPPED_SEEDS:
        raise ValueError(f"sign flips need one row of at most {_MAX_FLIPPED_SEEDS} values, got shape {d_S.shape}")
    sums = np.zeros(1)
    for value in d_S:
        sums = np.concatenate([sums + value, sums - value])
    # Sums of the same numbers in another order differ in the last bits; they must count as ties.
    tolerance = 1e-12 * max(float(np.abs(d_S).sum()), 1e-300)
    p = float(np.mean(np.abs(sums) >= abs(float(d_S.sum())) - tolerance))
    return p, min(1.0, 2.0 / 2**d_S.size)


def mcnemar(only_a: int, only_b: int) -> tuple[float, float]:
    """McNemar's test of two checkpoints on the same binary items, from the items that only one of them gets right.

    Returns (exact two-sided p, chi-square with continuity correction). Says nothing about other seeds. Raises ValueError
    for negative counts.
    """
    from scipy.special import bdtr

    if only_a < 0 or only_b < 0:
        raise ValueError(f"counts must not be negative, got {only_a} and {only_b}")
    n = only_a + only_b
    if n == 0:
        return 1.0, 0.0
    p = min(1.0, 2 * float(bdtr(min(only_a, only_b), n, 0.5)))
    return p, max(0, abs(only_a - only_b) - 1) ** 2 / n


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, in the order given: family-wise error over the declared family."""
    return _stepwise(p_values, lambda rank, m: m - rank, np.maximum.accumulate)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Benjamini-Hochberg adjusted p-values, in the order given: for heat maps, which are exploratory."""

    def from_above(x: np.ndarray) -> np.ndarray:
        return np.minimum.accumulate(x[::-1])[::-1]

    return _stepwise(p_values, lambda rank, m: m / (rank + 1), from_above)


def _stepwise(
    p_values: Sequence[float], factor: Callable[[int, int], float], running: Callable[[np.ndarray], np.ndarray]
) -> list[float]:
    p_M = np.asarray(p_values, dtype=np.float64)
    if p_M.size == 0:
        return []
    if not ((p_M >= 0) & (p_M <= 1)).all():
        raise ValueError("p-values must lie between 0 and 1")
    order = np.argsort(p_M, kind="stable")
    scaled = p_M[order] * np.array([factor(rank, p_M.size) for rank in range(p_M.size)])
    adjusted = np.empty_like(p_M)
    adjusted[order] = np.minimum(1.0, running(scaled))
    return [float(p) for p in adjusted]


def holm_family(p_values: Mapping[str, float]) -> dict[str, float]:
    """`holm` on named comparisons (schedules against uniform)."""
    return dict(zip(p_values, holm(list(p_values.values())), strict=True))
