"""Conformance of anybody's model through three functions and a few optional hooks; `check.py` looks deeper into ours.

A `Subject` is what a model shows. The checks compare its fast pass (`prefill`) with its one-token step, which is the
definition as far as a stranger's model has one, and watch the memory through the hooks. A hook that is missing makes its
checks "not shown": such a row neither passes nor fails, and the summary says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from proteus_bench.schedules import Capacity
from proteus_models.check import CheckRow, change, distance
from proteus_models.decoder import leaves, map_tensors

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
"""Relative: rounding of a few dozen steps in the model's own type."""


@runtime_checkable
class Subject(Protocol):
    """The least that a model shows. States are trees (tuples, dataclasses) of tensors, batch first; t starts at 1.

    capacity: the schedule that the model follows, over a span short enough for a check (a few dozen positions).
    dim: size of the scheduled axis. prefill(ids_BT, state) -> (logits_BV after the last token, state).
    step(ids_B, state) -> (logits_BV, state). `state` None is the state before the first token.

    Optional hooks, looked up by name:
      locked(state, n) -> sequence of VIEWS of every memory tensor's locked coordinates when n are open (momentum and
        normalisers included): lock invariant, unlock time, locked reads.
      logits(ids_BT) -> logits_BTV in one pass: causality.
      static(ids_BT) -> logits_BV of the base model on the same weights, and with_blocks(E) -> Subject: E = 1 is the base.
      parameters() -> the trained tensors: gradients.
    """

    vocab_size: int
    capacity: Capacity
    dim: int

    def init_state(self, batch: int) -> Any: ...
    def prefill(self, ids_BT: Tensor, state: Any) -> tuple[Tensor, Any]: ...
    def step(self, ids_B: Tensor, state: Any) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True, kw_only=True)
class Unshown:
    """A check that the model's hooks do not allow."""

    name: str
    hook: str


def check_subject(subject: Subject, *, rows: int = 2, seed: int = 0) -> list[CheckRow | Unshown]:
    """Every check that the hooks allow, on random tokens over all unlocks, from a random non-zero state where it can.

    Raises TypeError when `subject` lacks one of the three functions or the three facts.
    """
    if not isinstance(subject, Subject):
        raise TypeError(f"{type(subject).__name__} lacks one of vocab_size, capacity, dim, init_state, prefill, step")
    return _Check(subject, rows, seed).run()


