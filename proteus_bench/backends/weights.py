"""Which trained weights answer for a model spec. Reads configurations only, no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError, UsageError, nearest, unknown
from proteus_bench.grammar import ZOO, ModelSpec
from proteus_bench.registry import stored_capacity
from proteus_bench.schedules import Capacity
from proteus_bench.store.folder import read_json

ZOO_VARIABLE = "PROTEUS_BENCH_ZOO"
DEFAULT_SIZE = "micro"
# When no weights were trained under a schedule, these answer in its place, first come first served.
_STAND_INS = ("proteus", "uniform", "static")


@dataclass(frozen=True)
class Weights:
    """The zoo entry that answers, under which capacity.

    trained: the schedule the weights were trained under. exact: whether that is the capacity asked for; when it is not,
    ``capacity`` is applied to the weights at inference. ``n_positions`` is the training length in tokens.
    """

    name: str
    trained: str
    size: str
    seeds: tuple[int, ...]
    capacity: Capacity
    exact: bool
    train_length: int
    memory: str
    root: Path | None = field(repr=False)


def zoo_root() -> Path | None:
    """The folder of ``PROTEUS_BENCH_ZOO``, or None for the zoo that ships with the package."""
    text = os.environ.get(ZOO_VARIABLE)
    if not text:
        return None
    path = Path(text)
    if not path.is_dir():
        raise InvalidFileError(f"{ZOO_VARIABLE}={text} is no folder")
    return path


def find_weights(spec: ModelSpec) -> Weights:
    """Weights trained under exactly the capacity of ``spec`` when the zoo has them, a stand-in otherwise.

    Raises UsageError (exit 2) when the zoo has no weights of this model and size at all. Other sources: see `external`.
    """
    if spec.source != ZOO:
        from proteus_bench.backends.external import external_weights

        return external_weights(spec)
    from proteus_models import zoo

    root = zoo_root()
    size = spec.size or DEFAULT_SIZE
    everything = zoo.available(root)
    entries = {entry.schedule: entry for entry in everything if (entry.name, entry.size) == (spec.name, size)}
    if not entries:
        held = sorted({f"{entry.name}@{entry.size}" for entry in everything})
        raise UsageError(f"there are no trained weights of {spec.name}@{size}{nearest(f'{spec.name}@{size}', held)}")
    configs = {schedule: _config(entry) for schedule, entry in entries.items()}
    default = next((configs[s] for s in (*_STAND_INS, *configs) if s in configs), None)
    assert default is not None
    wanted = spec.capacity(default[0])
    if spec.weights is not None and spec.weights not in configs:
        raise unknown(f"schedule with trained weights of {spec.name}@{size}", spec.weights, configs)
    held = sorted(configs) if spec.weights is None else [spec.weights]
    match = next((s for s in held if _same(configs[s][0], wanted)), None)
    chosen = match or spec.weights or next(s for s in (*_STAND_INS, *sorted(configs)) if s in configs)
    entry = entries[chosen]
    backbone = _backbone(spec.name)
    capacity = configs[chosen][0] if match else wanted
    if getattr(backbone, "clock", "context") == "training":
        capacity = _opened(spec, wanted, match is not None, backbone, configs[chosen][1])
    return Weights(
        name=spec.name,
        trained=chosen,
        size=size,
        seeds=tuple(entry.seeds),
        capacity=capacity,
        exact=match is not None,
        train_length=configs[chosen][1],
        memory=str(getattr(backbone, "memory", "matrix")),
        root=root,
    )


def _opened(spec: ModelSpec, wanted: Capacity, held: bool, backbone: Any, train_length: int) -> Capacity:
    """The capacity in use of a model whose schedule counted training steps: all open. UsageError for one never trained."""
    if wanted.axis not in backbone.axes:
        raise UsageError(f"{spec.name} has no {wanted.axis} axis; one of {', '.join(backbone.axes)}")
    if not held and not wanted.is_static:
        raise UsageError(
            f"the schedule of {spec.name} acts while training, so it cannot be put on other weights: none were trained "
            f"under {spec} (train them with a recipe that has a [training_schedule])"
        )
    return Capacity.static(axis=wanted.axis, span=train_length)


def _same(held: Capacity, wanted: Capacity) -> bool:
    """Equal in every field; all static capacities are one model whatever their axis, span or gate say."""
    if held.is_static and wanted.is_static:
        return (held.key_norm, held.read, held.origin, held.m0) == (
            wanted.key_norm,
            wanted.read,
            wanted.origin,
            wanted.m0,
        )
    return held == wanted


def _config(entry: Any) -> tuple[Capacity, int]:
    path = entry.path / f"seed{entry.seeds[0]}" / "config.json"
    data = read_json(path)
    try:
        return stored_capacity(data["capacity"]), int(data["train_length"])
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise InvalidFileError(f"{path}: {error}") from error


def _backbone(name: str) -> Any:
    from proteus_bench.registry import Registry

    return Registry("models").get(name)
