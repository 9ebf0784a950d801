"""What a probe answers on the text side, as flat rows: one measured number with its interval and where it belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from proteus_bench.probes.curves import Overload, overload
from proteus_bench.probes.sets import pairs_of
from proteus_bench.probes.text import BLOCKS, Record, effect, effect_of, estimate, matrix, pick
from proteus_bench.stats import Interval, cluster_mean_ci, crossed_anova, paired_difference

Measure = dict[str, Any]
LEVELS = (0.9, 0.5)
NOT_SEPARABLE = "not separable from none"
_LOAD = re.compile(r"capacity\.mqar_(\d+)")


def measure(name: str, model: str, interval: Interval | None, **where: Any) -> Measure | None:
    """One row. ``where``: task, role, x, layer, column ... None where nothing could be measured."""
    if interval is None:
        return None
    return {
        "measure": name,
        "model": model,
        **where,
        "value": interval.mean,
        "ci_low": interval.lo,
        "ci_high": interval.hi,
        "ci_method": interval.method,
        "n": interval.n,
        "note": interval.note,
    }


def scaled(interval: Interval, factor: float) -> Interval:
    """The interval of a multiple of the mean."""
    lo, hi = (None if end is None else factor * end for end in (interval.lo, interval.hi))
    return Interval(factor * interval.mean, lo, hi, interval.n, interval.method, note=interval.note)


def models_of(found: Sequence[Record]) -> list[str]:
    """In the order of the run."""
    return list(dict.fromkeys(record.model for record in found))


def loads_of(found: Sequence[Record]) -> dict[int, str]:
    """Task by number of pairs, ascending."""
    loads = {int(match[1]): r.task for r in found if (match := _LOAD.fullmatch(r.task))}
    return dict(sorted(loads.items()))


def common(found: Sequence[Record]) -> Iterator[Measure | None]:
    """Of every probe: recall and gold log-probability by task and role, and recall by insertion block."""
    for model in models_of(found):
        for task in dict.fromkeys(record.task for record in pick(found, model=model)):
            here = pick(found, model=model, task=task)
            for role in dict.fromkeys(record.role for record in here):
                mine = pick(here, role=role)
                yield measure("recall", model, estimate(mine), task=task, role=role)
                yield measure("logprob", model, estimate(mine, "logprob"), task=task, role=role)
                for block in range(BLOCKS):
                    there = pick(mine, block=block)
                    where: dict[str, Any] = {"task": task, "role": role, "x": block}
                    yield measure("recall_by_block", model, estimate(there), **where)
                    yield measure("logprob_by_block", model, estimate(there, "logprob"), **where)


def capacity(found: Sequence[Record]) -> Iterator[Measure | None]:
    """Recall against load, pairs held, recall against distance, and what rewriting costs."""
    for model in models_of(found):
        for n, task in loads_of(found).items():
            mine = pick(found, model=model, task=task)
            interval = estimate(mine)
            yield measure("recall_by_load", model, interval, task=task, x=n)
            yield measure("logprob_by_load", model, estimate(mine, "logprob"), task=task, x=n)
            if interval is not None:
                yield measure("pairs_held", model, scaled(interval, n), task=task, x=n)
        yield from _by_distance(pick(found, model=model, task="capacity.mqar_16"), model)
        yield from _rewriting(pick(found, model=model), model)


def overload_points(found: Sequence[Record]) -> list[dict[str, Any]]:
    """For each model and level: the load at which recall falls below it. Fewer than two loads give none."""
    loads = loads_of(found)
    points = []
    for model in models_of(found):
        intervals = [estimate(pick(found, model=model, task=task)) for task in loads.values()]
        kept = [(n, interval) for n, interval in zip(loads, intervals, strict=True) if interval is not None]
        if len(kept) < 2:
            continue
        for level in LEVELS:
            point: Overload = overload([n for n, _ in kept], [interval for _, interval in kept], level)
            points.append({"model": model, **point.as_dict()})
    return points


def _by_distance(found: Sequence[Record], model: str) -> Iterator[Measure | None]:
    """Recall by tokens between the fact and the question; bins double."""
    if not found:
        return
    longest = max(record.distance for record in found)
    low, high = 0, 128
    while low < longest:
        here = [record for record in found if low < record.distance <= high]
        yield measure("recall_by_distance", model, estimate(here), x=high, low=low)
        yield measure("logprob_by_distance", model, estimate(here, "logprob"), x=high, low=low)
        low, high = high, 2 * high


def _rewriting(found: Sequence[Record], model: str) -> Iterator[Measure | None]:
    """Last value of a rewritten key, the same for keys written once, their difference, and answers with the old value."""
    for task in dict.fromkeys(record.task for record in found if record.task.startswith("capacity.rewrite_")):
        here = pick(found, task=task)
        again, once = pick(here, role="rewritten"), pick(here, role="once")
        yield measure("stale", model, estimate(again, "stale"), task=task)
        for column in ("strict", "logprob"):
            cost = effect(f"{model}|{task}|{column}", once, again, column)
            yield measure("rewriting_cost", model, cost, task=task, column=column)


def interference(found: Sequence[Record]) -> list[Measure]:
    """Retroactive and proactive interference of every pair of sizes and gap that was asked with its single sets."""
    rows: list[Measure | None] = []
    for model in models_of(found):
        for name, alone, joint, where in _effects(pick(found, model=model)):
            for column in ("strict", "logprob"):
                seen = effect(f"{model}|{name}|{where}|{column}", alone, joint, column)
                rows.append(measure(name, model, seen, column=column, **where))
    return [row for row in rows if row is not None]


def interference_contrasts(found: Sequence[Record]) -> list[Measure]:
    """The first model's interference less every other's, on the seeds that both have: which of them suffers more?"""
    first, *others = models_of(found)
    rows: list[Measure | None] = []
    for other in others:
        seeds = {r.seed for r in pick(found, model=first)} & {r.seed for r in pick(found, model=other)}
        shared = [record for record in found if record.seed in seeds]
        sides = zip(_effects(pick(shared, model=first)), _effects(pick(shared, model=other)), strict=True)
        for (name, alone_a, joint_a, where), (_, alone_b, joint_b, _) in sides:
            for column in ("strict", "logprob"):
                four = (alone_a, joint_a, alone_b, joint_b)
                if not seeds or any(getattr(r, column) is None for side in four for r in side):
                    continue
                a, b = (
                    paired_difference(matrix(x, column), matrix(y, column)).scores
                    for x, y in ((alone_a, joint_a), (alone_b, joint_b))
                )
                # Halved into [-1, 1], where the interval's bounds hold, and doubled again.
                halved = effect_of(f"{first}|{other}|{name}|{where}|{column}", (a - b) / 2, column)
                seen = scaled(halved, 2)
                rows.append(measure(f"{name}_contrast", first, seen, other=other, column=column, **where))
    return [row for row in rows if row is not None]


def _effects(found: Sequence[Record]) -> Iterator[tuple[str, list[Record], list[Record], dict[str, Any]]]:
    """(retroactive or proactive, the set alone, the set beside the other, sizes and gap), for every pair that was asked."""
    for pair in pairs_of({record.task for record in found}):
        alone, joint = pick(found, task=pair.alone), pick(found, task=pair.task, role=pair.role)
        yield pair.name, alone, joint, {"task": pair.task, "a": pair.a, "b": pair.b, "gap": pair.gap}


def sentences(rows: Sequence[Measure]) -> list[str]:
    """What the interference rows show, in words: points of recall, and nats, which show it long before."""
    words = {
        "retroactive": "{b} facts behind {a} cost the earlier ones {points} and {nats}",
        "proactive": "{a} facts before {b} cost the later ones {points} and {nats}",
    }
    found = []
    for row in rows:
        if row["measure"] not in words or row["column"] != "strict":
            continue
        same = ("measure", "model", "task")
        nats = next((r for r in rows if r["column"] == "logprob" and all(r[k] == row[k] for k in same)), None)
        gap = f" ({row['gap']}% of the window between them)" if row["gap"] else ""
        shown = {"points": f"{amount(row, 100)} points of recall", "nats": "no finite log-probability"}
        verdicts = [outcome(row)]
        if nats is not None:
            shown["nats"] = f"{amount(nats, 1, digits=2)} nats"
            verdicts.append(outcome(nats))
        said = verdicts[0] if len(set(verdicts)) == 1 else f"{verdicts[0]} in points, {verdicts[1]} in nats"
        found.append(f"{row['model']}: {words[row['measure']].format(a=row['a'], b=row['b'], **shown)}{gap}: {said}")
    return found


def amount(row: Measure, scale: float, digits: int = 1) -> str:
    """A difference with its interval, or why there is none."""
    lo, hi = row["ci_low"], row["ci_high"]
    span = f"({row['note']})" if lo is None or hi is None else f"[{scale * lo:+.{digits}f}, {scale * hi:+.{digits}f}]"
    return f"{scale * row['value']:+.{digits}f} {span}"


def outcome(row: Measure) -> str:
    """interference, facilitation, or not separable from none: by whether the interval leaves zero out."""
    lo, hi = row["ci_low"], row["ci_high"]
    if lo is None or hi is None or lo <= 0 <= hi:
        return NOT_SEPARABLE
    return "interference" if lo > 0 else "the other set helps"


def over_contexts(values: np.ndarray, bounds: tuple[float, float] | None = None) -> Interval:
    """Mean of ``[seeds, contexts]`` with an interval over both (over contexts with one seed)."""
    return cluster_mean_ci(values[0], bounds=bounds) if len(values) == 1 else crossed_anova(values, bounds=bounds)
