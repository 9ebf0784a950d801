"""Rows of documents: which pieces of a packed batch go through a mixer together.

A document is right-padded to the longest of its group. A mixer is causal and a group's states are dropped, so the filler
behind a document changes nothing in it; padding costs mixer work only, since norms and MLPs see the rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

FILLER = 1.25
"""A group may be this much larger than its documents: fewer, larger calls against positions computed in vain."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Documents that run as one batch: `place_NL` is where each of their positions lies in the flat batch."""

    place_NL: Tensor
    real_NL: Tensor


@dataclass(frozen=True, kw_only=True)
class Packing:
    spans: tuple[tuple[int, int], ...]
    """First and one past the last position of every document, in the flattened batch."""
    groups: tuple[Group, ...]

    @property
    def longest(self) -> int:
        return max(b - a for a, b in self.spans)

    @staticmethod
    def of(starts: list[list[int]], ids_BT: Tensor) -> Packing:
        """Documents begin at `starts` (per row, 0-based, sorted; 0 is added). ValueError: not a row's worth of starts."""
        rows, length = ids_BT.shape
        if len(starts) != rows or any(not 0 <= at < length for cuts in starts for at in cuts):
            raise ValueError(f"packed rows need starts within 0 .. {length - 1} for each of {rows} rows")
        spans = [
            (row * length + a, row * length + b)
            for row, cuts in enumerate(starts)
            for a, b in pairwise([*sorted({0, *cuts}), length])
        ]
        return Packing(spans=tuple(spans), groups=tuple(_group(own, ids_BT.device) for own in _alike(spans)))

    def apply(self, x_BTD: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """f (batch of rows -> the same shape) on every document as a row that begins with it."""
        flat = x_BTD.flatten(0, 1)
        parts = [f(flat[group.place_NL])[group.real_NL] for group in self.groups]
        order = torch.cat([group.place_NL[group.real_NL] for group in self.groups])
        return torch.cat(parts)[order.argsort()].view(*x_BTD.shape[:2], -1)

    def each(self, ids_BT: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """f on one document after another."""
        flat = ids_BT.flatten()
        return torch.cat([f(flat[None, a:b]) for a, b in self.spans], 1).view(*ids_BT.shape, -1)


def _alike(spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Longest first, a group is closed when padding its next document would make it too large."""
    groups: list[list[tuple[int, int]]] = []
    total = 0
    for span in sorted(spans, key=lambda s: s[0] - s[1]):
        size = span[1] - span[0]
        if groups:
            longest = groups[-1][0][1] - groups[-1][0][0]
            if longest * (len(groups[-1]) + 1) <= FILLER * (total + size):
                groups[-1].append(span)
                total += size
                continue
        groups.append([span])
        total = size
    return groups


def _group(spans: list[tuple[int, int]], device: torch.device) -> Group:
    first, last = torch.tensor(spans).unbind(1)
    place = first[:, None] + torch.arange(int((last - first).max()))
    real = place < last[:, None]
    # filler repeats a document's own last position: any finite input will do
    return Group(place_NL=torch.minimum(place, last[:, None] - 1).to(device), real_NL=real.to(device))
