"""Which coordinates of a memory are open at each position, and for which use.

A kernel never sees a schedule. It gets `active`: for every position the number of open coordinates along ONE axis
(a prefix), or None for a static memory. The gate says which of the three uses of the memory the prefix applies to
(Proteus, arXiv 2608.16844, Eq. 8-11, extended to the four gates):

    write    the increment, decay and momentum included
    predict  the inner read of the update (the error that the write corrects)
    output   the read that leaves the mixer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from torch import Tensor

Gate = Literal["both", "write", "read", "none"]
Axis = Literal["key", "value", "head", "hidden"]
Read = Literal["post", "pre"]

GATES: tuple[str, ...] = ("both", "write", "read", "none")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Open coordinates for the three uses at one position or over one segment."""

    write: int
    predict: int
    output: int


def counts(active: int, dim: int, gate: str) -> Counts:
    """The prefix lengths for the three uses when `active` of `dim` coordinates are open."""
    if gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}; one of {', '.join(GATES)}")
    if not 0 < active <= dim:
        raise ValueError(f"active coordinates must lie in 1..{dim}, got {active}")
    return Counts(
        write=active if gate in ("both", "write") else dim,
        predict=active if gate == "both" else dim,
        output=active if gate in ("both", "read") else dim,
    )


def segments(active: Sequence[int] | None, length: int, dim: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, active) for every maximal run of positions with one count; a single run when static."""
    if active is None:
        yield 0, length, dim
        return
    if len(active) != length:
        raise ValueError(f"active has {len(active)} entries for {length} positions")
    start = 0
    for n, run in groupby(active):
        stop = start + len(list(run))
        yield start, stop, int(n)
        start = stop


def cut_time(spans: Sequence[tuple[int, ...]], *tensors: Tensor) -> Iterator[Any]:
    """The tensors' parts over each span (start, stop, ...) of axis 2, one tuple a span; the spans tile the axis.

    By `split`, whose backward is one concatenation: a slice for each span would fill a whole gradient for each.
    """
    sizes = [span[1] - span[0] for span in spans]
    return zip(*(x.split(sizes, 2) for x in tensors), strict=True)
