"""Random inputs of every recurrence, and the comparison of two forms: outputs, final state, every gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from proteus_kernels.titans_common import TitansState

B, H, K, V, N = 2, 4, 8, 8, 8


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def leaves(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {n: t.to(dtype).requires_grad_() for n, t in tensors.items()}


def qkv(length: int, g: torch.Generator) -> dict[str, Tensor]:
    def r(*s: int) -> Tensor:
        return torch.randn(*s, generator=g, dtype=torch.float64)

    return {"q_BTHK": unit(r(B, length, H, K)), "k_BTHK": unit(r(B, length, H, K)), "v_BTHV": r(B, length, H, V)}


def delta_inputs(length: int, *, start: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rand = torch.rand(2, B, length, H, generator=g, dtype=torch.float64)
    state = torch.randn(B, H, K, V, generator=g, dtype=torch.float64) * (start == "random")
    named = qkv(length, g) | {"log_decay_BTH": -rand[0], "beta_BTH": rand[1], "state_BHKV": state}
    return leaves(named, dtype)


def titans_inputs(
    length: int, kind: str, *, start: str, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """(gates and q, k, v; state tensors: weights, momentum, anchor). An MLP's weights are random in both starts.

    kind: linear, mlp (two layers), mlp3, mlp4.
    """
    g = torch.Generator().manual_seed(seed)
    rand = torch.rand(3, B, length, H, generator=g, dtype=torch.float64)
    named = qkv(length, g) | {
        "log_keep_BTH": -0.3 * rand[0], "log_eta_BTH": -rand[1], "theta_BTH": 0.2 * rand[2],
    }  # fmt: skip
    between = [(B, H, N, N)] * (int(kind[3:] or 2) - 2) if kind.startswith("mlp") else []
    shapes = [(B, H, K, V)] if kind == "linear" else [(B, H, N, K), *between, (B, H, V, N)]
    state = []
    for part in ("weights", "momentum", "anchor"):
        for shape in shapes:
            x = 0.5 * torch.randn(shape, generator=g, dtype=torch.float64)
            dead = start == "zero" and (kind == "linear" or part == "momentum")
            state.append((x * 0 if dead else x).to(dtype).requires_grad_())
    return leaves(named, dtype), state


def titans_state(tensors: list[Tensor], offset: int) -> TitansState:
    n = len(tensors) // 3
    parts = [tuple(tensors[i * n : (i + 1) * n]) for i in range(3)]
    return TitansState(weights=parts[0], momentum=parts[1], anchor=parts[2], offset=offset)


def everything(run: Callable[[], list[Tensor]], inputs: list[Tensor], seed: int = 1) -> list[Tensor]:
    """Outputs and the gradients of a random linear functional of them with respect to every input."""
    outs = [x.contiguous() for x in run()]
    g = torch.Generator().manual_seed(seed)
    loss = sum((x * torch.randn(x.shape, generator=g, dtype=torch.float64).to(x.dtype)).sum() for x in outs)
    grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
    return [*outs, *grads]


def worst(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest difference over all tensors, each relative to its own largest entry."""
    pairs: Any = zip(a, b, strict=True)
    return max(float((x - y).detach().abs().max() / y.detach().abs().max().clamp_min(1e-6)) for x, y in pairs)


def staircase(length: int, delta: int, block: int, dim: int) -> list[int]:
    """Open coordinates of a uniform schedule that opens `block` more every `delta` positions."""
    return [min(dim, block * (1 + t // delta)) for t in range(length)]
