"""What the kernel benchmark runs: inputs of each op, the capacity modes, and the check against the definition."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from proteus_bench.schedules import Capacity, Uniform
from proteus_kernels import dispatch
from proteus_kernels.linear import LinearState
from proteus_kernels.titans_common import TitansState

BLOCKS = 16
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
"""Largest error of y, state or a gradient, relative to its largest entry, against the definition in float64."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Batch, positions, heads, key, value, chunk."""

    B: int
    T: int
    H: int
    K: int
    V: int
    C: int = 64

    @staticmethod
    def parse(text: str) -> Shape:
        """From "B,T,H,K,V" or "B,T,H,K,V,C"."""
        return Shape(**dict(zip("BTHKVC", map(int, text.split(",")), strict=False)))

    def __str__(self) -> str:
        return f"B={self.B} T={self.T} H={self.H} K={self.K} V={self.V} C={self.C}"


@lru_cache
def active(mode: str, shape: Shape) -> tuple[tuple[int, ...] | None, str]:
    """(open coordinates or None, axis): static; open, a mask that leaves everything open; key and value, uniform E = 16."""
    axis = "value" if mode == "value" else "key"
    dim = shape.V if axis == "value" else shape.K
    if mode == "static":
        return None, axis
    if mode == "open":
        return (dim,) * shape.T, axis
    capacity = Capacity(schedule=Uniform(blocks=BLOCKS, span=shape.T), axis=axis)  # type: ignore[arg-type]
    return tuple(capacity.active_coords_range(0, shape.T, dim).tolist()), axis


def inputs(op: str, shape: Shape, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Tensors by argument name, the state's too; 16-bit types for q, k, p, v alone."""
    g = torch.Generator().manual_seed(0)
    b, t, h, k, v = shape.B, shape.T, shape.H, shape.K, shape.V
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def unit() -> Tensor:
        return torch.nn.functional.normalize(torch.randn(b, t, h, k, generator=g), dim=-1).to(dtype)

    def rand(*size: int) -> Tensor:
        return torch.rand(*size, generator=g).to(wide)

    made = {"q_BTHK": unit(), "k_BTHK": unit(), "v_BTHV": torch.randn(b, t, h, v, generator=g).to(dtype)}
    made["memory"] = 0.1 * torch.randn(b, h, k, v, generator=g).to(wide)
    if op == "titans_linear":
        made |= {"log_keep_BTH": -0.02 * rand(b, t, h), "log_eta_BTH": -0.5 - rand(b, t, h), "theta_BTH": 0.05 * rand(b, t, h)}
    else:
        made["log_decay_BTH"] = -0.1 * rand(b, t, h)
    if op in ("delta", "comba"):
        made["beta_BTH"] = rand(b, t, h)
    if op == "comba":
        made |= {"p_BTHK": 0.5 * made["k_BTHK"], "correction_H": rand(h)}
    return {n: x.to(device).requires_grad_() for n, x in made.items()}


def call(op: str, backend: str, x: dict[str, Tensor], shape: Shape, mode: str) -> tuple[Tensor, Tensor]:
    """y and the final memory."""
    memory, (opened, axis) = x["memory"], active(mode, shape)
    arguments: dict[str, Any] = {n: t for n, t in x.items() if n != "memory"} | {"active": opened, "axis": axis}
    if op == "titans_linear":
        arguments |= {"state": TitansState.start((memory,)), "inner": shape.C}
    else:
        arguments["chunk_size"] = shape.C
        arguments |= {"state": LinearState.start(memory)} if op == "linear" else {"state_BHKV": memory}
    y, state = dispatch.kernel(op, backend)(**arguments)
    if op == "titans_linear":
        return y, state.weights[0]
    return y, state.memory_BHKV if op == "linear" else state


def why_not(op: str, backend: str, x: dict[str, Tensor], shape: Shape, mode: str) -> str | None:
    """Why a backend cannot be timed on this call; None when it can."""
    if backend == "chunk":
        return None
    if importlib.util.find_spec(backend) is None:
        return f"{backend} is not installed"
    if not x["memory"].is_cuda:
        return f"{backend} needs CUDA"
    unsupported = importlib.import_module(dispatch.OPS[op][backend]).unsupported
    arguments = x | {"active": active(mode, shape)[0], "state_BHKV": x["memory"], "inner": shape.C}
    if op == "linear":
        arguments["state"] = LinearState.start(x["memory"])
    wanted = inspect.signature(unsupported).parameters
    reason: str | None = unsupported(**{n: value for n, value in arguments.items() if n in wanted})
    return reason


def outcome(op: str, backend: str, x: dict[str, Tensor], shape: Shape, mode: str) -> list[Tensor]:
    """y, final memory and the gradients of a fixed functional of both."""
    g = torch.Generator().manual_seed(1)
    outs = call(op, backend, x, shape, mode)
    loss = sum((y.double() * torch.randn(y.shape, generator=g, dtype=torch.float64).to(y.device)).sum() for y in outs)
    grads = torch.autograd.grad(loss, list(x.values()), materialize_grads=True, allow_unused=True)  # type: ignore[arg-type]
    return [*outs, *grads]


def worst_error(op: str, backend: str, shape: Shape, mode: str, dtype: torch.dtype, device: str) -> float:
    """Against the definition in float64 on the same (rounded) inputs; nan counts as infinite."""
    x = inputs(op, shape, dtype, device)
    exact = {n: t.detach().double().requires_grad_() for n, t in x.items()}
    pairs = zip(outcome(op, backend, x, shape, mode), outcome(op, "recurrent", exact, shape, mode), strict=True)
    errors = [float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp_min(1e-6)) for a, b in pairs]
    return max(e if e == e else float("inf") for e in errors)


def step(op: str, backend: str, x: dict[str, Tensor], shape: Shape, mode: str, backward: bool) -> Callable[[], None]:
    """One call to time."""
    tensors: Sequence[Tensor] = list(x.values())

    def forward() -> None:
        with torch.no_grad():
            call(op, backend, x, shape, mode)

    def both() -> None:
        y, memory = call(op, backend, x, shape, mode)
        torch.autograd.grad((y.float().sum() + memory.sum()), tensors, allow_unused=True)

    return both if backward else forward
