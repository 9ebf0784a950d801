"""AdamW under a capacity schedule whose clock is the optimizer step: blocks of hidden units of MLPs open while training.

Proteus (arXiv 2608.16844), Sec. 4.2: theta_{i+1} = theta_i - eta (g_{i+1} . e_i). Step i is 1-based and g_i opens the first
k(i) of E blocks of the hidden axis. While a block is locked, `mask_grad` freezes its moments and its increment, `mask_decay`
its weight decay; `per_block_step` counts Adam's steps from the block's own unlock. Where blocks never close, a locked block's
moments are zero until it opens, so `mask_grad` is the paper's g . e. `mask_read` is `training_schedule.ReadGate`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from proteus_bench.schedules import Schedule
from proteus_models.training_schedule import MaskOptions, TrainingSchedule, block_of_unit


@dataclass(frozen=True, kw_only=True)
class HiddenSlice:
    """Where the hidden axis of a parameter lies: axis `dim`, `size` units, `parts` stacked matrices (2: gate and value)."""

    dim: int
    size: int
    parts: int = 1


def groups(
    named: Iterable[tuple[str, Tensor]],
    *,
    slices: Mapping[str, HiddenSlice],
    periods: Mapping[str, int] | None = None,
    weight_decay: float,
) -> list[dict[str, Any]]:
    """Parameter groups of `MaskedAdamW`: matrices are decayed, vectors are not; `periods` names slower parameters."""
    made: dict[Any, dict[str, Any]] = {}
    for name, parameter in named:
        decay = weight_decay if parameter.ndim >= 2 else 0.0
        period, where = (periods or {}).get(name, 1), slices.get(name)
        kind = {"weight_decay": decay, "period": period, "hidden": None if where is None else asdict(where)}
        made.setdefault(json.dumps(kind), {"params": [], **kind})["params"].append(parameter)
    return list(made.values())


class MaskedAdamW(torch.optim.Optimizer):
    """AdamW whose groups may carry `hidden` (a HiddenSlice as a dict: scheduled) and `period` (C: one step every C calls).

    Its state is AdamW's (`step` counts calls, and is the schedule's clock) and, for C > 1, `accumulated`: the sum of the
    masked gradients since the last update. The mask is elementwise on the local shard, by the global index of its rows, so
    any even or uneven `Shard` of a DTensor works. Parameters must have 32 bits or more.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        schedule: Schedule,
        options: MaskOptions,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        self.schedule, self.options = schedule, options
        self.mask = json.dumps(TrainingSchedule(schedule=schedule, options=options).as_dict(), sort_keys=True)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "period": 1, "hidden": None,
            "mask": self.mask,
        }  # fmt: skip
        self._counted: dict[int, tuple[int, np.ndarray]] = {}
        self._blocks: dict[Tensor, Tensor] = {}
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; ValueError when the state was made under another schedule or other options."""
        for group in state_dict["param_groups"]:
            if group.get("mask") != self.mask:
                raise ValueError(f"the optimizer state was made under {group.get('mask')}, not under {self.mask}")
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One call; gradients as they stand. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            live = [p for p in group["params"] if p.grad is not None]
            for p in live:
                self._start(p, group)
            plain = [p for p in live if self._is_plain(p, group)]
            if plain:
                self._adamw(plain, group)
            done = {id(p) for p in plain}
            for p in live:
                if id(p) not in done:
                    self._masked(p, group)
        return loss

    def _start(self, p: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
            if group["period"] > 1:
                state["accumulated"] = torch.zeros_like(p)

    def _is_plain(self, p: Tensor, group: dict[str, Any]) -> bool:
        """Whether this step is torch's own AdamW: nothing is locked, and all Adam counts are the step."""
        if group["period"] > 1:
            return False
        open_all = self.schedule.active_blocks(int(self.state[p]["step"]) + 1) == self.schedule.blocks
        return group["hidden"] is None or (open_all and not self.options.per_block_step)

    def _adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[p] for p in params]
        adamw(
            params, [p.grad for p in params if p.grad is not None], [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states], [], [s["step"] for s in states], amsgrad=False, maximize=False,
            beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], eps=group["eps"],
            weight_decay=group["weight_decay"],
        )  # fmt: skip

    def _masked(self, p: Tensor, group: dict[str, Any]) -> None:
        """AdamW in torch's own order of operations, with a vector along the hidden axis wherever blocks differ."""
        options, state, period = self.options, self.state[p], group["period"]
        state["step"] += 1
        i = int(state["step"])
        theta, e = _local(p), _local(p.grad)
        m, v = _local(state["exp_avg"]), _local(state["exp_avg_sq"])
        block = self._block(p, group)
        k = self.schedule.active_blocks(i)
        is_open = None if block is None or k == self.schedule.blocks else block < k
        write = is_open if options.mask_grad else None
        if write is not None:
            e = torch.where(write, e, 0.0)
        if period > 1:
            accumulated = _local(state["accumulated"])
            accumulated += e
            if i % period:
                return
            # a block that closed since it was accumulated changes nothing, so its share is dropped
            e = accumulated.clone() if write is None else torch.where(write, accumulated, 0.0)
            accumulated.zero_()
        lr, (beta1, beta2), count = float(group["lr"]), group["betas"], i // period
        if group["weight_decay"]:
            theta.mul_(_either(is_open if options.mask_decay else None, 1 - lr * group["weight_decay"], 1.0, theta))
        m.lerp_(e, _either(write, 1 - beta1, 0.0, theta))
        v.mul_(_either(write, beta2, 1.0, theta)).addcmul_(e, e, value=1 - beta2)
        rate: Any = lr / (1 - beta1**count)
        root: Any = math.sqrt(1 - beta2**count)
        if options.per_block_step and block is not None:
            counts = [max(1, int(n)) for n in self._block_updates(i, period)]
            rate = theta.new_tensor([lr / (1 - beta1**n) for n in counts])[block]
            root = theta.new_tensor([math.sqrt(1 - beta2**n) for n in counts])[block]
            rate = rate if write is None else torch.where(write, rate, 0.0)
        else:
            rate = _either(write, rate, 0.0, theta)
        theta.addcdiv_(m * rate, (v.sqrt() / root).add_(group["eps"]), value=-1)

    def _block(self, p: Tensor, group: dict[str, Any]) -> Tensor | None:
        """Block of every local row of the scheduled axis, shaped to broadcast over the local shard."""
        if group["hidden"] is None:
            return None
        if p not in self._blocks:
            where = HiddenSlice(**group["hidden"])
            block = _local_rows(block_of_unit(where.size, self.schedule.blocks).repeat(where.parts), p, where.dim)
            shape = [1] * p.ndim
            shape[where.dim] = len(block)
            self._blocks[p] = block.to(_local(p).device).view(shape)
        return self._blocks[p]

    def _block_updates(self, i: int, period: int) -> np.ndarray:
        """Updates of each block up to step i in which it was open; int64 [E]. Carried from step to step."""
        last, counts = self._counted.get(period, (0, np.zeros(self.schedule.blocks, np.int64)))
        if i < last:
            last, counts = 0, np.zeros_like(counts)
        if i > last:
            k_N = self.schedule.active_blocks_range(last, i - last)
            k_N = k_N[np.arange(last + 1, i + 1) % period == 0]
            counts = counts + (k_N[:, None] > np.arange(len(counts))).sum(0)
            self._counted[period] = (i, counts)
        return counts


