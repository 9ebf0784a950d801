"""How much a memory holds: spread multi-query recall at growing loads, and keys that are rewritten.

`capacity.mqar_<n>`: n pairs over the whole window (Arora et al., arXiv 2312.04927, ask for pairs that all stand at the front;
a memory that opens over time is then written while it is nearly closed). Up to 16 pairs are asked, one in each insertion
block. These keys, values and places are the same at every load from 16 on: curves over n are paired.
`capacity.rewrite_<n>`: n keys, eight of which get a second value; the last value counts. Eight others, written once where the
eight last values stand, are the control.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import rng
from .facts import BLOCKS, Draft, Fact, ProbeTask

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REWRITE_LOADS = (16, 64)
REWRITTEN = BLOCKS // 2


def bit_reversed(i: int, size: int) -> int:
    """i with its log2(size) bits in the other order: any first n of 0..size-1 then lie evenly."""
    bits = size.bit_length() - 1
    return int(f"{i:0{bits}b}"[::-1], 2)


@dataclass(frozen=True)
class Mqar:
    """n pairs, of which the first min(n, 16) are asked."""

    n: int
    family: str = "capacity.mqar"

    @property
    def id(self) -> str:
        return f"{self.family}_{self.n}"

    def facts(self, draft: Draft) -> list[Fact]:
        keys, values = draft.pairs("", self.n, self.n)
        asked = min(self.n, BLOCKS)
        inside = rng.fractions(draft.seed("asked places"), BLOCKS).tolist()
        # The index turns the blocks, so that loads under 16 too reach every block over 16 items.
        blocks = [(bit_reversed(a, BLOCKS) + draft.index) % BLOCKS for a in range(asked)]
        found = [Fact(keys[a], values[a], (blocks[a] + inside[a]) / BLOCKS, "asked", a) for a in range(asked)]
        if self.n > asked:
            places = draft.spread("other ", self.n - asked, 0.0, 1.0)
            rest = zip(keys[asked:], values[asked:], places, strict=True)
            found += [Fact(key, value, place, "other") for key, value, place in rest]
        return found


@dataclass(frozen=True)
class Rewrite:
    """n keys; 0..7 are written twice (old in the first half, new in the second), 8..15 once in the second half."""

    n: int
    family: str = "capacity.rewrite"

    @property
    def id(self) -> str:
        return f"{self.family}_{self.n}"

    def facts(self, draft: Draft) -> list[Fact]:
        half = REWRITTEN
        keys, values = draft.pairs("", self.n, self.n + half)
        old, new, once = (rng.fractions(draft.seed(name), half).tolist() for name in ("old", "new", "once"))
        found = []
        for i in range(half):
            block = half + (bit_reversed(i, half) + draft.index) % half
            stale = values[self.n + i]
            found.append(Fact(keys[i], stale, (i + old[i]) / BLOCKS, "old"))
            found.append(Fact(keys[i], values[i], (block + new[i]) / BLOCKS, "rewritten", i, stale))
            found.append(Fact(keys[half + i], values[half + i], (block + once[i]) / BLOCKS, "once", half + i))
        if self.n > 2 * half:
            places = draft.spread("other ", self.n - 2 * half, 0.0, 1.0)
            rest = zip(keys[2 * half :], values[2 * half : self.n], places, strict=True)
            found += [Fact(key, value, place, "other") for key, value, place in rest]
        return found


MQAR = tuple(ProbeTask(Mqar(n)) for n in LOADS)
REWRITE = tuple(ProbeTask(Rewrite(n)) for n in REWRITE_LOADS)
