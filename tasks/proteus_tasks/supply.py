"""Haystack units with their token counts as prefix sums: how many units fit, and which unit boundary is at a depth."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .haystack import Haystack
from .tokenizers import Tokenizer, count_batch

CACHE_VARIABLE = "PROTEUS_TASKS_CACHE"
"""When set: a folder in which token counts of whole corpora are kept between processes."""
_MEMORY: dict[tuple[str, ...], Counts] = {}
_MEMORY_SLOTS = 16


class Counts:
    """Tokens of each unit behind a separator, int64 [units], and their prefix sums over two rounds, int64 [2 units + 1].

    `additive`: joining units adds no token and saves none; None where only a whole count can tell.
    """

    def __init__(self, per_unit: np.ndarray, additive: bool | None) -> None:
        self.per_unit = per_unit
        self.additive = additive
        self.prefix = np.concatenate(([0], np.cumsum(np.concatenate((per_unit, per_unit)))))
        self.round = int(self.prefix[len(per_unit)])


class Supply:
    """An endless run over `units` from unit `start`: past the last unit it goes on with the first."""

    def __init__(self, units: Sequence[str], counts: Counts, start: int) -> None:
        self.units, self.counts, self.start = units, counts, start

    def unit(self, i: int) -> str:
        """The i-th unit of the run."""
        return self.units[(self.start + i) % len(self.units)]

    def run(self, n: int) -> list[str]:
        """The first n units of the run."""
        rounds = (self.start + n) // len(self.units) + 1
        units = self.units if rounds == 1 else list(self.units) * rounds
        return list(units[self.start : self.start + n])

    def total(self, n: int) -> int:
        """Tokens of the first n units, each behind a separator."""
        rounds, rest = divmod(n, len(self.units))
        prefix = self.counts.prefix
        return rounds * self.counts.round + int(prefix[self.start + rest] - prefix[self.start])

    def fit(self, budget: int) -> int:
        """The largest n with total(n) <= budget; 0 for a negative budget."""
        if budget <= 0:
            return 0
        rounds, rest = divmod(budget, self.counts.round)
        prefix = self.counts.prefix
        reach = int(np.searchsorted(prefix, prefix[self.start] + rest, side="right")) - 1 - self.start
        return rounds * len(self.units) + reach

    def slots(self, depths: Sequence[float], n: int) -> list[int]:
        """The unit boundaries in 0..n whose token positions are nearest to each depth of total(n); the earlier one on a tie."""
        targets = np.asarray(depths, dtype=np.float64) * self.total(n)
        rounds, rest = np.divmod(targets.astype(np.int64), self.counts.round)
        prefix = self.counts.prefix
        origin = prefix[self.start]
        below = np.searchsorted(prefix, origin + rest, side="right") - 1 - self.start  # of the last round
        gaps = [targets - (rounds * self.counts.round + prefix[self.start + below] - origin)]
        gaps.append(rounds * self.counts.round + prefix[self.start + below + 1] - origin - targets)
        found = rounds * len(self.units) + below + (gaps[0] > gaps[1])
        return np.minimum(found, n).tolist()


def corpus_counts(haystack: Haystack, tokenizer: Tokenizer, sep: str = " ") -> Counts:
    """Counts of a whole haystack whose units are joined by `sep`: made once per (tokenizer, haystack, sep), kept in memory
    and, when asked, on disk."""
    key = (tokenizer.fingerprint, haystack.sha256) + ((repr(sep),) if sep != " " else ())
    found = _MEMORY.get(key)
    if found is None:
        found = _load(key, len(haystack.units)) or _count(haystack, tokenizer, sep)
        _store(key, found)
        while len(_MEMORY) >= _MEMORY_SLOTS:
            _MEMORY.pop(next(iter(_MEMORY)))
        _MEMORY[key] = found
    return found


def _count(haystack: Haystack, tokenizer: Tokenizer, sep: str) -> Counts:
    units = haystack.units
    per_unit = count_batch(tokenizer, [sep + unit for unit in units])
    # Each document is counted once more as a whole, behind the unit before it (the last one for the first document): so every
    # seam between two neighbours, the one at which the corpus starts over included, is inside some window.
    windows = [sep + sep.join((units[first - 1], *units[first:last])) for first, last in haystack.documents]
    expected = [int(per_unit[first - 1] + per_unit[first:last].sum()) for first, last in haystack.documents]
    return Counts(per_unit, count_batch(tokenizer, windows).tolist() == expected)


def _cache_file(key: tuple[str, ...]) -> Path | None:
    folder = os.environ.get(CACHE_VARIABLE)
    if not folder:
        return None
    return Path(folder) / f"counts-{hashlib.sha256('|'.join(key).encode()).hexdigest()[:32]}.npy"


def _load(key: tuple[str, ...], size: int) -> Counts | None:
    path = _cache_file(key)
    if path is None or not path.is_file():
        return None
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None  # a damaged cache file is counted again
    if stored.dtype != np.int64 or stored.shape != (size + 2,) or stored[:size].min() < 1:
        return None
    if stored[size] != stored[:size].sum() or stored[size + 1] not in (0, 1):
        return None
    return Counts(stored[:size], bool(stored[size + 1]))


def _store(key: tuple[str, ...], counts: Counts) -> None:
    path = _cache_file(key)
    if path is None or path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npy")
    with os.fdopen(handle, "wb") as file:
        np.save(file, np.concatenate((counts.per_unit, [counts.round, int(bool(counts.additive))])).astype(np.int64))
    os.replace(temporary, path)
