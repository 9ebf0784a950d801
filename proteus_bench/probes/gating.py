"""The methods of the gating probe: every gate on the same weights, and on its own weights where the zoo has them."""

from __future__ import annotations

import dataclasses
from typing import Any

from proteus_bench.backends import open_backend, require_backend
from proteus_bench.backends.weights import find_weights
from proteus_bench.errors import UsageError
from proteus_bench.grammar import ModelSpec
from proteus_bench.probes.gates import GateComparison, compare_gates
from proteus_bench.probes.memory import GatedMemory, memory_of
from proteus_bench.runner.models import parse
from proteus_bench.spec import RunSpec


@dataclasses.dataclass(frozen=True)
class Gating:
    """The run to make, and what was found about the gates of its model. ``same``: notes on gates that are one function."""

    spec: RunSpec
    comparison: GateComparison
    notes: tuple[str, ...]


def gating(spec: RunSpec) -> Gating:
    """Compare the gates numerically on the first seed's weights, and list one method for each different function.

    UsageError (exit 2) for a model without a schedule or whose memory cannot be looked into.
    """
    asked = parse(spec.model).with_size(spec.size)
    require_backend(asked)
    if asked.schedule is None or asked.schedule == "static":
        raise UsageError(f"{asked} has no gate: name a scheduled model, such as {str(asked).removesuffix('+static')}+proteus")
    weights = find_weights(asked)
    backend = open_backend(asked, weights.seeds[0])
    memory = memory_of(backend)
    if not isinstance(memory, GatedMemory):
        raise UsageError(f"the memory of {asked} cannot be looked into: its gates cannot be compared")
    comparison = compare_gates(memory, backend.tokenizer.vocab_size)
    own = weights.capacity.gate
    kept, notes = [], [_refusal(gate, why) for gate, why in comparison.refused.items()]
    for group in comparison.classes():
        shown = own if own in group else group[0]
        same = [gate for gate in group if gate != shown]
        if same:
            notes.append(_equality(asked, shown, same, comparison))
        if shown != own:
            kept.append(_with_gate(asked, shown, weights.trained))
        for gate in group:  # weights that were trained under a gate are another method, whatever function they are
            alone = _with_gate(asked, gate, None)
            theirs = find_weights(alone)
            if gate != own and theirs.exact and theirs.trained != weights.trained and not theirs.capacity.is_static:
                kept.append(alone)
    notes += _disagreements(weights, comparison)
    schedules = tuple(str(method).partition("+")[2].rpartition("@")[0] or str(method).partition("+")[2] for method in kept)
    return Gating(spec.model_copy(update={"schedules": (*spec.schedules, *schedules)}), comparison, tuple(notes))


def _with_gate(asked: ModelSpec, gate: str, weights: str | None) -> ModelSpec:
    """The same model under another gate, on given weights."""
    fields: dict[str, Any] = {key: value for key, value in asked.overrides if key != "weights"} | {"gate": gate}
    if weights is not None:
        fields["weights"] = weights
    return dataclasses.replace(asked, overrides=tuple(sorted(fields.items())))


def _equality(asked: ModelSpec, shown: str, same: list[str], comparison: GateComparison) -> str:
    pairs = [d for d in comparison.differences if shown in (d.a, d.b) and ({d.a, d.b} - {shown}) <= set(same)]
    worst = max(d.fresh for d in pairs)
    carried = max(d.carried for d in pairs)
    text = f"{asked}: gate {' and '.join(same)} is the same function as gate {shown} from the start state"
    text += f" (logits differ by {worst:.1e} of the largest); shown once"
    if all(d.same_carried for d in pairs):
        return f"{text}. It is the same from a used state too ({carried:.1e})"
    return f"{text}. From a used state they are different functions ({carried:.1e})"


def _disagreements(weights: Any, comparison: GateComparison) -> list[str]:
    """Where the rule by which `run` merges gates (`equivalent_gates`) and the numbers say different things."""
    ruled = {frozenset(pair) for pair in weights.capacity.equivalent_gates(weights.memory)}
    notes = []
    for d in comparison.differences:
        if d.same != (frozenset((d.a, d.b)) in ruled):
            words = ("one function", "two functions") if d.same else ("two functions", "one function")
            notes.append(f"gates {d.a} and {d.b} are {words[0]} by computing ({d.fresh:.1e}) and {words[1]} by rule")
    return notes


def _refusal(gate: str, why: str) -> str:
    return f"gate {gate} is not possible here: {why}"
