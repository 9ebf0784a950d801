"""From what the user asked to the methods of a run: parsed models, their weights, twins, and gates that are one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from proteus_bench.backends import require_backend
from proteus_bench.backends.weights import Weights, find_weights
from proteus_bench.errors import UsageError
from proteus_bench.grammar import ZOO, ModelSpec, parse_model
from proteus_bench.registry import Registry, schedule_classes
from proteus_bench.spec import RunSpec


@dataclass(frozen=True)
class Method:
    """One column of the result: a model under one capacity. ``text`` is its canonical name and its identity."""

    text: str
    spec: ModelSpec
    weights: Weights
    seeds: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """Whether all blocks are open throughout."""
        return self.weights.capacity.is_static

    @property
    def name(self) -> str:
        """Backbone, with its source unless that is the zoo, and its size when that was asked for."""
        return str(replace(self.spec, schedule=None, params=(), overrides=()))

    @property
    def is_external(self) -> bool:
        """Whether it is no model of the zoo."""
        return self.spec.source != ZOO

    @property
    def schedule(self) -> str:
        """The schedule as written, with its parameters; the checkpoint's own, ``static`` for the base model, without one."""
        if self.spec.schedule is None:
            return self.weights.trained if self.is_external else "static"
        base = str(replace(self.spec, schedule=None, params=(), overrides=(), size=None))
        return str(replace(self.spec, size=None))[len(base) + 1 :]


def parse(text: str) -> ModelSpec:
    """Parse a model against everything that is registered. UsageError (exit 2) with the nearest name."""
    models, schedules = _tables()
    return parse_model(text, models=models, schedules=schedules)


@lru_cache(maxsize=1)
def _tables() -> tuple[tuple[str, ...], dict[str, Any]]:
    return Registry("models").names(), schedule_classes()


def methods_of(spec: RunSpec) -> tuple[list[Method], list[str]]:
    """The methods to run, asked first, static twin last, and notes that every output carries. A model outside the zoo has
    no twin but those that ``schedules`` names.

    Raises UsageError (exit 2) when the zoo lacks the weights, EnvironmentFault (exit 4) for a source without back end.
    """
    asked = parse(spec.model).with_size(spec.size)
    require_backend(asked)
    texts = [str(asked)]
    base = replace(asked, schedule=None, params=(), overrides=(), size=None)
    suffix = f"@{asked.size}" if asked.size else ""
    for schedule in spec.schedules:
        texts.append(str(parse(f"{base}+{schedule}{suffix}")))
    if spec.twin and asked.source == ZOO:
        texts.append(f"{base}{suffix}")
    methods: list[Method] = []
    notes: list[str] = []
    for text in dict.fromkeys(texts):
        method = _method(text, spec.seeds, notes)
        same = next((other for other in methods if _one_function(other, method)), None)
        if same is None:
            methods.append(method)
        else:
            notes.append(f"{method.text} is the same function as {same.text} here; it is shown once")
    _common_seeds(methods, spec, notes)
    return methods, notes


def _method(text: str, count: int | None, notes: list[str]) -> Method:
    parsed = parse(text)
    weights = find_weights(parsed)
    if not weights.exact:
        notes.append(
            f"no weights were trained under {text}: its schedule is applied at inference to weights trained "
            f"under {weights.trained}"
        )
    if count is not None and count > len(weights.seeds):
        raise UsageError(f"--seeds {count}: there are {len(weights.seeds)} seed(s) of {text}")
    return Method(text, parsed, weights, weights.seeds[:count])


def _one_function(a: Method, b: Method) -> bool:
    """Equal weights, and capacities that are equal or differ in gates that are equivalent for this backbone."""
    if (a.weights.name, a.weights.trained, a.weights.size) != (b.weights.name, b.weights.trained, b.weights.size):
        return False
    left, right = a.weights.capacity.as_dict(), b.weights.capacity.as_dict()
    if left == right or (a.is_static and b.is_static):
        return True
    gates = {left.pop("gate"), right.pop("gate")}
    memory: Any = a.weights.memory
    pairs = a.weights.capacity.equivalent_gates(memory)
    return left == right and any(gates == set(pair) for pair in pairs)


def _common_seeds(methods: list[Method], spec: RunSpec, notes: list[str]) -> None:
    """Every method runs its own seeds; comparisons pair the ones they share, which is said when it is not all."""
    sets = {method.seeds for method in methods}
    if len(sets) > 1:
        listed = "; ".join(f"{m.text}: {', '.join(map(str, m.seeds))}" for m in methods)
        notes.append(f"seeds differ ({listed}); comparisons use the common ones")
    if spec.seeds is not None:
        notes.append(f"--seeds {spec.seeds}: the first {spec.seeds} of the trained seeds only")
    if spec.limit is not None:
        notes.append(f"--limit {spec.limit}: a partial run, not rankable")
