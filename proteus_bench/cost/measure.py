"""Seconds and bytes of a model under its schedule and of its static twin: the same weights, called in turn.

train    forward, loss on every eighth position, backward and AdamW (rate 0, so that all calls do the same) of one row
prefill  the context in pieces, as questions are answered
decode   greedy tokens one at a time, from the state after a context of that length

The ids are drawn uniformly from the vocabulary. Order alternates from pair to pair, so that a drift of the machine and a
warm cache hit both sides alike. Peaks are those of torch's own allocations: exact, and equal on every repeat.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # read when torch is loaded: its profiler reports every start on stderr

import torch
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from proteus_bench.backends.recurrent import PREFILL_TOKENS
from proteus_bench.cost.machine import load
from proteus_bench.errors import UsageError
from proteus_bench.schedules import Static

LABEL_EVERY = 8
Call = Callable[[], None]
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}
SIGNIFICANT = 6


@dataclass(frozen=True)
class Request:
    """What to measure: ``pairs`` pairs of calls a line. span "length": the schedule is stretched to each length."""

    lengths: tuple[int, ...]
    measures: tuple[str, ...]
    pairs: int
    decode_tokens: int = 128
    span: str = "own"
    clock: str = "cpu"


@dataclass(frozen=True)
class Twins:
    """A model under its schedule, and the same weights with the whole memory open."""

    scheduled: Any
    static: Any

    @staticmethod
    def of(model: Any, label: str) -> Twins:
        """UsageError (exit 2) for a model that has nothing to compare with."""
        capacity = model.along
        if isinstance(capacity.schedule, Static) or capacity.blocks == 1:
            hint = "" if "+" in label else f": name one, as in {label}+proteus"
            raise UsageError(f"{label} has no schedule along the context whose cost could be measured{hint}")
        static = copy.deepcopy(model)
        schedule = Static(blocks=1, span=capacity.span)
        static.set_capacity(dataclasses.replace(capacity, schedule=schedule))
        return Twins(model, static)

    def at(self, length: int) -> Twins:
        """With the schedule stretched over ``length`` positions."""
        scheduled = copy.deepcopy(self.scheduled)
        scheduled.set_capacity(scheduled.config.capacity.with_span(length))
        return Twins(scheduled, self.static)

    def state_bytes(self) -> tuple[int, int]:
        """Of one sequence: scheduled, static."""
        return int(self.scheduled.init_state(1).nbytes), int(self.static.init_state(1).nbytes)


def line(twins: Twins, measure: str, length: int, request: Request, tick: Call) -> dict[str, Any]:
    """What `leaderboard.cost.cost_block` takes of one measure at one length; ``tick`` is called after every pair."""
    twins = twins if request.span == "own" else twins.at(length)
    busy = load()
    made = [CALLS[measure](model, _ids(model, length), request) for model in (twins.scheduled, twins.static)]
    seconds, static_seconds = paired(made[0], made[1], request.pairs, CLOCKS[request.clock], tick)
    peaks = [peak_bytes(call) for call in made]
    return {
        "measure": measure, "length": length, "tokens": request.decode_tokens if measure == "decode" else length,
        "seconds": _text(seconds), "static_seconds": _text(static_seconds),
        "peak_bytes": peaks[0], "static_peak_bytes": peaks[1], "load": busy,
    }  # fmt: skip


def _ids(model: Any, length: int) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))


def _text(seconds: list[float]) -> str:
    return " ".join(f"{value:.{SIGNIFICANT}g}" for value in seconds)


def _train(model: Any, ids_BT: torch.Tensor, request: Request) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    targets = ids_BT[:, ::LABEL_EVERY].flatten()

    def call() -> None:
        h_BTD, _ = model.hidden(ids_BT)
        cross_entropy(model.logits(h_BTD[:, ::LABEL_EVERY]).flatten(0, 1), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def _read(model: Any, ids_BT: torch.Tensor) -> tuple[torch.Tensor, Any]:
    state, logits_BV = model.init_state(1), torch.empty(0)
    for piece in ids_BT.split(PREFILL_TOKENS, 1):
        logits_BV, state = model.prefill(piece, state)
    return logits_BV, state


def _prefill(model: Any, ids_BT: torch.Tensor, request: Request) -> Call:
    @torch.inference_mode()
    def call() -> None:
        _read(model, ids_BT)

    return call


def _decode(model: Any, ids_BT: torch.Tensor, request: Request) -> Call:
    with torch.inference_mode():
        first_BV, after = _read(model, ids_BT)

    @torch.inference_mode()
    def call() -> None:
        logits_BV, state = first_BV, after
        for _ in range(request.decode_tokens):
            logits_BV, state = model.prefill(logits_BV.argmax(-1)[:, None], state)

    return call


CALLS: dict[str, Callable[[Any, torch.Tensor, Request], Call]] = {"train": _train, "prefill": _prefill, "decode": _decode}


def paired(a: Call, b: Call, pairs: int, clock: Callable[[], float], tick: Call) -> tuple[list[float], list[float]]:
    """Seconds of ``pairs`` calls of each, in turn, after one of each that does not count. No garbage collection between."""
    times: tuple[list[float], list[float]] = ([], [])
    collecting = gc.isenabled()
    a()
    b()
    gc.collect()
    gc.disable()
    try:
        for number in range(pairs):
            for side in (0, 1) if number % 2 else (1, 0):
                begun = clock()
                (a, b)[side]()
                times[side].append(clock() - begun)
            tick()
    finally:
        if collecting:
            gc.enable()
    return times


def peak_bytes(call: Call) -> int:
    """Most bytes of tensors that one call holds at a time, beyond those that stood before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        call()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
