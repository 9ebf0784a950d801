"""Rows of a language-model training from token shards: a pure function of (shards, seed, step).

A row is `length` tokens in a row of one shard with the token after each as its label; rows are taken in an order shuffled by
(seed, epoch). Documents run on over the row's start and end. With `documents`, memories restart where a document begins, and
the token after an end token, which nothing foretells then, is not a target.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from proteus_bench.errors import InvalidFileError
from proteus_models.train_objective import ANSWER, Rows
from proteus_models.train_shards import MANIFEST, read_manifest


class TokenRows:
    """The rows of a folder of shards. InvalidFileError: no whole folder, ids beyond the model, or less than one row."""

    def __init__(self, folder: Path, *, vocab_size: int, documents: bool, seed: int) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        if self.manifest.vocab_size > vocab_size:
            raise InvalidFileError(
                f"{folder}: shards of a vocabulary of {self.manifest.vocab_size}, for a model of {vocab_size}"
            )
        self.documents, self.seed = documents, seed
        self.shards = [np.memmap(folder / s.file, self.manifest.dtype, "r") for s in self.manifest.shards]
        self.identity = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()

    def rows(self, stage: str, index: int, rows: int, length: int) -> Rows:
        """Step `index` takes rows index * `rows` .. of the endless sequence of epochs."""
        counts = np.array([max(0, (s.tokens - 1) // length) for s in self.manifest.shards])
        total = int(counts.sum())
        if not total:
            raise InvalidFileError(f"{self.folder}: no shard holds a row of {length} tokens")
        ends = counts.cumsum()
        made = np.empty((rows, length + 1), np.int64)
        for r, place in enumerate(range(index * rows, (index + 1) * rows)):
            row = int(_order(self.seed, place // total, total)[place % total])
            shard = int(np.searchsorted(ends, row, "right"))
            at = (row - int(ends[shard] - counts[shard])) * length
            made[r] = self.shards[shard][at : at + length + 1]
        ids, labels = made[:, :-1], made[:, 1:]
        kinds = np.full(ids.shape, ANSWER)
        if not self.documents:
            return Rows(ids=ids, labels=labels, kinds=kinds)
        closes = ids == self.manifest.end
        kinds[closes] = 0
        starts = [(np.flatnonzero(row[:-1]) + 1).tolist() for row in closes]
        return Rows(ids=ids, labels=labels, kinds=kinds, starts=starts)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, total]).permutation(total)