class _Check:
    def __init__(self, subject: Subject, rows: int, seed: int) -> None:
        self.subject, self.capacity, self.dim = subject, subject.capacity, subject.dim
        self.generator = torch.Generator().manual_seed(seed)
        length = self.capacity.span + 4
        self.ids = torch.randint(subject.vocab_size, (rows, length), generator=self.generator)
        self.start = self._random_state(rows)
        dtype = next((x.dtype for x in leaves(self.start) if x.is_floating_point()), torch.float32)
        self.tolerance = TOLERANCE.get(dtype, 1e-2)

    def run(self) -> list[CheckRow | Unshown]:
        checks: list[tuple[str, str | None, Callable[[], list[CheckRow]]]] = [
            ("prefill = steps", None, self._forms),
            ("continuation", None, self._continuation),
            ("batch = single", None, self._batch),
            ("state in fp32", None, self._dtype),
            ("gradients", "parameters", self._gradients),
            ("causality", "logits", self._causality),
            ("lock invariant", "locked", self._locks),
            ("locked reads", "locked", self._locked_reads),
            ("E=1 is the base", "static", self._base),
        ]
        found: list[CheckRow | Unshown] = []
        for name, hook, check in checks:
            if hook is not None and not hasattr(self.subject, hook):
                found.append(Unshown(name=name, hook=hook))
            else:
                found += check()
        return found

    def _random_state(self, rows: int) -> Any:
        def noise(x: Tensor) -> Tensor:
            return 0.3 * torch.randn(x.shape, generator=self.generator, dtype=x.dtype) if x.is_floating_point() else x

        return map_tensors(self.subject.init_state(rows), lambda x: noise(x.detach()))

    def _steps(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = torch.empty(0)
        for t in range(ids.shape[1]):
            logits, state = self.subject.step(ids[:, t], state)
        return logits, state

    def _row(self, name: str, value: float, detail: str, tolerance: float | None = None) -> CheckRow:
        allowed = self.tolerance if tolerance is None else tolerance
        return CheckRow(name=name, passed=bool(value <= allowed), value=value, tolerance=allowed, detail=detail)

    @property
    def _starts(self) -> list[int]:
        """Offsets at which the count of open blocks changes."""
        return [offset for offset, _, _ in self.capacity.segments(0, self.ids.shape[1]) if offset]

    @torch.no_grad()
    def _forms(self) -> list[CheckRow]:
        gap = distance(self.subject.prefill(self.ids, self.start), self._steps(self.ids, self.start))
        return [self._row("prefill = steps", gap, f"logits and state after {self.ids.shape[1]} tokens, random start")]

    @torch.no_grad()
    def _continuation(self) -> list[CheckRow]:
        whole, worst = self.subject.prefill(self.ids, self.start), 0.0
        near = {c + d for c in (self._starts or [self.ids.shape[1] // 2]) for d in (-1, 0, 1)}
        cuts = sorted(near & set(range(1, self.ids.shape[1])))
        for cut in cuts:
            _, state = self.subject.prefill(self.ids[:, :cut], self.start)
            worst = max(worst, distance(self.subject.prefill(self.ids[:, cut:], state), whole))
        return [self._row("continuation", worst, f"cut at {len(cuts)} places: each unlock, one before, one after")]

    @torch.no_grad()
    def _batch(self) -> list[CheckRow]:
        together, _ = self.subject.prefill(self.ids, None)
        alone = torch.cat([self.subject.prefill(row[None], None)[0] for row in self.ids])
        return [self._row("batch = single", distance(together, alone), "logits of rows together and alone")]

    @torch.no_grad()
    def _dtype(self) -> list[CheckRow]:
        _, state = self.subject.prefill(self.ids[:, :4], None)
        narrow = [x for x in leaves(state) if x.is_floating_point() and x.element_size() < 4]
        return [self._row("state in fp32", float(len(narrow)), "state tensors under 32 bits", 0.0)]

    def _gradients(self) -> list[CheckRow]:
        parameters: Sequence[Tensor] = [p for p in self.subject.parameters() if p.requires_grad]  # type: ignore[attr-defined]
        found = []
        for form in (self.subject.prefill, self._steps):
            loss = form(self.ids, self.start)[0].logsumexp(-1).square().mean()
            found.append(torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True))
        return [self._row("gradients", distance(*found), f"{len(parameters)} tensors, prefill against steps")]

    @torch.no_grad()
    def _causality(self) -> list[CheckRow]:
        logits: Callable[[Tensor], Tensor] = self.subject.logits  # type: ignore[attr-defined]
        base, worst = logits(self.ids), 0.0
        for t in (1, self.ids.shape[1] // 2, self.ids.shape[1] - 1):
            other = self.ids.clone()
            other[:, t:] = (other[:, t:] + 1) % self.subject.vocab_size
            worst = max(worst, float((logits(other)[:, :t] - base[:, :t]).abs().max()))
        return [self._row("causality", worst, "a later token changes no earlier logit")]

    def _locked(self, state: Any, n: int) -> list[Tensor]:
        return list(self.subject.locked(state, n))  # type: ignore[attr-defined]

    @torch.no_grad()
    def _locks(self) -> list[CheckRow]:
        """(1-g).M_t = (1-g).M_{t-1} at every t, and the newest open coordinate IS written."""
        names = ("lock invariant", "unlock time")
        capacity, state = self.capacity, self.start
        if capacity.is_static or capacity.gate not in ("both", "write") or capacity.decay_locked != "masked":
            return [self._row(name, 0.0, f"nothing is locked for writing ({capacity.describe()})", 0.0) for name in names]
        worst, late, seen = 0.0, 0, 0
        open_T = capacity.active_coords_range(0, self.ids.shape[1], self.dim).tolist()
        for t, n in enumerate(open_T):
            _, after = self.subject.step(self.ids[:, t], state)
            changes = [change(self._locked(state, m), self._locked(after, m)) for m in (n, n - 1)]
            worst, late, seen, state = max(worst, changes[0]), late + (changes[1] == 0), seen + (n < self.dim), after
        return [
            self._row(names[0], worst, f"every memory tensor at {seen} positions with locked blocks, random start", 0.0),
            self._row(names[1], float(late), f"positions of {len(open_T)} whose newest open coordinate was not written", 0.0),
        ]

    @torch.no_grad()
    def _locked_reads(self) -> list[CheckRow]:
        name, capacity, state, worst, seen = "locked reads", self.capacity, self.start, 0.0, 0
        if capacity.is_static or capacity.gate != "both":
            return [self._row(name, 0.0, f"locked blocks may be read ({capacity.describe()})", 0.0)]
        edges = [0, *self._starts, self.ids.shape[1]]
        for a, b in pairwise(edges):
            n = int(capacity.active_coords_range(a, 1, self.dim)[0])
            if n < self.dim:
                other = map_tensors(state, torch.clone)
                for x in self._locked(other, n):
                    x.normal_(generator=self.generator)
                if distance(other, state) == 0:
                    return [self._row(name, float("inf"), "locked() must return views of the state", 0.0)]
                part, seen = self.ids[:, a:b], seen + 1
                for form in (self.subject.prefill, self._steps):
                    worst = max(worst, distance(form(part, other)[0], form(part, state)[0]))
            _, state = self.subject.prefill(self.ids[:, a:b], state)
        return [self._row(name, worst, f"other contents in the locked blocks of {seen} segments change no logit")]

    @torch.no_grad()
    def _base(self) -> list[CheckRow]:
        one: Subject = self.subject.with_blocks(1)  # type: ignore[attr-defined]
        base: Tensor = self.subject.static(self.ids)  # type: ignore[attr-defined]
        gap = float((one.prefill(self.ids, None)[0] - base).abs().max())
        return [self._row("E=1 is the base", gap, "bit for bit", 0.0)]
