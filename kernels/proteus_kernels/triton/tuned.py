"""Tile sizes and launch options of every kernel: a table, not a search.

`launch` looks for (device, kernel, K, V), then for the kernel's default. K and V are rounded up to a power of two. There is no
automatic tuning: one call compiles one kernel, the same everywhere, and dynamic lengths never start a search.

The defaults were chosen from reports of the assembler, not from times: nothing is spilled for sm_80, sm_90 and sm_100 at
K = V = 64 and 128 in bfloat16 (kernels/bench). No entry for a device has been measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Key rows and value columns of a tile, and what the compiler is told."""

    BK: int
    BV: int
    num_warps: int
    num_stages: int
    BK_whole: int | None = None
    """Key rows where another axis is masked: small tiles only serve to skip locked rows."""


DEFAULTS = {
    "solve": Launch(BK=64, BV=16, num_warps=4, num_stages=2),
    "carry": Launch(BK=32, BV=32, num_warps=4, num_stages=2, BK_whole=64),
    "output": Launch(BK=64, BV=64, num_warps=4, num_stages=2),
    "inner": Launch(BK=64, BV=64, num_warps=4, num_stages=2),
    "carry_back": Launch(BK=32, BV=32, num_warps=4, num_stages=2, BK_whole=64),
    "pairs": Launch(BK=16, BV=64, num_warps=4, num_stages=2),
    "gradients": Launch(BK=32, BV=64, num_warps=8, num_stages=2),
    "gates_forward": Launch(BK=16, BV=16, num_warps=4, num_stages=2),
    "states_forward": Launch(BK=16, BV=32, num_warps=8, num_stages=2),
    "outputs_forward": Launch(BK=32, BV=64, num_warps=8, num_stages=2),
    "local_backward": Launch(BK=32, BV=64, num_warps=8, num_stages=2),
    "states_backward": Launch(BK=16, BV=32, num_warps=8, num_stages=2),
    "inputs_backward": Launch(BK=32, BV=32, num_warps=8, num_stages=2),
    "gates_backward": Launch(BK=16, BV=16, num_warps=8, num_stages=2),
}

TUNED: dict[tuple[int, str, int, int], Launch] = {
    (80, "carry", 128, 128): Launch(BK=32, BV=32, num_warps=8, num_stages=2, BK_whole=64),
    (80, "carry_back", 128, 128): Launch(BK=32, BV=16, num_warps=4, num_stages=2, BK_whole=64),
    (80, "pairs", 64, 64): Launch(BK=16, BV=32, num_warps=4, num_stages=2),
    (80, "pairs", 128, 128): Launch(BK=16, BV=32, num_warps=4, num_stages=2),
    (100, "carry", 128, 128): Launch(BK=32, BV=32, num_warps=8, num_stages=2, BK_whole=64),
    (80, "states_backward", 128, 128): Launch(BK=16, BV=16, num_warps=8, num_stages=2),
    (90, "states_backward", 256, 256): Launch(BK=16, BV=16, num_warps=8, num_stages=2),
    (100, "states_backward", 256, 256): Launch(BK=16, BV=16, num_warps=8, num_stages=2),
    (80, "inputs_backward", 64, 64): Launch(BK=32, BV=16, num_warps=8, num_stages=2),
    (80, "inputs_backward", 128, 128): Launch(BK=32, BV=16, num_warps=8, num_stages=2),
}
"""(compute capability as 90, kernel, K, V) -> what is taken there instead. These only keep the default from spilling."""

MAX_KEY_TILES = 4
"""Tiles of the state that a carry holds in registers; a longer key has larger tiles."""


def tile(n: int) -> int:
    """The power of two that holds n coordinates, at least what a product takes."""
    return max(16, int(triton.next_power_of_2(n)))


def launch(kernel: str, device: torch.device, K: int, V: int, axis: str = "key") -> Launch:
    """Options for a call on this device."""
    major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    return launch_for(kernel, 10 * major + minor, K, V, axis)


def launch_for(kernel: str, capability: int, K: int, V: int, axis: str = "key") -> Launch:
    """Options for compute capability 90, say (0: the interpreter); tiles are never larger than the state."""
    key, value = tile(K), tile(V)
    found = TUNED.get((capability, kernel, key, value), DEFAULTS[kernel])
    rows = found.BK_whole if axis != "key" and found.BK_whole is not None else found.BK
    rows = max(rows, key // MAX_KEY_TILES)
    return replace(found, BK=min(rows, key), BV=min(found.BV, value))


@dataclass(frozen=True, kw_only=True)
class Products:
    """Type of the operands of products, in a kernel and of stored intermediates, and the precision of float32 ones."""

    dot: tl.dtype
    stored: torch.dtype
    precision: str


def products(dtype: torch.dtype) -> Products | None:
    """How inputs of this type are multiplied; None for types that the kernels do not take.

    float32 inputs are multiplied in three passes, which keeps them exact to float32; beside 16-bit inputs one is enough.
    The interpreter multiplies bfloat16 wrongly, so there everything is float32.
    """
    kinds = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
    if dtype not in kinds:
        return None
    if triton.knobs.runtime.interpret:
        return Products(dot=tl.float32, stored=torch.float32, precision="ieee")
    return Products(dot=kinds[dtype], stored=dtype, precision="tf32x3" if dtype == torch.float32 else "tf32")
