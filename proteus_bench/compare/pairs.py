"""Exact pairs or refusal: two methods on the same seeds, tasks and items; and which pairs a comparison looks at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from proteus_bench.compare.load import Candidate, ItemScore, Place
from proteus_bench.errors import unknown
from proteus_bench.stats import PairingError, draws_key, paired_difference, pool_draws, score_matrix

_HINT = "--common compares what both have"

Differ = Callable[[str], None]
"""Told of what stands on one side only: it refuses, or notes it."""


@dataclass(frozen=True)
class Pair:
    """a and b on shared places and seeds. strict, logprob: scores ``[S, N]`` of both by place, None where not finite.

    draws: keys of `stats.pool_draws` by place. left_out: in words, what one side has and the other has not (only with ``common``).
    """

    a: Candidate
    b: Candidate
    places: tuple[Place, ...]
    seeds: tuple[int, ...]
    strict: dict[Place, tuple[np.ndarray, np.ndarray]]
    logprob: dict[Place, tuple[np.ndarray, np.ndarray] | None]
    draws: dict[Place, Hashable]
    left_out: tuple[str, ...]

    def keys(self, places: Sequence[Place] | None = None) -> list[Hashable]:
        """By place (all by default), what tells tasks of other draws apart."""
        return [self.draws[place] for place in places or self.places]

    def differences(self, places: Sequence[Place] | None = None) -> tuple[list[np.ndarray], list[float]]:
        """Paired strict differences ``[S, N]`` over places (all by default), those of one draw pooled, and their weights."""
        found = [self.strict[place][0] - self.strict[place][1] for place in places or self.places]
        return pool_draws(found, self.keys(places))

    def logprob_differences(self, places: Sequence[Place] | None = None) -> tuple[list[np.ndarray], list[float]] | None:
        """The same in nats, None when a log-probability is not finite somewhere."""
        found = [self.logprob[place] for place in places or self.places]
        if any(pair is None for pair in found):
            return None
        return pool_draws([pair[0] - pair[1] for pair in found if pair], self.keys(places))


def pair_up(a: Candidate, b: Candidate, *, common: bool) -> Pair:
    """Pair two methods by (place, seed, item id), the item's text included.

    Raises PairingError (exit 3), naming the first thing that stands on one side only; with ``common`` such things are
    left out and listed, and only an empty rest is refused. Other texts under one item id are always refused.
    """
    if (a.suite, a.scorer) != (b.suite, b.scorer):
        raise PairingError(f"{a.name} and {b.name} cannot be paired: {_suite_difference(a, b)}")
    left_out: list[str] = []

    def differ(text: str) -> None:
        if not common:
            raise PairingError(f"{a.name} and {b.name} cannot be paired: {text}; {_HINT}")
        left_out.append(text)

    for side in (a, b):
        for seed, task, length, status in side.missing:
            differ(f"{task} at {length} of {side.name} seed {seed} is {status}")
    places = _shared_places(a, b, differ)
    seeds = _shared_seeds(a, b, places, differ)
    if not places or not seeds:
        what = "seed" if places else "task"
        raise PairingError(f"{a.name} and {b.name} cannot be paired: they share no {what}")
    strict, logprob = {}, {}
    draws: dict[Place, Hashable] = {}
    source = b.draws | a.draws
    for place in places:
        items = _shared_items(a, b, place, seeds, differ)
        strict[place] = _matrices(a, b, place, seeds, items)
        logprob[place] = _logprob_matrices(a, b, place, seeds, items)
        draws[place] = draws_key(place[0], source, indices_of(a.cells[place][seeds[0]], items))
    return Pair(a, b, places, seeds, strict, logprob, draws, tuple(left_out))


def indices_of(held: Mapping[str, ItemScore], items: Sequence[str]) -> list[int]:
    """The index of each item in its cell."""
    return [held[item].index for item in items]


def _suite_difference(a: Candidate, b: Candidate) -> str:
    for what, left, right in (("suite", a.suite, b.suite), ("scorer", a.scorer, b.scorer)):
        if left != right:
            name = "name" if what == "suite" else "id"
            if left[name] != right[name]:
                return f"{what} {left[name]} and {what} {right[name]}"
            if left["version"] != right["version"]:
                return f"versions {left['version']} and {right['version']} of {what} {left[name]}"
            return f"two files of {what} {left[name]} with different hashes"
    return "nothing differs"


def _shared_places(a: Candidate, b: Candidate, differ: Differ) -> tuple[Place, ...]:
    for mine, other in ((a, b), (b, a)):
        for task, length in mine.cells:
            if (task, length) not in other.cells:
                differ(f"{task} at {length} is there for {mine.name} only")
    return tuple(place for place in a.cells if place in b.cells)


def _shared_seeds(a: Candidate, b: Candidate, places: Sequence[Place], differ: Differ) -> tuple[int, ...]:
    every = []
    for side in (a, b):
        sets = [set(side.cells[place]) for place in places]
        every.append(set.intersection(*sets) if sets else set())
        for place, held in zip(places, sets, strict=True):
            for seed in sorted(set(side.seeds) - held):
                gap = (seed, *place)
                if gap not in {entry[:3] for entry in side.missing}:
                    differ(f"{side.name} seed {seed} has no result for {place[0]} at {place[1]}")
    for mine, other in ((a, b), (b, a)):
        only = sorted(set(mine.seeds) - set(other.seeds))
        if only:
            listed = ", ".join(map(str, only))
            many = len(only) > 1
            differ(f"seed{'s' if many else ''} {listed} {'are' if many else 'is'} there for {mine.name} only")
    return tuple(sorted(every[0] & every[1]))


def _shared_items(a: Candidate, b: Candidate, place: Place, seeds: Sequence[int], differ: Differ) -> list[str]:
    task, length = place
    tables = [side.cells[place][seed] for side in (a, b) for seed in seeds]
    shared = set.intersection(*(set(table) for table in tables))
    for side in (a, b):
        sizes = {len(side.cells[place][seed]) for seed in seeds}
        extra = sorted({item for seed in seeds for item in side.cells[place][seed]} - shared)
        if extra:
            counts = "/".join(map(str, sorted(sizes)))
            differ(f"{task} at {length} has {counts} items for {side.name}, {len(shared)} of them for both")
    if not shared:
        raise PairingError(f"{a.name} and {b.name} cannot be paired: no item of {task} at {length} is the same")
    for item in sorted(shared):
        if len({table[item].sha256 for table in tables}) > 1:
            raise PairingError(
                f"{a.name} and {b.name} cannot be paired: {item[:80]} is another text for each (other item hash), as "
                "other tokenizers or generators make"
            )
    return sorted(shared)


def _matrices(
    a: Candidate, b: Candidate, place: Place, seeds: Sequence[int], items: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    sides = [
        score_matrix((seed, item, side.cells[place][seed][item].strict) for seed in seeds for item in items)
        for side in (a, b)
    ]
    paired_difference(sides[0], sides[1])  # refuses what the checks above may have let through
    return sides[0].scores, sides[1].scores


def _logprob_matrices(
    a: Candidate, b: Candidate, place: Place, seeds: Sequence[int], items: Sequence[str]
) -> tuple[np.ndarray, np.ndarray] | None:
    sides = []
    for side in (a, b):
        rows: list[list[ItemScore]] = [[side.cells[place][seed][item] for item in items] for seed in seeds]
        if any(cell.logprob is None for row in rows for cell in row):
            return None
        sides.append(np.array([[cell.logprob for cell in row] for row in rows], dtype=np.float64))
    return sides[0], sides[1]


@dataclass(frozen=True)
class Family:
    """Comparisons that are corrected together: each of ``pairs`` against one reference (or asked for by a gate)."""

    name: str
    pairs: tuple[tuple[Candidate, Candidate], ...]


def families(candidates: Sequence[Candidate], against: Sequence[str] = ()) -> list[Family]:
    """What is compared on one suite: by default, within every backbone, schedules against static and against uniform.

    ``against``: names of references instead, for all other methods. Where no backbone has two methods, the first method
    is the reference for all. Raises UsageError for an unknown name.
    """
    if against:
        return [_against(find(name, candidates), candidates, f"against {name}") for name in dict.fromkeys(against)]
    found: list[Family] = []
    for kind, pick in (("static", _static), ("uniform", _uniform)):
        pairs: list[tuple[Candidate, Candidate]] = []
        for backbone in dict.fromkeys(c.backbone for c in candidates):
            mine = [c for c in candidates if c.backbone == backbone]
            reference = pick(mine)
            if reference is not None:
                skip = (reference, _static(mine)) if kind == "uniform" else (reference,)
                pairs += [(c, reference) for c in mine if not any(c is other for other in skip)]
        if pairs:
            found.append(Family(f"against {kind}", tuple(pairs)))
    if not found and len(candidates) > 1:
        found = [_against(candidates[0], candidates, f"against {candidates[0].name}")]
    return found


def _against(reference: Candidate, candidates: Sequence[Candidate], name: str) -> Family:
    return Family(name, tuple((c, reference) for c in candidates if c is not reference))


def find(name: str, candidates: Sequence[Candidate]) -> Candidate:
    """A method by its name, or by its label where that is unique. UsageError with the nearest name."""
    hits = [c for c in candidates if c.name == name] or [c for c in candidates if c.label == name]
    if len(hits) != 1:
        raise unknown("method", name, [c.name for c in candidates])
    return hits[0]


def _is_static(candidate: Candidate) -> bool:
    capacity = candidate.capacity
    return capacity.get("schedule") == "static" or capacity.get("blocks") == 1 or capacity.get("gate") == "none"


def _static(mine: Sequence[Candidate]) -> Candidate | None:
    """The base model; all blocks opened on the weights of a schedule is another thing, taken when there is none."""
    fits = [c for c in mine if _is_static(c)]
    return next(iter([*(c for c in fits if c.own_weights), *fits]), None)


def _uniform(mine: Sequence[Candidate]) -> Candidate | None:
    """The paper's schedule: uniform with both gates, without settings of its own if there is one, else the first."""
    fits = [c for c in mine if c.capacity.get("schedule") == "uniform" and not _is_static(c)]
    plain = [c for c in fits if c.first.schedule in ("proteus", "uniform")]
    both = [c for c in fits if c.capacity.get("gate") == "both"]
    return next(iter([*plain, *both, *fits]), None)


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Backbones as they were given; within one static, then uniform, then the rest."""
    ordered: list[Candidate] = []
    for backbone in dict.fromkeys(c.backbone for c in candidates):
        mine = [c for c in candidates if c.backbone == backbone]
        first = [c for c in (_static(mine), _uniform(mine)) if c is not None]
        ordered += first + [c for c in mine if not any(c is other for other in first)]
    return ordered
