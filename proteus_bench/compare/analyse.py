"""From paired scores to lines with corrected verdicts, ranks with ties, and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from proteus_bench.compare.capacity import budget_words
from proteus_bench.compare.load import Candidate, Place
from proteus_bench.compare.pairs import Family, Pair, indices_of
from proteus_bench.stats import (
    Interval,
    Rank,
    Verdict,
    benjamini_hochberg,
    cell_ci,
    checkpoint_ci,
    crossed_anova,
    detectable,
    draws_key,
    holm,
    improvement_ci,
    iqm,
    pilot_variances,
    pool_draws,
    rank_intervals,
    unbounded_difference,
    verdict,
)
from proteus_bench.stats.verdict import Outcome

SUITE = "all"
"""The task of a line that stands for the mean over all tasks (and lengths) of a suite."""
LEVEL = 0.95


@dataclass(frozen=True)
class Line:
    """a - b on one task and length, or over the suite (task `SUITE`, length None or one of several lengths).

    p: of no difference (between checkpoints only, with one seed). p_adjusted: corrected within the family by
    ``correction``, over ``family_size`` comparisons. outcome: after that correction. detectable: the true difference that
    these seeds and items find with 80% power. improvement: probability that a run of a beats one of b.
    """

    family: str
    verdict: Verdict
    task: str
    length: int | None
    logprob: Interval | None
    same_outputs: bool
    improvement: Interval | None = None
    detectable: float | None = None
    p_adjusted: float | None = None
    correction: str = "holm"
    family_size: int = 1
    outcome: Outcome = "not_separable"

    @property
    def p(self) -> float | None:
        """The p-value before correction."""
        return self.verdict.p_value if self.verdict.claim == "methods" else self.verdict.p_items

    @property
    def headline(self) -> bool:
        """Whether this is the line that decides: corrected by Holm, not an exploratory one."""
        return self.correction == "holm"


@dataclass(frozen=True)
class MethodLine:
    """One method over the suite: score in [0, 1] with its interval, interquartile mean, rank where there is one."""

    candidate: Candidate
    score: Interval
    iqm: float
    rank: Rank | None


def compare_family(family: Family, pairs: Mapping[tuple[str, str], Pair]) -> list[Line]:
    """All lines of a family: the headline of each pair (Holm over them), then tasks and lengths (Benjamini-Hochberg)."""
    heads: list[Line] = []
    rest: list[Line] = []
    for a, b in family.pairs:
        pair = pairs[a.name, b.name]
        if len(pair.places) == 1:
            heads.append(_line(family.name, pair, pair.places, *pair.places[0], headline=True))
            continue
        heads.append(_line(family.name, pair, pair.places, SUITE, None, headline=True))
        lengths = sorted({length for _, length in pair.places})
        for length in lengths if len(lengths) > 1 else ():
            here = tuple(place for place in pair.places if place[1] == length)
            rest.append(_line(family.name, pair, here, SUITE, length))
        rest += [_line(family.name, pair, (place,), *place) for place in pair.places]
    return _corrected(heads, "holm") + _corrected(rest, "bh")


def _line(
    family: str, pair: Pair, places: Sequence[Place], task: str, length: int | None, headline: bool = False
) -> Line:
    D, weights = pair.differences(places)
    nats = pair.logprob_differences(places)
    seed = f"{pair.a.name}|{pair.b.name}|{task}|{length}"
    judged = verdict(pair.a.name, pair.b.name, D, seed=seed, B=10_000 if headline else 0, weights=weights)
    same = nats is not None and not any(x.any() for x in (*D, *nats[0]))
    seen = None if nats is None else unbounded_difference(nats[0], weights=nats[1])
    line = Line(family, judged, task, length, seen, same)
    if not headline:
        return line
    sides = [[pair.strict[place][side] for place in places] for side in (0, 1)]
    chance = improvement_ci(sides[0], sides[1], seed=seed, keys=pair.keys(places)) if len(pair.seeds) > 1 else None
    return replace(line, improvement=chance, detectable=_detectable(D, weights))


def _detectable(D: list[np.ndarray], weights: list[float]) -> float | None:
    """With 80% power, from the variances of these very differences; None without variance or with one item in a task."""
    if min(task.shape[1] for task in D) < 2:
        return None
    variances, _ = pilot_variances(D, weights)
    items = len(D) / sum(1 / task.shape[1] for task in D)
    found = detectable(variances, D[0].shape[0], items, LEVEL)
    return found if found > 0 else None


def _corrected(lines: list[Line], correction: str) -> list[Line]:
    tested = [(i, line.p) for i, line in enumerate(lines)]
    values = [p for _, p in tested if p is not None]
    adjusted = iter((holm if correction == "holm" else benjamini_hochberg)(values))
    out = []
    for line, (_, p) in zip(lines, tested, strict=True):
        q = next(adjusted) if p is not None else None
        outcome = line.verdict.outcome
        if outcome in ("better", "worse") and (q is None or q >= 1 - LEVEL):
            outcome = "not_separable"
        out.append(
            replace(line, p_adjusted=q, correction=correction, family_size=len(values), outcome=outcome)
        )
    return out


def method_lines(candidates: Sequence[Candidate], ranks: Mapping[str, Rank]) -> list[MethodLine]:
    """Each method over all its places and the seeds that have all of them, with equal weights."""
    return [_method_line(candidate, ranks.get(candidate.name)) for candidate in candidates]


def _method_line(candidate: Candidate, rank: Rank | None) -> MethodLine:
    cells = candidate.cells
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in cells.values())))
    matrices, keys = [], []
    for place, by_seed in cells.items():
        items = sorted(set.intersection(*(set(by_seed[seed]) for seed in seeds))) if seeds else []
        if items:
            matrices.append(np.array([[by_seed[seed][item].strict for item in items] for seed in seeds]))
            keys.append(draws_key(place[0], candidate.draws, indices_of(by_seed[seeds[0]], items)))
    if not matrices:
        return MethodLine(candidate, Interval(0.0, None, None, 0, "none", note="no complete cells"), 0.0, rank)
    means = np.stack([matrix.mean(axis=1) for matrix in matrices], axis=1)
    pooled, weights = pool_draws(matrices, keys)
    if len(seeds) > 1:
        score = crossed_anova(pooled, weights=weights)
    elif len(pooled) == 1:
        score = cell_ci(pooled[0][0])
    else:
        score = checkpoint_ci(pooled, weights, bounds=(0.0, 1.0))
    return MethodLine(candidate, score, iqm(means), rank)


def ranking(pairs: Mapping[tuple[str, str], Pair], names: Sequence[str]) -> dict[str, Rank]:
    """Rank intervals from Holm-corrected comparisons of all pairs over the suite. Needs every pair, and two seeds."""
    keys = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    if len(names) < 2 or any(key not in pairs or len(pairs[key].seeds) < 2 for key in keys):
        return {}
    judged = []
    for a, b in keys:
        D, weights = pairs[a, b].differences()
        judged.append(verdict(a, b, D, B=0, weights=weights))
    adjusted = holm([1.0 if v.p_value is None else v.p_value for v in judged])
    signs = {"better": 1, "worse": -1}
    outcomes = {
        key: signs.get(v.outcome, 0) if p < 1 - LEVEL else 0 for key, v, p in zip(keys, judged, adjusted, strict=True)
    }
    return {rank.name: rank for rank in rank_intervals(names, outcomes)}


def words(line: Line) -> str:
    """The line in one or two sentences: verdict, correction, what could have been found, log-probability."""
    v = line.verdict
    if line.same_outputs:
        return f"{v.a} and {v.b} are one function here: every score and every log-probability is equal"
    text = v.text
    if line.outcome != v.outcome:
        text = (
            f"{v.a} and {v.b} are not separable after the correction for {line.family_size} comparisons: difference "
            f"{100 * v.primary.mean:+.1f} points {_span(v.primary)}, {_p(line.p)}, corrected {show_p(line.p_adjusted)}"
        )
    elif line.family_size > 1 and line.p_adjusted is not None and v.outcome in ("better", "worse"):
        text += f" ({_p(line.p_adjusted)} after Holm over {line.family_size} comparisons)"
    if v.bootstrap is not None and v.bootstrap.excludes_zero != v.primary.excludes_zero:
        text += f"; the bootstrap interval {_span(v.bootstrap)} says otherwise"
    if line.outcome == "not_separable" and line.detectable is not None:
        text += f"; a true difference of {100 * line.detectable:.1f} points would have been found with 80% power"
    return f"{text}. {logprob_words(line)}"


def logprob_words(line: Line) -> str:
    """The same comparison in nats: continuous, so it separates models long before whole answers do."""
    i, v = line.logprob, line.verdict
    if i is None:
        return "The gold log-probability is not finite everywhere: no comparison in nats."
    if i.lo is None or i.hi is None:
        return f"The gold log-probability differs by {i.mean:+.2f} nats an item; {i.note}."
    span = f"{i.mean:+.2f} nats an item [{i.lo:+.2f}, {i.hi:+.2f}]"
    if not i.excludes_zero:
        return f"The gold log-probability does not separate them: {span}."
    return f"{v.a} gives the gold answer {'more' if i.mean > 0 else 'less'} probability: {span}."


def capacity_words(family: Family) -> list[str]:
    """One line a pair on equal or unequal capacity."""
    return [budget_words(a, b)[0] for a, b in family.pairs]


def show_p(p: float | None) -> str:
    """Three decimals; smaller values as a bound."""
    return "none" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def _p(p: float | None) -> str:
    shown = show_p(p)
    return f"p {shown[0]} {shown[1:]}" if shown.startswith("<") else f"p = {shown}"


def _span(interval: Interval) -> str:
    if interval.lo is None or interval.hi is None:
        return f"no interval ({interval.note})"
    return f"[{100 * interval.lo:+.1f}, {100 * interval.hi:+.1f}]"
