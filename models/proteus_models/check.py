"""Conformance of a model: the lock invariant, causality, chunk = definition, continuation, batch = single.

Each check computes a number and compares it with a tolerance; every number is reported. Models are checked in float64, from
a random NON-ZERO memory state, on random tokens; the span is shortened so that a short sequence crosses every unlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from proteus_models.decoder import DecoderLM, DecoderState, map_tensors

EXACT = 1e-10


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    name: str
    passed: bool
    value: float
    tolerance: float
    detail: str


def check_model(model: DecoderLM, *, length: int = 70, seed: int = 0) -> list[CheckRow]:
    """Run every check on a float64 copy of `model`; the model itself is not changed."""
    config = model.config
    blocks = config.capacity.blocks
    span = max(blocks, (length // 2) // blocks * blocks)
    small = replace(config, capacity=config.capacity.with_span(span), chunk=8, inner=8)
    copy = DecoderLM(small).double()
    copy.load_state_dict({n: t.double() for n, t in model.state_dict().items()})
    copy.requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(small.vocab_size, (2, max(length, 2 * span + 6)), generator=generator)
    rows = []
    for check in (_chunk_is_definition, _gradients, _continuation, _causality, _batch, _invariant, _state_dtype):
        rows.append(check(copy if check is not _state_dtype else model, ids, generator))
    return rows


def random_state(model: DecoderLM, batch: int, generator: torch.Generator) -> DecoderState:
    """A state whose every tensor is random: memory, momentum, anchor, convolution tail."""
    state = model.init_state(batch).detach()
    noise: Callable[[Tensor], Tensor] = lambda x: torch.randn(x.shape, generator=generator, dtype=x.dtype) * 0.3  # noqa: E731
    return replace(state, layers=map_tensors(state.layers, noise))


def _row(name: str, value: float, tolerance: float, detail: str) -> CheckRow:
    return CheckRow(name=name, passed=bool(value <= tolerance), value=value, tolerance=tolerance, detail=detail)


def _gap(a: Any, b: Any) -> float:
    """Largest relative difference over all tensors of two trees."""
    first: list[Tensor] = []
    second: list[Tensor] = []
    map_tensors(a, lambda x: first.append(x) or x)  # type: ignore[func-returns-value]
    map_tensors(b, lambda x: second.append(x) or x)  # type: ignore[func-returns-value]
    pairs = zip(first, second, strict=True)
    return max(float((x - y).abs().max() / y.abs().max().clamp_min(1e-9)) for x, y in pairs)


@torch.no_grad()
def _chunk_is_definition(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    fast = model(ids, start, return_state=True)
    slow = model(ids, start, return_state=True, form="recurrent")
    gap = max(_gap(fast[0], slow[0]), _gap(fast[1].layers, slow[1].layers))
    return _row("chunk = definition", gap, EXACT, f"logits and final state, {ids.shape[1]} tokens, random start")


def _gradients(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    grads = []
    for form in ("chunk", "recurrent"):
        loss = model(ids, start, form=form).logsumexp(-1).square().mean()
        grads.append(
            tuple(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))
        )
    return _row("gradients", _gap(*grads), 1e-8, "every parameter, chunk against definition")


@torch.no_grad()
def _continuation(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    start = random_state(model, len(ids), generator)
    whole, end = model(ids, start, return_state=True)
    capacity, worst = model.config.capacity, 0.0
    unlocks = [offset for offset, _, _ in capacity.segments(0, ids.shape[1]) if offset]
    cuts = sorted({c + d for c in (unlocks or [ids.shape[1] // 2]) for d in (-1, 0, 1)} & set(range(1, ids.shape[1])))
    for cut in cuts:
        left, state = model(ids[:, :cut], start, return_state=True)
        right, state = model(ids[:, cut:], state, return_state=True)
        worst = max(worst, _gap(torch.cat([left, right], 1), whole), _gap(state.layers, end.layers))
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
    return _row("batch = single", _gap(together, alone), EXACT, "equal-length rows")


@torch.no_grad()
def _invariant(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    """(1-g).M_t = (1-g).M_{t-1} at every t, memory and momentum, from a random state."""
    capacity = model.config.capacity
    if capacity.is_static or capacity.gate not in ("both", "write") or capacity.decay_locked != "masked":
        return _row("lock invariant", 0.0, 0.0, f"nothing is locked for writing ({capacity.describe()})")
    state = random_state(model, len(ids), generator)
    dim, worst, seen = model.config.axis_dim(), 0.0, 0
    for t in range(min(ids.shape[1], capacity.span + 2)):
        open_now = int(capacity.active_coords_range(t, 1, dim)[0])
        _, after = model.prefill(ids[:, t : t + 1], state)
        if open_now < dim:
            seen += 1
            for before_layer, after_layer in zip(state.layers, after.layers, strict=True):
                locked = [locked_part(x, capacity.axis, open_now, dim) for x in (before_layer, after_layer)]
                worst = max([worst, *(float((a - b).abs().max()) for a, b in zip(*locked, strict=True))])
        state = after
    return _row(
        "lock invariant", worst, 0.0, f"memory and momentum at {seen} positions with locked blocks, random start"
    )


def locked_part(layer: Any, axis: str, open_now: int, dim: int) -> list[Tensor]:
    """The locked coordinates of every memory tensor of one layer's state (not the convolution tail)."""
    memory = layer[1]
    tensors = [memory] if isinstance(memory, Tensor) else [*memory.weights, *memory.momentum]
    if axis == "hidden":
        return [x.narrow(2 if i % 2 == 0 else 3, open_now, dim - open_now) for i, x in enumerate(tensors)]
    place = {"head": 1, "key": 2, "value": 3}[axis]
    return [x.narrow(place, open_now, dim - open_now) for x in tensors]


@torch.no_grad()
def _state_dtype(model: DecoderLM, ids: Tensor, generator: torch.Generator) -> CheckRow:
    _, state = model.prefill(ids[:, :8])
    wrong: list[str] = []
    map_tensors(state.layers, lambda x: (wrong.append(str(x.dtype)) if x.element_size() < 4 else None) or x)  # type: ignore[func-returns-value]
    return _row("state in fp32", float(len(wrong)), 0.0, "no state tensor under 32 bits")