def _check(group: dict[str, Any]) -> None:
    if not isinstance(group["period"], int) or group["period"] < 1:
        raise ValueError(f"an update period must be a whole number of steps, at least 1, not {group['period']!r}")
    where = group["hidden"] and HiddenSlice(**group["hidden"])
    for p in group["params"]:
        if p.element_size() < 4:
            raise ValueError(f"masked AdamW needs parameters of 32 bits or more, not {p.dtype}: keep fp32 master weights")
        if where and (p.ndim <= where.dim or p.shape[where.dim] != where.size * where.parts):
            raise ValueError(f"a parameter of shape {tuple(p.shape)} has no hidden axis {where}")


def _either(mask: Tensor | None, yes: float, no: float, like: Tensor) -> Any:
    """`yes` where the mask holds, `no` elsewhere, rounded once to the parameter's type; the number when there is no mask."""
    return yes if mask is None else torch.where(mask, like.new_tensor(yes), like.new_tensor(no))


def _local(t: Any) -> Tensor:
    """The local shard of a DTensor, which shares its memory; a tensor itself otherwise."""
    return t.to_local() if hasattr(t, "to_local") else t


def _local_rows(values: Tensor, p: Any, dim: int) -> Tensor:
    """The entries of `values` (one per row of axis `dim` of the whole parameter) that belong to the local shard."""
    if not hasattr(p, "to_local"):
        return values
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements = []
    for placement in p.placements:
        if type(placement) not in (Shard, Replicate):
            raise ValueError(f"masked AdamW works on Shard and Replicate placements, not on {placement}")
        placements.append(Shard(0) if placement == Shard(dim) else Replicate())
    # no communication: every rank cuts its own copy
    return distribute_tensor(values.to(p.device), p.device_mesh, placements, src_data_rank=None).to_local()


def definition(
    theta: Sequence[float],
    grads: Sequence[Sequence[float]],
    *,
    block: Sequence[int],
    schedule: Schedule,
    options: MaskOptions,
    lrs: Sequence[float],
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    period: int = 1,
) -> list[float]:
    """The equations, one coordinate after another in Python numbers: theta after one step per row of `grads`.

    block: 0-based block of each coordinate. lrs: learning rate of each step.
    """
    out = []
    for j, start in enumerate(theta):
        x, m, v, total, updates, own = start, 0.0, 0.0, 0.0, 0, 0
        for i, (lr, e) in enumerate(zip(lrs, grads, strict=True), 1):
            is_open = block[j] < schedule.active_blocks(i)
            total += e[j] if is_open or not options.mask_grad else 0.0
            if i % period:
                continue
            e_j, total = total, 0.0
            updates, own = updates + 1, own + is_open
            if is_open or not options.mask_decay:
                x -= lr * weight_decay * x
            if options.mask_grad and not is_open:
                continue
            m = betas[0] * m + (1 - betas[0]) * e_j
            v = betas[1] * v + (1 - betas[1]) * e_j**2
            n = own if options.per_block_step else updates
            x -= lr * (m / (1 - betas[0] ** n)) / (math.sqrt(v / (1 - betas[1] ** n)) + eps)
        out.append(x)
    return out
