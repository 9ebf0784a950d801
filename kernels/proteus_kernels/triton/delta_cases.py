"""What is compiled ahead of time of the delta family: each kernel as `Scan` calls it (see `aot`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

from proteus_kernels.triton import delta_backward, delta_forward
from proteus_kernels.triton.aot import Case
from proteus_kernels.triton.tuned import launch_for

KERNELS = (
    delta_forward.solve, delta_forward.carry, delta_forward.output,
    delta_backward.inner, delta_backward.carry_back, delta_backward.pairs, delta_backward.gradients,
)  # fmt: skip
FLOATS = ("g", "beta", "initial", "final", "d_final", "d_initial", "dg", "dbeta")
"""Tensors that stay in float32 beside inputs in bfloat16."""
CHUNK, HEADS = 64, 16


def aot_cases(sizes: tuple[int, ...] = (64, 128), capability: int = 90) -> list[Case]:
    """Every kernel for K = V in `sizes`: Gated DeltaNet under a key or a value mask, and Comba (p is not k)."""
    return [case for size in sizes for kernel in KERNELS for case in _cases(kernel, size, capability)]


def _cases(kernel: Any, size: int, capability: int) -> Iterator[Case]:
    names = kernel.arg_names
    rules: dict[str, dict[str, Any]] = {
        "gdn": {"SAME": True, "UNDECAYED": False, "AXIS": "key"},
        "comba": {"SAME": False, "UNDECAYED": True, "AXIS": "key"},
        "gdn, value axis": {"SAME": True, "UNDECAYED": False, "AXIS": "value"},
    }
    for rule, flags in rules.items():
        options = launch_for(kernel.fn.__name__, capability, size, size, flags["AXIS"])
        constants = {
            "H": HEADS, "K": size, "V": size, "DECAY": True, "PRE": False, "PREDICT": True, "FINAL": True,
            "C": CHUNK, "BK": options.BK, "BV": options.BV, "NK": -(-size // options.BK), "DOT": tl.bfloat16, "PREC": "tf32",
            **flags,
        }  # fmt: skip
        if rule == "comba" and not {"SAME", "UNDECAYED"} & set(names):
            continue  # the same kernel again
        kinds = {"table": "*i32", "first": "*i32", "scale": "fp32", "T": "i32"} | dict.fromkeys(FLOATS, "*fp32")
        yield Case(
            kernel=kernel,
            shape=f"{rule} K=V={size}",
            signature={n: kinds.get(n, "*bf16") for n in names if n not in constants},
            constants={n: constants[n] for n in names if n in constants},
            num_warps=options.num_warps,
            num_stages=options.num_stages,
        )
