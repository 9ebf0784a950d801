"""What is compiled ahead of time of linear Titans: each kernel as a `Plan` launches it (see `aot`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from proteus_kernels.triton import titans_backward, titans_forward, titans_gates
from proteus_kernels.triton.aot import Case
from proteus_kernels.triton.tuned import launch_for

KERNELS = (
    titans_gates.gates_forward, titans_forward.states_forward, titans_forward.outputs_forward,
    titans_backward.local_backward, titans_backward.states_backward, titans_backward.inputs_backward,
    titans_gates.gates_backward,
)  # fmt: skip
KINDS = {
    "*i32": ("table", "begins", "opens"),
    "i32": ("first", "last", "each", "N"),
    "fp32": ("scale",),
    "*bf16": ("q", "k", "v", "y", "error", "d_q", "d_k", "d_v", "d_y", "starts_m", "starts_s", "starts_a", "ends_m", "ends_s"),
}
"""Argument types; every other argument that is no constant is a pointer to float32."""
CHUNK, HEADS = 64, 16


def aot_cases(sizes: tuple[int, ...] = (64, 128), capability: int = 90) -> list[Case]:
    """Every kernel for K = V in `sizes`: a key mask whose unlocks cut inner chunks or not, and a value mask."""
    return [case for size in sizes for kernel in KERNELS for case in _cases(kernel, size, capability)]


def _cases(kernel: Any, size: int, capability: int) -> Iterator[Case]:
    names = kernel.arg_names
    kinds = {n: kind for kind, group in KINDS.items() for n in group}
    for axis, split in (("key", False), ("key", True), ("value", False)):
        if (split and "SPLIT" not in names) or (axis == "value" and "AXIS" not in names):
            continue  # the same program as before
        options = launch_for(kernel.fn.__name__, capability, size, size)
        constants = {
            "H": HEADS, "K": size, "V": size, "KB": size, "BK": options.BK, "BV": options.BV, "C": CHUNK,
            "AXIS": axis, "SPLIT": split, "DOT": tl.bfloat16, "PREC": "tf32",
        }  # fmt: skip
        yield Case(
            kernel=kernel,
            shape=f"{axis}{' split' if split else ''} K=V={size}",
            signature={n: kinds.get(n, "*fp32") for n in names if n not in constants},
            constants={n: constants[n] for n in names if n in constants},
            num_warps=options.num_warps,
            num_stages=options.num_stages,
        )
