"""The model grammar ``[source:]name[+schedule][@size]``, parsed once.

    titans  titans+proteus  comba+stretched(factor=2)  swla+proteus(blocks=8,gate=read)@micro  hf:./ckpt  vllm:./ckpt
    lm-eval:NAME(arguments), a model type of lm-eval and its --model_args: lm-eval:hf(pretrained=./ckpt,dtype=float32)

``proteus`` is the paper's preset (arXiv 2608.16844): uniform prefix, 16 blocks, reads and writes gated. In parentheses
stand the schedule's own parameters, any field of a capacity (blocks, span, axis, gate, ...), and `weights=NAME`: run on
the weights that were trained under that schedule (`titans+proteus(gate=none,weights=proteus)`), whatever else is held.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from proteus_bench.errors import UsageError, nearest, unknown
from proteus_bench.schedules import CHOICES, Capacity, Schedule, Static, build_schedule

Value = bool | int | float | str

ZOO = "zoo"
PATH_SOURCES = ("hf", "vllm", "openai", "lm-eval")
SIZES = ("micro", "micro-scratch", "micro-ablation", "micro-long", "30m", "340m", "760m", "1.3b")
"""micro-scratch is the size micro with both twins trained from scratch: the control of the branching protocol; micro-ablation are
other replicates of micro, with every schedule from one kept trunk per seed; micro-long are branches of those trunks that were
trained on four times the tokens."""
NO_FIXED_STATE = ("transformer", "transformer++")
DEFAULT_BLOCKS = 16
WEIGHTS = "weights"
PRESETS: dict[str, tuple[str, dict[str, Value]]] = {"proteus": ("uniform", {"blocks": 16, "gate": "both"})}

_WORD = r"[A-Za-z][A-Za-z0-9_-]*"
_SOURCE = re.compile(rf"({_WORD}):(.*)", re.DOTALL)
_SCHEDULE = re.compile(rf"({_WORD})(?:\(([^()]*)\))?")
_INT = re.compile(r"[+-]?[0-9]{1,18}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_VALUE = re.compile(r"[A-Za-z0-9_.+-]+")
_MAX_CHARS = 4096


@dataclass(frozen=True)
class ModelSpec:
    """A parsed model. ``params`` and ``overrides`` are (name, value) pairs in canonical order; ``str()`` is canonical.

    source: ``zoo`` (a model by name) or a path source (PATH_SOURCES), whose ``name`` is what stands behind it, kept verbatim.
    schedule: the name as written, None for the model as it is. size: None unless it was written.
    """

    source: str
    name: str
    schedule: str | None = None
    params: tuple[tuple[str, Value], ...] = ()
    overrides: tuple[tuple[str, Value], ...] = ()
    size: str | None = None
    schedule_class: type[Schedule] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        text = self.name if self.source == ZOO else f"{self.source}:{self.name}"
        if self.schedule is not None:
            pairs = ",".join(f"{key}={_show(value)}" for key, value in (*self.params, *self.overrides))
            text += f"+{self.schedule}" + (f"({pairs})" if pairs else "")
        return text + (f"@{self.size}" if self.size else "")

    def with_size(self, size: str | None) -> ModelSpec:
        """The same model with the size of a ``--size`` flag. UsageError when another size is written in the name."""
        if size is None:
            return self
        if self.size not in (None, size):
            raise UsageError(f"{self} names size {self.size}, but --size says {size}")
        return dataclasses.replace(self, size=size)

    @property
    def weights(self) -> str | None:
        """The schedule whose weights are asked for, None for those that fit best."""
        return next((str(value) for key, value in self.overrides if key == WEIGHTS), None)

    def capacity(self, default: Capacity) -> Capacity:
        """The capacity that this spec asks for; ``default`` is the model's own (its axis, span and open choices).

        Without a schedule a zoo model is its static base model, and a path keeps the capacity of its checkpoint.
        """
        if self.schedule is None or self.schedule_class is None:
            if self.source != ZOO:
                return default
            choices = {name: getattr(default, name) for name in CHOICES if name != "axis"}
            return Capacity.static(axis=default.axis, span=default.span, **choices)
        settings: dict[str, Any] = {**PRESETS.get(self.schedule, ("", {}))[1], **dict(self.overrides)}
        settings.pop(WEIGHTS, None)
        fallback = default.blocks if default.blocks > 1 else DEFAULT_BLOCKS
        if self.schedule_class is Static:
            fallback = 1
        shape = {"blocks": settings.pop("blocks", fallback), "span": settings.pop("span", default.span)}
        schedule = build_schedule(self.schedule_class, {**shape, **dict(self.params)})
        choices = {name: getattr(default, name) for name in CHOICES}
        return Capacity(schedule=schedule, **{**choices, **settings})


def parse_model(
    text: str,
    *,
    models: Collection[str],
    schedules: Mapping[str, type[Schedule]],
    no_schedule: Collection[str] = NO_FIXED_STATE,
    sizes: Collection[str] = SIZES,
) -> ModelSpec:
    """Parse one model. Any fault is a UsageError that names the part and the nearest valid choice.

    models: known zoo names. schedules: name -> class. no_schedule: models without a fixed state, which refuse one.
    """
    if not isinstance(text, str) or not text.strip():
        raise UsageError("a model must be named: [source:]name[+schedule][@size]")
    if len(text) > _MAX_CHARS or not text.isprintable():
        raise UsageError("a model name must be printable and at most 4096 characters long")
    source, rest = _split_source(text.strip())
    rest, size = _split_size(rest, sizes, path=source != ZOO)
    if source == ZOO:
        name, schedule_text = _split_zoo(rest, models)
    else:
        name, schedule_text = _split_path(rest, schedules)
    if not name:
        raise UsageError(f"{text!r} names no model: [source:]name[+schedule][@size]")
    if schedule_text is None:
        return ModelSpec(source=source, name=name, size=size)
    if name in no_schedule and source == ZOO:
        raise UsageError(f"{name} has no fixed state to open block by block: it takes no schedule")
    schedule, cls, params, overrides = parse_schedule(schedule_text, schedules)
    spec = ModelSpec(source, name, schedule, params, overrides, size, cls)
    try:  # values out of range must fail here, not after a model was loaded
        spec.capacity(Capacity.static())
    except (TypeError, ValueError) as error:
        raise UsageError(f"schedule {schedule} refuses its parameters: {error}") from error
    return spec


def parse_schedule(
    text: str, schedules: Mapping[str, type[Schedule]]
) -> tuple[str, type[Schedule], tuple[tuple[str, Value], ...], tuple[tuple[str, Value], ...]]:
    """Parse ``name`` or ``name(key=value,...)`` into (name, class, own parameters, capacity overrides)."""
    match = _SCHEDULE.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read the schedule {text!r}: write name or name(key=value,...)")
    name, inside = match[1], match[2]
    target = PRESETS[name][0] if name in PRESETS else name
    if target not in schedules:
        raise unknown("schedule", name, [*schedules, *PRESETS])
    cls = schedules[target]
    own = _parameter_types(cls)
    params: dict[str, Value] = {}
    overrides: dict[str, Value] = {}
    for part in inside.split(",") if inside and inside.strip() else []:
        key, equals, raw = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not raw:
            raise UsageError(f"cannot read {part.strip()!r} in {text!r}: write key=value")
        if key in params or key in overrides:
            raise UsageError(f"{key} is given twice in {text!r}")
        if key in own:
            params[key] = _typed(name, key, raw, own[key])
        elif key == WEIGHTS:
            overrides[key] = _typed(name, key, raw, str)
        elif key in ("blocks", "span"):
            overrides[key] = _typed(name, key, raw, int)
        elif key in CHOICES:
            if raw not in CHOICES[key]:
                raise unknown(key, raw, CHOICES[key])
            overrides[key] = raw
        else:
            raise unknown(f"parameter of {name}", key, [*own, "blocks", "span", *CHOICES, WEIGHTS])
    return name, cls, tuple(sorted(params.items())), tuple(sorted(overrides.items()))


def _split_source(text: str) -> tuple[str, str]:
    match = _SOURCE.fullmatch(text)
    if match is None:
        return ZOO, text
    if match[1] != ZOO and match[1] not in PATH_SOURCES:
        raise unknown("source", match[1], [*PATH_SOURCES, ZOO])
    return match[1], match[2].strip()


def _split_size(text: str, sizes: Collection[str], path: bool) -> tuple[str, str | None]:
    """Cut ``@size``. In a path only a known size is one: ``@`` may be part of a path or a revision."""
    head, at, tail = text.rpartition("@")
    if at and tail.lower() in sizes:
        return head, tail.lower()
    if not at or path:
        return text, None
    raise unknown("size", tail, sizes)


def _split_zoo(text: str, models: Collection[str]) -> tuple[str, str | None]:
    """The longest known model that the text starts with, so that a name may itself end in '+'."""
    for model in sorted(models, key=len, reverse=True):
        if text == model:
            return model, None
        if text.startswith(model + "+"):
            return model, text[len(model) + 1 :]
    raise unknown("model", text.split("+", 1)[0], models)


def _split_path(text: str, schedules: Mapping[str, type[Schedule]]) -> tuple[str, str | None]:
    """A path is verbatim, but a known schedule behind its last '+' is one. End a path with '/' to keep such a name."""
    head, plus, tail = text.rpartition("+")
    match = _SCHEDULE.fullmatch(tail) if plus else None
    if match is None:
        return text, None
    known = [*schedules, *PRESETS]
    if match[1] in known:
        return head, tail
    hint = nearest(match[1], known, cutoff=0.75)
    if match[2] is not None or "did you mean" in hint:
        raise UsageError(f"unknown schedule {match[1]!r}{hint} (a path that ends so needs a '/' behind it)")
    return text, None


def _parameter_types(cls: type[Schedule]) -> dict[str, type]:
    hints = typing.get_type_hints(cls)
    names = (f.name for f in dataclasses.fields(cls) if f.name not in ("blocks", "span"))
    return {name: hints[name] for name in names}


def _typed(schedule: str, key: str, raw: str, kind: Any) -> Value:
    """Convert by the declared type; a string is limited to what prints back unchanged."""
    if kind is int and _INT.fullmatch(raw):
        return int(raw)
    if kind is float and _FLOAT.fullmatch(raw) and math.isfinite(float(raw)):
        return float(raw)
    if kind is bool and raw in ("true", "false"):
        return raw == "true"
    if kind is str and _VALUE.fullmatch(raw):
        return raw
    wanted = {int: "an integer", float: "a finite number", bool: "true or false"}.get(kind, "a plain word")
    raise UsageError(f"{schedule}: {key} must be {wanted}, not {raw!r}")


def _show(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value) if isinstance(value, float) else str(value)
