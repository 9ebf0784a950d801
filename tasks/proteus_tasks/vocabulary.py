"""Keys and values of needles, by split: single words, word pairs, 7-digit numbers, uuids. Disjoint between splits.

Each function gives a prefix-stable sequence: the first n draws of a longer sequence are the shorter sequence.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from . import rng
from .errors import DataFileError, TaskError
from .haystack import check_split
from .resources import data_dir

NUMBER_LOW, NUMBER_HIGH = 1_000_000, 10_000_000
MODULUS = 97
"""Values are split by residue, not by range, so that every digit varies at every place in every split."""
_WORD_RANKS = {"train": range(0, 6), "tune": range(6, 7), "test": range(7, 10)}
_RESIDUES = {"train": range(0, 58), "tune": range(58, 68), "test": range(68, 97)}


@lru_cache(maxsize=3)
def words(split: str) -> tuple[str, ...]:
    """Key words of a split, most frequent first. Ranks are dealt out, so that the splits are equally common."""
    ranks = _WORD_RANKS[check_split(split)]
    try:
        listed = (data_dir() / "words.txt").read_text(encoding="ascii").split()
    except OSError as error:
        raise DataFileError(f"cannot read the shipped key words: {error}") from error
    return tuple(word for rank, word in enumerate(listed) if rank % 10 in ranks)


def value_split(value: str) -> str:
    """The split to which a value (number or uuid) belongs."""
    number = int(value.replace("-", ""), 16 if "-" in value else 10)
    return next(split for split, residues in _RESIDUES.items() if number % MODULUS in residues)


def in_split(numbers: np.ndarray, split: str) -> np.ndarray:
    """Which non-negative integers belong to a split by their residue, bool like `numbers`."""
    residues = _RESIDUES[check_split(split)]
    rest = numbers % MODULUS
    return (rest >= residues.start) & (rest < residues.stop)


def draw_words(seed: int, split: str, count: int) -> list[str]:
    """`count` distinct key words; TaskError when the split holds fewer."""
    pool = words(split)
    _check_pool(count, len(pool), split)
    return [pool[i] for i in rng.distinct(lambda m: rng.below(seed, len(pool), m), count, count + 4)]


def pair_pool(split: str) -> int:
    """How many ordered pairs of two different words a split holds."""
    size = len(words(split))
    return size * (size - 1)


def draw_pairs(seed: int, split: str, count: int) -> list[str]:
    """`count` distinct keys `word-word`, the two words different."""
    pool = words(split)
    _check_pool(count, pair_pool(split), split)
    drawn = rng.distinct(lambda m: rng.below(seed, pair_pool(split), m), count, count + count // 2 + 4)
    first, second = np.divmod(drawn, len(pool) - 1)
    second = second + (second >= first)
    return [f"{pool[a]}-{pool[b]}" for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def draw_numbers(seed: int, split: str, count: int) -> list[str]:
    """`count` distinct 7-digit numbers."""
    residues = _RESIDUES[check_split(split)]

    def candidates(size: int) -> np.ndarray:
        numbers = rng.below(seed, NUMBER_HIGH - NUMBER_LOW, size) + NUMBER_LOW
        rest = numbers % MODULUS
        return numbers[(rest >= residues.start) & (rest < residues.stop)]

    return [str(n) for n in rng.distinct(candidates, count, _guess(count, len(residues))).tolist()]


def draw_uuids(seed: int, split: str, count: int) -> list[str]:
    """`count` distinct 128-bit values as 32 hexadecimal digits in the grouping 8-4-4-4-12."""
    residues = _RESIDUES[check_split(split)]
    carry = np.uint64(2**64 % MODULUS)
    modulus = np.uint64(MODULUS)

    def candidates(size: int) -> np.ndarray:
        both = rng.raw(seed, 2 * size).reshape(size, 2)
        rest = (both[:, 0] % modulus * carry + both[:, 1] % modulus) % modulus
        kept = np.ascontiguousarray(both[(rest >= residues.start) & (rest < residues.stop)])
        return kept.view([("high", np.uint64), ("low", np.uint64)])[:, 0]

    drawn = rng.distinct(candidates, count, _guess(count, len(residues)))
    return [_grouped(f"{high:016x}{low:016x}") for high, low in drawn.tolist()]


def _grouped(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _guess(count: int, residues: int) -> int:
    return count * MODULUS // residues + count // 4 + 16


def _check_pool(count: int, size: int, split: str) -> None:
    if count > size:
        raise TaskError(f"split '{split}' holds {size} keys, {count} are needed")
