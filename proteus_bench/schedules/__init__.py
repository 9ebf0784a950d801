"""Capacity scheduling: schedules, and what a schedule acts on. NumPy only."""

from proteus_bench.schedules.adaptive import DataDependent, Opening, Surprise
from proteus_bench.schedules.base import CapacityError, Schedule
from proteus_bench.schedules.builtin import (
    BUILTIN,
    Bottleneck,
    Geometric,
    Late,
    Random,
    Reverse,
    Static,
    Stretched,
    Uniform,
)
from proteus_bench.schedules.capacity import (
    CHOICES,
    M0,
    Axis,
    Capacity,
    DecayLocked,
    Gate,
    KeyNorm,
    Origin,
    Read,
    build_schedule,
    equivalent_gates,
)

__all__ = [
    "BUILTIN",
    "CHOICES",
    "M0",
    "Axis",
    "Bottleneck",
    "Capacity",
    "CapacityError",
    "DataDependent",
    "DecayLocked",
    "Gate",
    "Geometric",
    "KeyNorm",
    "Late",
    "Opening",
    "Origin",
    "Random",
    "Read",
    "Reverse",
    "Schedule",
    "Static",
    "Stretched",
    "Surprise",
    "Uniform",
    "build_schedule",
    "equivalent_gates",
]
