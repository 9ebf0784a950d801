"""Which gates are one function? Found by computing: the same random text under every gate, from the start and carried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from proteus_bench.probes.memory import GatedMemory

GATES = ("both", "write", "read", "none")
TOLERANCE = 1e-9
"""Largest relative difference of float64 logits for two gates to be called one function; other gates differ by 1e-4 and more."""
TEXT = 96
ROWS = 2


@dataclass(frozen=True)
class GateDifference:
    """Largest difference of logits over the largest logit: ``fresh`` from the start state, ``carried`` from a used one."""

    a: str
    b: str
    fresh: float
    carried: float

    @property
    def same(self) -> bool:
        """One function for a text that starts from the start state, which is how items are asked."""
        return self.fresh <= TOLERANCE

    @property
    def same_carried(self) -> bool:
        """One function from any state."""
        return self.same and self.carried <= TOLERANCE


@dataclass(frozen=True)
class GateComparison:
    """All pairs of the gates that this memory can have. ``refused``: gates that it cannot have, with the reason."""

    gates: tuple[str, ...]
    refused: dict[str, str]
    differences: tuple[GateDifference, ...]

    def classes(self, carried: bool = False) -> tuple[tuple[str, ...], ...]:
        """Gates that are one function stand together, in the order of `GATES`."""
        found: list[list[str]] = []
        for gate in self.gates:
            home = next((group for group in found if all(self._same(gate, other, carried) for other in group)), None)
            if home is None:
                found.append([gate])
            else:
                home.append(gate)
        return tuple(tuple(group) for group in found)

    def _same(self, a: str, b: str, carried: bool) -> bool:
        pair = next(d for d in self.differences if {d.a, d.b} == {a, b})
        return pair.same_carried if carried else pair.same


def compare_gates(model: GatedMemory, vocab_size: int, seed: int = 0, gates: Sequence[str] = GATES) -> GateComparison:
    """Logits of random tokens under every gate, from the start state and from a carried one."""
    generator = np.random.Generator(np.random.PCG64(seed))
    ids = generator.integers(0, vocab_size, size=(ROWS, TEXT))
    logits: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    refused: dict[str, str] = {}
    for gate in gates:
        try:
            logits[gate] = (model.gated_logits(gate, ids, False), model.gated_logits(gate, ids, True))
        except ValueError as error:
            refused[gate] = str(error)
    differences = [
        GateDifference(a, b, *(_gap(logits[a][i], logits[b][i]) for i in (0, 1))) for a, b in combinations(logits, 2)
    ]
    return GateComparison(tuple(logits), refused, tuple(differences))


def _gap(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference relative to the largest value; infinite where a state diverged."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-300))
