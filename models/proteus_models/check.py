"""Conformance of a model: what a schedule locks is neither written nor read, and every form and cut is one function.

Each check computes a number and compares it with a tolerance; every number is reported. Models are checked in float64, from
a random NON-ZERO memory state, on random tokens; the span is shortened so that a short sequence crosses every unlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from proteus_bench.schedules import Capacity, DataDependent, Surprise
from proteus_models.decoder import DecoderLM, DecoderState, evaluated, leaves, map_tensors
from proteus_models.mixer import MatrixMixer

EXACT = 1e-10
FORMS = ("chunk", "recurrent")


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    name: str
    passed: bool
    value: float
    tolerance: float
    detail: str


def check_model(model: DecoderLM, *, length: int = 70, seed: int = 0) -> list[CheckRow]:
    """Run every check on a float64 copy of `model`; the model itself is not changed."""
    config = evaluated(model.config)
    blocks = config.capacity.blocks
    span = max(blocks, (length // 2) // blocks * blocks)
    reach = {name: min(getattr(config, name), size) for name, size in (("window", 9), ("segment", 10))}
    small = replace(config, capacity=_shortened(config.capacity, span), chunk=8, inner=8, **reach)
    copy = DecoderLM(small).double()
    copy.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    copy.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(small.vocab_size, (2, max(length, 2 * span + 6)), generator=generator)
    rows = []
    for check in (_chunk_is_definition, _gradients, _continuation, _causality, _batch, _past_inputs):
        rows.append(check(copy, ids, generator))
    return [*rows, *_locks(copy, ids, generator), _locked_reads(copy, ids, generator), _state_dtype(model, ids)]


def _shortened(capacity: Capacity, span: int) -> Capacity:
    """Over a short span; a data-dependent schedule also decides more often, and opens all it may."""
    schedule = capacity.schedule.with_span(span)
    if isinstance(schedule, DataDependent):
        schedule = replace(schedule, every=max(1, span // capacity.blocks))
        if isinstance(schedule, Surprise):
            schedule = replace(schedule, tau=0.0, budget=1.0)
    return replace(capacity, schedule=schedule)


def _segments(model: DecoderLM, ids: Tensor, state: DecoderState) -> list[tuple[int, int, int]]:
    """(start, length, open blocks) of the first row's segments: by time, or as the data had them."""
    capacity, total = model.config.capacity, ids.shape[1]
    if not capacity.is_data_dependent:
        return capacity.segments(0, total)
    _, end = model.prefill(ids[:1], state.select([0]))
    starts = [0, *(t - 1 for t in end.openings[0].unlocks if t <= total)]
    return [(a, b - a, k) for k, (a, b) in enumerate(pairwise([*starts, total]), 1)]


def random_state(model: DecoderLM, batch: int, generator: torch.Generator) -> DecoderState:
    """A state whose every real tensor is random: memory, momentum, anchor, windows of past inputs."""

    def noise(x: Tensor) -> Tensor:
        return 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype) if x.is_floating_point() else x

    state = model.init_state(batch).detach()
    return replace(state, layers=map_tensors(state.layers, noise))


def _row(name: str, value: float, tolerance: float, detail: str) -> CheckRow:
    return CheckRow(name=name, passed=bool(value <= tolerance), value=value, tolerance=tolerance, detail=detail)


