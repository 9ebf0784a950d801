"""The state side of a probe: one model and training seed, a few contexts, traced. Results are plain JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from proteus_bench.errors import UsageError
from proteus_bench.probes.memory import AddressedMemory, MemoryModel
from proteus_bench.probes.trace import Swap, Trace, trace

SEGMENTS = 16
"""Equal parts of the context: the insertion blocks, and the marks at which the memory is looked at."""
VERSION = 1
Make = Callable[[str, int], Any]
"""(task id, index) -> item."""


def collect(probe: str, model: MemoryModel, tokenizer: Any, make: Make, contexts: int) -> list[dict[str, Any]]:
    """What every context of a probe did to the memory. ``probe``: capacity, gating or interference."""
    one = _interference if probe == "interference" else _spread
    return [one(model, tokenizer, make, index) for index in range(contexts)]


def _spread(model: MemoryModel, tokenizer: Any, make: Make, index: int) -> dict[str, Any]:
    """A fact in each insertion block: its trace, and what the end state owes to each segment of the text."""
    item, other = make("capacity.mqar_16", index), make("capacity.mqar_16", index + 1)
    ids, swaps = fact_swaps(tokenizer, item, spares(item, other))
    blocks = [min(SEGMENTS - 1, SEGMENTS * swap.start // len(ids)) for swap in swaps]
    facts = trace(model, ids, swaps, marks(len(ids), model.unlocks))
    return {
        **_course(facts),
        "facts": [{"block": block, **fact} for block, fact in zip(blocks, _facts(facts), strict=True)],
        "share": _shares(model, ids, tokenizer.encode(other.context)),
    }


def _interference(model: MemoryModel, tokenizer: Any, make: Make, index: int) -> dict[str, Any]:
    """Traces of A's facts with B behind them and with prose behind them, of B's facts with and without A before them."""
    names = {"joint": "interference.a16_b16", "a_alone": "interference.a16_b0", "b_alone": "interference.a0_b16"}
    found: dict[str, Any] = {}
    kept: dict[str, np.ndarray] = {}
    other = make(names["joint"], index + 1)
    spare = spares(make(names["joint"], index), other)
    for name, task in names.items():
        item = make(task, index)
        ids, swaps = fact_swaps(tokenizer, item, spare)
        seen = trace(model, ids, swaps, marks(len(ids), model.unlocks), ranks=name == "joint")
        roles = [item.meta["roles"][place] for place in item.meta["asked"]]
        found[name] = [{"role": role, **fact} for role, fact in zip(roles, _facts(seen), strict=True)]
        if name == "joint":
            found |= {**_course(seen), "share": _shares(model, ids, tokenizer.encode(other.context))}
        kept[name] = ids
    if isinstance(model, AddressedMemory):
        item = make(names["joint"], index)
        found["addressed"] = _addressed(model, tokenizer, item, kept["joint"], kept["a_alone"])
    return found


def marks(tokens: int, unlocks: Sequence[int]) -> list[int]:
    """Token counts at which to look: two a segment, and just before each block opens."""
    even = {max(1, tokens * (i + 1) // (2 * SEGMENTS)) for i in range(2 * SEGMENTS)}
    return sorted({*even, *(at - 1 for at in unlocks if 1 < at <= tokens), tokens})


def spares(item: Any, other: Any) -> dict[str, list[str]]:
    """For each asked key of ``item``, values of ``other`` to put in its value's place, the first one first. They stand
    nowhere else in the text, and a key has the same ones in every task in which it is asked."""
    values = [needle.value for needle in other.needles]
    keys = [item.needles[place].key for place in item.meta["asked"]]
    return {key: values[i % len(values) :] + values[: i % len(values)] for i, key in enumerate(keys)}


def fact_swaps(tokenizer: Any, item: Any, spare: Mapping[str, Sequence[str]]) -> tuple[np.ndarray, list[Swap]]:
    """The context's ids, and for each question one exchange of its fact's value by a value of the same number of tokens.

    Exact for any tokenizer: whole contexts are encoded and compared. UsageError when no value has as many tokens.
    """
    ids = np.asarray(tokenizer.encode(item.context))
    swaps = []
    for place in item.meta["asked"]:
        needle = item.needles[place]
        for value in spare[needle.key]:
            changed = np.asarray(tokenizer.encode(_with_value(item.context, needle, value)))
            if len(changed) == len(ids) and value != needle.value:
                swaps.append(_exchange(ids, changed))
                break
        else:
            raise UsageError(f"{item.id}: no other value of {needle.key} has as many tokens with this tokenizer")
    return ids, swaps


def _with_value(context: str, needle: Any, value: str) -> str:
    at = context.index(needle.value, needle.char_offset)
    return context[:at] + value + context[at + len(needle.value) :]


def _exchange(ids: np.ndarray, changed: np.ndarray) -> Swap:
    """The span in which two texts of one length differ."""
    where = np.flatnonzero(ids != changed)
    return Swap(int(where[0]), changed[where[0] : where[-1] + 1])


def _shares(model: MemoryModel, ids: np.ndarray, other: Sequence[int]) -> dict[str, Any]:
    """What part of the end state's sensitivity each segment has: the segment's text is exchanged for another text's."""
    spare = np.asarray(other)
    edges = [len(ids) * i // SEGMENTS for i in range(SEGMENTS + 1)]
    swaps = []
    for low, high in pairwise(edges):
        piece = spare[low:high]
        if len(piece) < high - low:  # the other context may be a few tokens shorter
            piece = np.concatenate([piece, spare[: high - low - len(piece)]])
        swaps.append(Swap(low, piece))
    seen = trace(model, ids, swaps, [len(ids)], ranks=False)
    total = seen.sensitivity.sum(axis=(0, 2))
    share = seen.sensitivity.transpose(1, 0, 2) / np.where(total > 0, total, 1.0)[:, None, None]
    return {"by_segment": _plain(share.sum(2)), "by_segment_and_block": _plain(share)}


def _course(seen: Trace) -> dict[str, Any]:
    """Occupancy over time: ``[marks, layers, blocks]``."""
    return {"marks": seen.marks.tolist(), "energy": _plain(seen.energy), "rank": _plain(seen.rank)}


def _facts(seen: Trace) -> list[dict[str, Any]]:
    """For each fact: how strongly it was written, and what is left of it at each mark and at the end. ``[layers]``."""
    return [
        {
            "written": _plain(seen.written[i]),
            "retained": _plain(seen.retained[i, -1]),
            "size": _plain(seen.size[i, -1]),
            "course": _plain(seen.retained[i]),
        }
        for i in range(len(seen.written))
    ]


def _addressed(model: Any, tokenizer: Any, item: Any, joint: np.ndarray, alone: np.ndarray) -> dict[str, Any]:
    """Read-out error of A's keys after the second half, with B in it and with prose; overlap of A's keys with both."""
    middle = len(joint) // 2
    spans = {role: _sentence_tokens(tokenizer, item, role, len(joint)) for role in ("A", "B")}
    keys = {name: model.keys(model.start(1), ids[None]) for name, ids in (("joint", joint), ("alone", alone))}
    error: dict[str, list[float]] = {}
    for name, ids in (("joint", joint), ("alone", alone)):
        before = model.feed(model.start(1), ids[None, :middle])
        after = model.feed(before, ids[None, middle:])
        mine = [k[:, [t for t in spans["A"] if t < middle]] for k in keys[name]]
        error[name] = [
            _relative(model.read(before, layer, k), model.read(after, layer, k)) for layer, k in enumerate(mine)
        ]
    second = [t for t in spans["B"] if t >= middle]
    prose = [t for t in second if t < len(alone)]
    overlap = [_overlap(k[0, spans["A"]], k[0, second]) for k in keys["joint"]]
    baseline = [_overlap(k[0, spans["A"]], k[0, prose]) for k in keys["alone"]]
    return {"error_joint": error["joint"], "error_alone": error["alone"], "overlap": overlap, "overlap_prose": baseline}


def _sentence_tokens(tokenizer: Any, item: Any, role: str, tokens: int) -> list[int]:
    """Tokens of all sentences of one set, up to their values."""
    found: set[int] = set()
    for needle, its in zip(item.needles, item.meta["roles"], strict=True):
        if its == role:
            end = item.context.index(needle.value, needle.char_offset) + len(needle.value)
            size = len(tokenizer.encode(" " + item.context[needle.char_offset : end]))
            found |= set(range(needle.token_offset, min(tokens, needle.token_offset + size)))
    return sorted(found)


def _relative(before: np.ndarray, after: np.ndarray) -> float:
    size = float(np.square(before).sum())
    return float(np.square(after - before).sum() / size) if size > 0 else 0.0


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean squared cosine between keys ``[n, heads, K]`` of one head; 1/K for keys without direction in common."""
    a, b = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-30) for x in (a, b))
    return float(np.square(np.einsum("nhk,mhk->hnm", a, b)).mean())


def _plain(values: np.ndarray) -> Any:
    """Nested lists; NaN becomes None, six significant digits are kept."""
    if values.ndim:
        return [_plain(part) for part in values]
    number = float(values)
    return float(f"{number:.6g}") if np.isfinite(number) else None
