"""The memory protocol: what a model shows of its state so that probes can look into it. NumPy at the border, no torch.

A back end takes part by having a method ``memory_model()`` that returns a `MemoryModel` (or None). States are opaque to the
probes: they are made, fed with token ids, copied by row, and looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True)
class MemoryTensor:
    """One memory tensor of one layer. ``values`` ``[rows, ...]``; ``axis``: the dimension that is cut into blocks.

    heads: the dimension (if any) over which the tensor is a stack of separate memories. Only what reads see belongs here:
    the memory itself, no momentum and no past inputs.
    """

    layer: int
    name: str
    values: np.ndarray
    axis: int
    heads: int | None = None


class MemoryModel(Protocol):
    """A model with a memory. ``blocks``: equal parts of the memory axis. ``unlocks``: the 1-based position at which each
    block is first open, all 1 for a memory that is open from the start."""

    @property
    def blocks(self) -> int: ...

    @property
    def unlocks(self) -> tuple[int, ...]: ...

    def start(self, rows: int) -> Any:
        """The state before the first token, for a batch of ``rows``."""
        ...

    def feed(self, state: Any, ids: np.ndarray) -> Any:
        """The state after ``ids`` ``[rows, T]``. The schedule's clock goes on from where the state stands."""
        ...

    def select(self, state: Any, rows: Sequence[int]) -> Any:
        """The rows of a state, in this order; a row may be taken twice."""
        ...

    def tensors(self, state: Any) -> list[MemoryTensor]:
        """The memory as it stands, layer by layer."""
        ...


@runtime_checkable
class AddressedMemory(Protocol):
    """Optional: a memory that is read by keys. With it the probes measure read-out errors and the overlap of keys."""

    def keys(self, state: Any, ids: np.ndarray) -> list[np.ndarray]:
        """Keys with which ``ids`` ``[rows, T]`` are written from this state, one ``[rows, T, heads, K]`` a layer."""
        ...

    def read(self, state: Any, layer: int, keys: np.ndarray) -> np.ndarray:
        """What the layer's memory gives for keys ``[rows, n, heads, K]``, every block open: ``[rows, n, heads, V]``."""
        ...


@runtime_checkable
class GatedMemory(Protocol):
    """Optional: a model whose gate can be changed on the same weights. With it equal gates are found by computing."""

    def gated_logits(self, gate: str, ids: np.ndarray, carried: bool) -> np.ndarray:
        """Logits ``[rows, T, V]`` in float64 under ``gate``, from the start or from a state that another text left behind.

        Raises ValueError for a gate that this memory cannot have.
        """
        ...


def memory_of(backend: Any) -> MemoryModel | None:
    """The memory that a back end exposes, or None: then only the text side of a probe can be measured."""
    maker = getattr(backend, "memory_model", None)
    return None if maker is None else maker()


def by_block(tensor: MemoryTensor, blocks: int) -> list[np.ndarray]:
    """``blocks`` parts of the tensor along its axis; the last one takes the remainder. Fewer where the axis is shorter."""
    size = tensor.values.shape[tensor.axis]
    count = min(blocks, size)
    edges = [e * (size // count) for e in range(count)] + [size]
    index: list[Any] = [slice(None)] * tensor.values.ndim
    parts = []
    for low, high in pairwise(edges):
        index[tensor.axis] = slice(low, high)
        parts.append(tensor.values[tuple(index)])
    return parts


def energy(tensors: Sequence[MemoryTensor], blocks: int, layers: int) -> np.ndarray:
    """Squared Frobenius norm by row, layer and block, ``[rows, layers, blocks]``."""
    rows = tensors[0].values.shape[0]
    total = np.zeros((rows, layers, blocks))
    for tensor in tensors:
        for block, part in enumerate(by_block(tensor, blocks)):
            total[:, tensor.layer, block] += np.square(part.reshape(rows, -1)).sum(1)
    return total


def difference(a: Sequence[MemoryTensor], b: Sequence[MemoryTensor]) -> list[MemoryTensor]:
    """a - b, tensor by tensor; b may have one row that stands for all."""
    return [
        MemoryTensor(x.layer, x.name, x.values - y.values, x.axis, x.heads) for x, y in zip(a, b, strict=True)
    ]


def inner(a: Sequence[MemoryTensor], b: Sequence[MemoryTensor], layers: int) -> np.ndarray:
    """Inner product by row and layer, ``[rows, layers]``."""
    rows = a[0].values.shape[0]
    total = np.zeros((rows, layers))
    for x, y in zip(a, b, strict=True):
        total[:, x.layer] += np.einsum("ri,ri->r", x.values.reshape(rows, -1), y.values.reshape(rows, -1))
    return total


def effective_rank(tensors: Sequence[MemoryTensor], blocks: int, layers: int) -> np.ndarray:
    """exp(entropy of the normalised squared singular values) of each block, mean over tensors and heads, 0 for an empty
    block. ``[rows, layers, blocks]`` (Roy and Vetterli, 2007, on squared values)."""
    rows = tensors[0].values.shape[0]
    total, count = np.zeros((rows, layers, blocks)), np.zeros((layers, 1))
    for tensor in tensors:
        count[tensor.layer] += 1
        for block, part in enumerate(by_block(tensor, blocks)):
            total[:, tensor.layer, block] += _rank(_matrices(part, tensor.axis, tensor.heads))
    return total / np.maximum(count, 1)


def _matrices(part: np.ndarray, axis: int, heads: int | None) -> np.ndarray:
    """``[rows, heads, axis coordinates, the rest]``."""
    moved = part if heads is None else np.moveaxis(part, heads, 1)
    if heads is None:
        moved = np.moveaxis(moved, axis, 1)[:, None]
    elif heads != axis:
        place = axis + 1 if axis < heads else axis
        moved = np.moveaxis(moved, place, 2)
    return moved.reshape(*moved.shape[:3], -1) if moved.ndim > 3 else moved[..., None]


def _rank(matrices: np.ndarray) -> np.ndarray:
    """Mean effective rank over heads, ``[rows]``."""
    values = np.square(np.linalg.svd(matrices, compute_uv=False))
    total = values.sum(-1, keepdims=True)
    share = np.divide(values, total, out=np.zeros_like(values), where=total > 0)
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), -1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0).mean(1)