def change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Largest absolute difference of paired tensors; zero when they are empty."""
    return max((float((a - b).abs().max()) for a, b in zip(before, after, strict=True) if a.numel()), default=0.0)


def distance(a: Any, b: Any) -> float:
    """Largest relative difference over all tensors of two trees; infinite where one is not finite."""
    worst = 0.0
    for x, y in zip(leaves(a), leaves(b), strict=True):
        if x.shape != y.shape or not (x.isfinite().all() and y.isfinite().all()):
            return float("inf")
        if y.numel():
            worst = max(worst, float((x - y).abs().max() / y.abs().max().clamp_min(1e-9)))
    return worst


@torch.no_grad()
def _chunk_is_definition(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    fast = model(ids, start, return_state=True)
    slow = model(ids, start, return_state=True, form="recurrent")
    gap = max(distance(fast[0], slow[0]), distance(fast[1].layers, slow[1].layers))
    return _row("chunk = definition", gap, EXACT, f"logits and final state, {ids.shape[1]} tokens, random start")


def _gradients(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    grads = []
    for form in FORMS:
        loss = model(ids, start, form=form).logsumexp(-1).square().mean()
        grads.append(
            tuple(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))
        )
    return _row("gradients", distance(*grads), EXACT, "every parameter, chunk against definition")


@torch.no_grad()
def _continuation(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    whole, end = model(ids, start, return_state=True)
    worst = 0.0
    unlocks = [offset for offset, _, _ in _segments(model, ids, start) if offset]
    cuts = sorted({c + d for c in (unlocks or [ids.shape[1] // 2]) for d in (-1, 0, 1)} & set(range(1, ids.shape[1])))
    for cut in cuts:
        left, state = model(ids[:, :cut], start, return_state=True)
        right, state = model(ids[:, cut:], state, return_state=True)
        worst = max(worst, distance(torch.cat([left, right], 1), whole), distance(state.layers, end.layers))
    return _row("continuation", worst, EXACT, f"cut at {len(cuts)} places: each unlock, one before, one after")


@torch.no_grad()
def _causality(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    base, worst = model(ids), 0.0
    for t in (1, ids.shape[1] // 2, ids.shape[1] - 1):
        other = ids.clone()
        other[:, t:] = (other[:, t:] + 1) % model.config.vocab_size
        worst = max(worst, float((model(other)[:, :t] - base[:, :t]).abs().max()))
    return _row("causality", worst, EXACT, "a later token changes no earlier logit")


@torch.no_grad()
def _batch(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    together = model(ids)
    alone = torch.cat([model(row[None]) for row in ids])
    return _row("batch = single", distance(together, alone), EXACT, "equal-length rows")


@torch.no_grad()
def _past_inputs(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    """A past input belongs to no mask: a write that uses it again does so with the mask of the writing position.

    So what the first layer keeps of its inputs at an unlock is what it keeps without a schedule.
    """
    name, block = "past inputs", model.stack[0]
    mixer, dim = block.mixer, model.config.axis_dim()
    if _is_open(model) or not isinstance(mixer, MatrixMixer):
        return _row(name, 0.0, EXACT, "nothing is locked" if _is_open(model) else "what this layer keeps is what it has read")
    start = random_state(model, len(ids), generator)
    open_T = [model.config.capacity.active_coords(k, dim) for _, n, k in _segments(model, ids, start) for _ in range(n)]
    x, worst, cuts = block.norm_mixer(model.embed(ids)), 0.0, [t for t in range(1, len(open_T)) if open_T[t] != open_T[t - 1]]
    for cut in cuts:
        for form in FORMS:
            ends = [mixer(x[:, :cut], start.layers[0], active, form)[1] for active in (open_T[:cut], None)]
            kept = [[z for z in leaves(end) if not any(z is m for m in mixer.memories(end))] for end in ends]
            worst = max(worst, distance(tuple(kept[0]), tuple(kept[1])))
    return _row(name, worst, EXACT, f"convolution tails and windows at {len(cuts)} unlocks are those of the static model")


def _is_open(model: DecoderLM) -> bool:
    """Whether no position locks anything, as the model itself has it."""
    return model.along.is_static


@torch.no_grad()
def _locks(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> list[CheckRow]:
    """At every t, from a random state: (1-g).M_t = (1-g).M_{t-1}, and the last coordinate that is open IS written."""
    capacity = model.config.capacity
    names = ("lock invariant", "unlock time")
    if _is_open(model) or capacity.gate not in ("both", "write") or capacity.decay_locked != "masked":
        return [_row(name, 0.0, 0.0, f"nothing is locked for writing ({capacity.describe()})") for name in names]
    state = random_state(model, len(ids), generator)
    dim, worst, seen, late = model.config.axis_dim(), 0.0, 0, 0
    blocks = [k for _, length, k in _segments(model, ids, state) for _ in range(length)]
    if capacity.is_data_dependent:  # rows may differ in k
        ids, state = ids[:1], state.select([0])
    steps = min(ids.shape[1], capacity.span + 2)
    for t in range(steps):
        open_now = capacity.active_coords(blocks[t], dim)
        _, after = model.prefill(ids[:, t : t + 1], state)
        for block, *layers in zip(model.stack, state.layers, after.layers, strict=True):
            moved, with_last = (
                change(*(block.mixer.locked(layer, n) for layer in layers)) for n in (open_now, open_now - 1)
            )
            worst, late = max(worst, moved), late + (with_last == 0)
        seen += open_now < dim
        state = after
    return [
        _row(names[0], worst, 0.0, f"memory and momentum at {seen} positions with locked blocks, random start"),
        _row(names[1], float(late), 0.0, f"positions of {steps} whose last open coordinate was not written"),
    ]


@torch.no_grad()
def _locked_reads(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    """Whatever a locked block holds, no logit of its segment changes: in both forms, for every segment."""
    name, capacity = "locked reads", model.config.capacity
    if _is_open(model) or capacity.gate != "both":
        return _row(name, 0.0, 0.0, f"locked blocks may be read ({capacity.describe()})")
    state, dim, worst, seen = random_state(model, len(ids), generator), model.config.axis_dim(), 0.0, 0
    segments = _segments(model, ids, state)
    if capacity.is_data_dependent:
        ids, state = ids[:1], state.select([0])
    for start, length, blocks in segments:
        part, open_now = ids[:, start : start + length], capacity.active_coords(blocks, dim)
        if open_now < dim:
            seen += 1
            other = replace(state, layers=map_tensors(state.layers, torch.clone))
            for block, layer in zip(model.stack, other.layers, strict=True):
                for x in block.mixer.locked(layer, open_now):
                    x.normal_(generator=generator)
            if distance(other.layers, state.layers) == 0:
                return _row(name, float("inf"), 0.0, "Mixer.locked must return views of the state")
            for form in FORMS:
                worst = max(worst, distance(model(part, other, form=form), model(part, state, form=form)))
        _, state = model.prefill(part, state)
    return _row(name, worst, 0.0, f"other contents in the locked blocks of {seen} segments change no logit")


@torch.no_grad()
def _state_dtype(model: DecoderLM, ids: Tensor) -> CheckRow:
    _, state = model.prefill(ids[:, :8])
    narrow = [x for x in leaves(state.layers) if x.element_size() < 4]
    return _row("state in fp32", float(len(narrow)), 0.0, "no state tensor under 32 bits")
