"""Random draws that never change: sha256-seeded PCG64 raw integers, with bounds and uniqueness done here.

numpy promises bit-stable raw streams, not bit-stable `choice`, `shuffle` or `integers`. Every draw is a prefix: the first n
elements are the same however many are asked, which is what pairs items over lengths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np


def seed_of(*parts: object) -> int:
    """128-bit seed of a name: sha256 over the parts, unit separated, so that ("ab", "c") and ("a", "bc") differ."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:16], "big")


def raw(seed: int, count: int) -> np.ndarray:
    """The first `count` raw outputs of PCG64(seed), uint64 [count]."""
    return np.asarray(np.random.PCG64(seed).random_raw(count), dtype=np.uint64)


def below(seed: int, bound: int, count: int) -> np.ndarray:
    """`count` integers uniform in [0, bound), int64 [count]: raw outputs past the last whole multiple of bound are rejected."""
    if not 0 < bound < 2**62:
        raise ValueError(f"bound {bound} is not in 1..2^62")
    limit = np.uint64(2**64 - 2**64 % bound - 1)
    size = count
    while True:
        drawn = raw(seed, size)
        kept = drawn[drawn <= limit]
        if len(kept) >= count:
            return (kept[:count] % np.uint64(bound)).astype(np.int64)
        size = 2 * size + 8


def fractions(seed: int, count: int) -> np.ndarray:
    """`count` floats uniform in [0, 1) on the grid of 2^-53, float64 [count]."""
    return (raw(seed, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def distinct(draw: Callable[[int], np.ndarray], count: int, guess: int) -> np.ndarray:
    """The first `count` distinct elements of a prefix-stable stream, in order of first appearance.

    `draw(m)` gives the candidates among the first m draws; `guess` is the m to start from.
    """
    size = guess
    while True:
        candidates = draw(size)
        first = np.sort(np.unique(candidates, return_index=True)[1])
        if len(first) >= count:
            return candidates[first[:count]]
        size *= 2
