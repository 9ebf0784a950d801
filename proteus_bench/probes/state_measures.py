"""What the state side shows, as flat rows: means over seeds and contexts with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from proteus_bench.probes.measures import Measure, measure, over_contexts
from proteus_bench.probes.state import SEGMENTS

EARLY = SEGMENTS // 4
Contexts = Sequence[Sequence[dict[str, Any]]]
"""Seeds x contexts of what `state.collect` returned."""


def state_measures(by_model: Mapping[str, Contexts], unlocks: Mapping[str, Sequence[int]]) -> list[Measure]:
    """All rows of all models. Layers are numbered from 1."""
    rows: list[Measure | None] = []
    for model, contexts in by_model.items():
        rows += _shares(model, contexts)
        rows += _before_unlock(model, contexts, unlocks[model])
        if "facts" in contexts[0][0]:
            rows += _retention(model, contexts)
        if "joint" in contexts[0][0]:
            rows += _sets(model, contexts)
    return [row for row in rows if row is not None]


def grid(contexts: Contexts, value: Any) -> np.ndarray:
    """``value(context)`` over seeds and contexts, ``[seeds, contexts]``; NaN where it gave None."""
    return np.array([[_number(value(context)) for context in row] for row in contexts], dtype=np.float64)


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


_SHARES = ("state_share", "early_share", "keys_overlap", "keys_overlap_prose")


def _row(name: str, model: str, values: np.ndarray, **where: Any) -> Measure | None:
    """None where no context has a number. A state that diverged in some contexts is said, not averaged over."""
    bounds = (0.0, 1.0) if name in _SHARES else None
    bad = int((~np.isfinite(values)).sum())
    if bad == values.size:
        return None
    if not bad:
        return measure(name, model, over_contexts(values, bounds), **where)
    kept = np.isfinite(values).all(0)
    if not kept.any():
        return None
    row = measure(name, model, over_contexts(values[:, kept], bounds), **where)
    assert row is not None
    return {**row, "note": f"{bad} of {values.size} contexts are not finite and left out"}


def layers(contexts: Contexts) -> int:
    """How many layers the memory has."""
    return len(contexts[0][0]["energy"][0])


def _shares(model: str, contexts: Contexts) -> Iterator[Measure | None]:
    for layer in range(layers(contexts)):
        for segment in range(SEGMENTS):
            values = grid(contexts, lambda c, i=layer, s=segment: c["share"]["by_segment"][i][s])
            yield _row("state_share", model, values, layer=layer + 1, x=segment)
        early = grid(contexts, lambda c, i=layer: sum(c["share"]["by_segment"][i][:EARLY]))
        yield _row("early_share", model, early, layer=layer + 1)


def _before_unlock(model: str, contexts: Contexts, unlocks: Sequence[int]) -> Iterator[Measure | None]:
    """Energy of a block at the token before it opens, over its energy at the end."""
    for layer in range(layers(contexts)):
        for block, at in enumerate(unlocks):
            if at <= 1 or at > contexts[0][0]["marks"][-1]:
                continue
            values = grid(contexts, lambda c, i=layer, e=block, t=at: _fraction(c, i, e, t))
            yield _row("energy_before_unlock", model, values, layer=layer + 1, x=block + 1)


def _fraction(context: dict[str, Any], layer: int, block: int, unlock: int) -> float | None:
    end = context["energy"][-1][layer][block]
    before = context["energy"][context["marks"].index(unlock - 1)][layer][block]
    return before / end if end else None


def _retention(model: str, contexts: Contexts) -> Iterator[Measure | None]:
    for layer in range(layers(contexts)):
        for block in range(SEGMENTS):
            for name in ("retained", "written"):
                values = grid(contexts, lambda c, i=layer, b=block, n=name: _fact(c["facts"], b, n, i))
                yield _row(f"state_{name}", model, values, layer=layer + 1, x=block)


def _fact(facts: Sequence[dict[str, Any]], block: int, name: str, layer: int) -> float | None:
    """Of the facts in a block, the mean; a value may stand a few tokens beyond its block's edge."""
    found = [fact[name][layer] for fact in facts if fact["block"] == block]
    kept = [value for value in found if value is not None]
    return sum(kept) / len(kept) if kept else None


def _sets(model: str, contexts: Contexts) -> Iterator[Measure | None]:
    """A's traces with B behind them and with prose; B's strength with A before it and with prose; keys and read-outs."""
    for layer in range(layers(contexts)):
        where = {"layer": layer + 1}
        with_b = grid(contexts, lambda c, i=layer: _mean(c["joint"], "A", "retained", i))
        with_prose = grid(contexts, lambda c, i=layer: _mean(c["a_alone"], "A", "retained", i))
        yield _row("retained_before_facts", model, with_b, **where)
        yield _row("retained_before_prose", model, with_prose, **where)
        yield _row("state_retroactive", model, with_prose - with_b, **where)
        after_a = grid(contexts, lambda c, i=layer: _mean(c["joint"], "B", "written", i))
        after_prose = grid(contexts, lambda c, i=layer: _mean(c["b_alone"], "B", "written", i))
        with np.errstate(divide="ignore", invalid="ignore"):
            yield _row("state_proactive", model, 1 - after_a / after_prose, **where)
        if "addressed" in contexts[0][0]:
            for name in ("error_joint", "error_alone", "overlap", "overlap_prose"):
                values = grid(contexts, lambda c, i=layer, n=name: c["addressed"][n][i])
                yield _row(f"keys_{name}", model, values, **where)


def _mean(facts: Sequence[dict[str, Any]], role: str, name: str, layer: int) -> float | None:
    found = [fact[name][layer] for fact in facts if fact["role"] == role]
    return None if not found or any(value is None for value in found) else sum(found) / len(found)


def courses(by_model: Mapping[str, Contexts], unlocks: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Occupancy, effective rank and segment-by-block shares of each model, averaged over seeds and contexts, for plots.

    energy: each block's share of the final memory's energy, ``[marks, layers, blocks]``. marks: fractions of the context,
    means over contexts, whose lengths differ by a few tokens.
    """
    found = {}
    for model, contexts in by_model.items():
        flat = [context for row in contexts for context in row]
        size = min(len(context["marks"]) for context in flat)
        marks = np.mean([context["marks"][:size] for context in flat], 0)
        energy = [_of_end(np.array(context["energy"][:size], dtype=float)) for context in flat]
        rank = [np.array(context["rank"][:size], dtype=float) for context in flat]
        share = [np.array(context["share"]["by_segment_and_block"], dtype=float) for context in flat]
        found[model] = {
            "unlocks": list(unlocks[model]),
            "marks": np.round(marks, 1).tolist(),
            "energy": _rounded(np.mean(energy, 0)),
            "rank": _rounded(np.mean(rank, 0)),
            "share": _rounded(np.mean(share, 0)),
        }
    return found


def _of_end(energy: np.ndarray) -> np.ndarray:
    """Divided by the whole memory's energy at the end, layer by layer."""
    end = energy[-1].sum(-1, keepdims=True)
    return energy / np.where(end > 0, end, 1.0)


def _rounded(values: np.ndarray) -> Any:
    return np.where(np.isfinite(values), np.round(values, 5), 0.0).tolist()
