"""Masked AdamW: equal to its equations, to torch where nothing is locked, exact over a save, and the same when sharded."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from proteus_bench.schedules import Late, Reverse, Schedule, Static, Uniform
from proteus_models.masked_optim import HiddenSlice, MaskedAdamW, definition, groups
from proteus_models.training_schedule import (
    LITERAL,
    MaskOptions,
    ReadGate,
    TrainingSchedule,
    block_of_unit,
    decay_before_unlock,
    first_step_after_unlock,
)

SLICES = {"up": HiddenSlice(dim=0, size=7, parts=2), "down": HiddenSlice(dim=1, size=7)}
ALL = MaskOptions(per_block_step=True)
OPTIONS = [
    MaskOptions(mask_grad=g, mask_decay=d, per_block_step=p) for g, d, p in product((True, False), repeat=3) if g or not p
]  # fmt: skip


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    """Seven hidden units of an MLP 3 -> 7 -> 3 with two stacked first matrices, and a bias that is never masked."""
    make = torch.Generator().manual_seed(0)
    shapes = {"up": (14, 3), "down": (3, 7), "bias": (3,)}
    return {n: nn.Parameter(torch.randn(s, generator=make, dtype=dtype)) for n, s in shapes.items()}


def optimizer(
    named: dict[str, nn.Parameter], schedule: Schedule, options: MaskOptions, periods: dict[str, int] | None = None, **more: Any
) -> MaskedAdamW:
    made = groups(named.items(), slices=SLICES, periods=periods, weight_decay=more.pop("weight_decay", 0.1))
    return MaskedAdamW(made, schedule=schedule, options=options, **({"lr": 0.02, "betas": (0.9, 0.98)} | more))


def gradients(named: dict[str, nn.Parameter], steps: int, seed: int = 1) -> list[dict[str, Tensor]]:
    make = torch.Generator().manual_seed(seed)
    return [
        {n: torch.randn(p.shape, generator=make, dtype=torch.float64).to(p.dtype) for n, p in named.items()}
        for _ in range(steps)
    ]


def train(opt: torch.optim.Optimizer, named: dict[str, nn.Parameter], grads: list[dict[str, Tensor]], start: int = 1) -> None:
    """The learning rate falls, as a cosine's would."""
    for i, grad in enumerate(grads, start):
        for group in opt.param_groups:
            group["lr"] = 0.02 / i**0.5
        for name, p in named.items():
            p.grad = grad[name].clone()
        opt.step()


def blocks_of(name: str, shape: torch.Size, blocks: int) -> list[int]:
    if name not in SLICES:
        return [0] * shape.numel()
    along = block_of_unit(7, blocks).repeat(SLICES[name].parts)
    return (along[:, None] if SLICES[name].dim == 0 else along[None]).expand(shape).flatten().tolist()


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("schedule", [Uniform(blocks=3, span=12), Reverse(blocks=3, span=12)], ids=["uniform", "reverse"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "".join(str(int(x)) for x in vars(o).values()))
def test_every_option_equals_the_equations(options: MaskOptions, schedule: Schedule, period: int) -> None:
    named = parameters()
    start = {n: p.detach().flatten().tolist() for n, p in named.items()}
    grads = gradients(named, 20)
    train(optimizer(named, schedule, options, dict.fromkeys(named, period), eps=1e-3), named, grads)
    worst = 0.0
    for name, p in named.items():
        expected = definition(
            start[name], [g[name].flatten().tolist() for g in grads], block=blocks_of(name, p.shape, 3),
            schedule=schedule if name in SLICES else Static(blocks=3, span=12), options=options, period=period,
            lrs=[0.02 / i**0.5 for i in range(1, 21)], betas=(0.9, 0.98), eps=1e-3,
            weight_decay=0.1 if p.ndim > 1 else 0.0,
        )  # fmt: skip
        worst = max(worst, float((p.detach().flatten() - torch.tensor(expected, dtype=p.dtype)).abs().max()))
    assert worst <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [MaskOptions(), ALL, LITERAL], ids=["default", "all", "literal"])
def test_nothing_locked_is_torch_adamw_bit_for_bit(options: MaskOptions, dtype: torch.dtype) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    made = groups(theirs.items(), slices={}, weight_decay=0.1)
    reference = torch.optim.AdamW([{k: g[k] for k in ("params", "weight_decay")} for g in made], lr=0.02, betas=(0.9, 0.98))
    grads = gradients(ours, 25)
    train(optimizer(ours, Static(blocks=1, span=9), options), ours, grads)
    train(reference, theirs, grads)
    assert all(torch.equal(a, b) for a, b in zip(ours.values(), theirs.values(), strict=True))


def test_the_open_block_of_a_locked_model_is_torch_adamw_bit_for_bit() -> None:
    """Also while masks are vectors: the first block never notices that others are locked."""
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    grads = gradients(ours, 15)
    train(optimizer(ours, Uniform(blocks=3, span=300), MaskOptions()), ours, grads)
    train(optimizer(theirs, Static(blocks=1, span=9), MaskOptions()), theirs, grads)
    assert torch.equal(ours["down"][:, :2], theirs["down"][:, :2]) and torch.equal(ours["bias"], theirs["bias"])
    assert torch.equal(ours["up"][[0, 1, 7, 8]], theirs["up"][[0, 1, 7, 8]])
    assert not torch.equal(ours["down"][:, 2:], theirs["down"][:, 2:])


def test_locked_units_keep_their_bits_whatever_their_gradients() -> None:
    named = parameters(torch.float32)
    before = {n: p.detach().clone() for n, p in named.items()}
    opt = optimizer(named, Uniform(blocks=3, span=30), ALL)
    train(opt, named, [{n: torch.full_like(p, 1e20) for n, p in named.items()}] * 10)  # step 11 opens the second block
    locked = {"up": [*range(2, 7), *range(9, 14)], "down": range(2, 7)}
    assert torch.equal(named["up"][locked["up"]], before["up"][locked["up"]])
    assert torch.equal(named["down"][:, 2:], before["down"][:, 2:])
    assert all(float(opt.state[named["down"]][key][:, 2:].abs().max()) == 0 for key in ("exp_avg", "exp_avg_sq"))
    train(opt, named, gradients(named, 1), start=11)
    moved = (named["down"] != before["down"]).all(0)
    assert moved.tolist() == [True] * 4 + [False] * 3


def test_a_block_that_closes_again_is_frozen_with_its_moments() -> None:
    named = parameters(torch.float32)
    opt = optimizer(named, Reverse(blocks=3, span=6), MaskOptions())
    train(opt, named, gradients(named, 2))
    kept = [x[:, 4:].clone() for x in (named["down"], *(opt.state[named["down"]][k] for k in ("exp_avg", "exp_avg_sq")))]
    train(opt, named, gradients(named, 5, seed=2), start=3)
    now = [x[:, 4:] for x in (named["down"], *(opt.state[named["down"]][k] for k in ("exp_avg", "exp_avg_sq")))]
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True)) and float(kept[1].abs().max()) > 0


def cosine(steps: int, floor: float) -> np.ndarray:
    """The paper's recipe: 4e-4 to `floor` of it."""
    x = np.arange(steps) / steps
    return 4e-4 * (floor + (1 - floor) * (1 + np.cos(np.pi * x)) / 2)


@pytest.mark.parametrize(("steps", "low", "high"), [(100_000, 0.113, 0.136), (200_000, 0.0129, 0.0184)])
def test_unmasked_decay_shrinks_the_last_block_before_its_first_use(steps: int, low: float, high: float) -> None:
    """760M on 50B and 1.3B on 100B tokens of 0.5M a step, weight decay 0.1, E = 16; cosine to a tenth, and to zero."""
    left = [decay_before_unlock(Uniform(blocks=16, span=steps), cosine(steps, f), 0.1) for f in (0.1, 0.0)]
    assert low <= left[0][-1] < left[1][-1] <= high
    assert all(x[0] == 1.0 and (np.diff(x) < 0).all() for x in left)


def test_the_shrinkage_formula_is_what_the_optimizer_does() -> None:
    """A hundredth of the steps of the 760M recipe at a hundred times its rate: every block, just before it opens."""
    steps, schedule = 1000, Uniform(blocks=16, span=1000)
    lrs = 100 * cosine(steps, 0.1)
    theta = nn.Parameter(torch.ones(1, 16, dtype=torch.float64))
    where = {"w": HiddenSlice(dim=1, size=16)}
    opt = MaskedAdamW(groups([("w", theta)], slices=where, weight_decay=0.1), schedule=schedule, options=LITERAL)
    seen = {}
    for i, lr in enumerate(lrs, 1):
        for block in [b for b, t in enumerate(schedule.unlock_times()) if t == i]:
            seen[block] = theta[0, block].item()
        opt.param_groups[0]["lr"] = lr
        theta.grad = torch.ones_like(theta)
        opt.step()
    expected = decay_before_unlock(schedule, list(lrs), 0.1)
    assert max(abs(seen[b] / expected[b] - 1) for b in range(16)) <= 1e-12
    assert 0.11 < seen[15] < 0.14


@pytest.mark.parametrize(("beta2", "size"), [(0.95, 0.447), (0.999, 3.162)])
def test_the_first_step_after_an_unlock(beta2: float, size: float) -> None:
    """0.45 or 3.2 learning rates with Adam's global count, one when it is counted per block."""
    schedule, lr = Late(blocks=2, span=40_000, start=0.5), 1e-3
    for options, expected in ((MaskOptions(), size), (ALL, 1.0)):
        theta = nn.Parameter(torch.zeros(1, 2, dtype=torch.float64))
        where = {"w": HiddenSlice(dim=1, size=2)}
        made = groups([("w", theta)], slices=where, weight_decay=0.0)
        opt = MaskedAdamW(made, schedule=schedule, options=options, lr=lr, betas=(0.9, beta2), eps=1e-30)
        theta.grad = torch.tensor([[0.5, -0.3]], dtype=torch.float64)
        opt.step()
        opt.state[theta]["step"].fill_(20_000)  # the last step before the second block opens
        opt.step()
        step = theta[0, 1].item() / lr
        assert step == pytest.approx(expected, abs=1e-3)
        if options == MaskOptions():
            assert step == pytest.approx(first_step_after_unlock(20_001, (0.9, beta2)), rel=1e-9)
    assert first_step_after_unlock(1, (0.9, beta2)) == pytest.approx(1.0)


@pytest.mark.parametrize("options", [MaskOptions(), ALL])
def test_a_saved_state_continues_to_the_same_bits(options: MaskOptions, tmp_path: Path) -> None:
    periods = {"up": 1, "down": 3, "bias": 3}
    schedule = Uniform(blocks=3, span=12)
    for cut in (4, 5, 9):  # inside an accumulation window, just after an unlock, and once all is open
        whole, first = parameters(torch.float32), parameters(torch.float32)
        grads = gradients(whole, 18)
        train(optimizer(whole, schedule, options, periods), whole, grads)
        half = optimizer(first, schedule, options, periods)
        train(half, first, grads[:cut])
        torch.save({"p": {n: p.detach() for n, p in first.items()}, "o": half.state_dict()}, tmp_path / "state")
        loaded = torch.load(tmp_path / "state", weights_only=True)
        second = {n: nn.Parameter(t) for n, t in loaded["p"].items()}
        rest = optimizer(second, schedule, options, periods)
        rest.load_state_dict(loaded["o"])
        train(rest, second, grads[cut:], start=cut + 1)
        assert all(torch.equal(a, b) for a, b in zip(whole.values(), second.values(), strict=True)), cut


def test_a_state_of_another_schedule_and_impossible_settings_are_refused() -> None:
    named = parameters()
    state = optimizer(named, Uniform(blocks=3, span=12), MaskOptions()).state_dict()
    with pytest.raises(ValueError, match="was made under"):
        optimizer(named, Uniform(blocks=3, span=13), MaskOptions()).load_state_dict(state)
    with pytest.raises(ValueError, match="needs mask_grad"):
        MaskOptions(mask_grad=False, per_block_step=True)
    with pytest.raises(ValueError, match="true or false"):
        MaskOptions(mask_read=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        optimizer(named, Static(), MaskOptions(), {"up": 0})
    with pytest.raises(ValueError, match="no hidden axis"):
        MaskedAdamW(groups(named.items(), slices={"up": HiddenSlice(dim=1, size=7)}, weight_decay=0.1),
                    schedule=Static(), options=ALL)  # fmt: skip
    with pytest.raises(ValueError, match="32 bits"):
        optimizer(parameters(torch.bfloat16), Static(), ALL)
    with pytest.raises(ValueError, match="fewer than 16 blocks"):
        block_of_unit(7, 16)
    assert block_of_unit(7, 3).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_the_read_gate_takes_locked_units_out_and_is_nothing_when_open() -> None:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 7), nn.SiLU(), nn.Linear(7, 3)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    plain = mlp(x)
    gate = ReadGate([(mlp[2], 7)], Uniform(blocks=3, span=9))
    assert torch.equal(mlp(x), plain)
    gate.at(4)
    hidden = nn.functional.silu(mlp[0](x))
    assert torch.allclose(mlp(x), hidden[:, :4] @ mlp[2].weight[:, :4].T + mlp[2].bias, atol=1e-14)
    mlp(x).sum().backward()
    assert float(mlp[0].weight.grad[4:].abs().max()) == 0 == float(mlp[2].weight.grad[:, 4:].abs().max())  # type: ignore[union-attr,index]
    assert float(mlp[0].weight.grad[:4].abs().min()) > 0  # type: ignore[union-attr,index]
    gate.at(9)
    assert torch.equal(mlp(x), plain)
    gate.at(1)
    gate.remove()
    assert torch.equal(mlp(x), plain)


def test_a_training_schedule_as_a_capacity_says_what_is_gated() -> None:
    from proteus_bench.schedules import Capacity

    static = Capacity.static(axis="hidden", span=64)
    gates = {
        LITERAL: ("write", "unmasked"), MaskOptions(): ("both", "masked"), MaskOptions(mask_grad=False): ("read", "masked"),
        MaskOptions(mask_grad=False, mask_read=False): ("none", "masked"),
    }  # fmt: skip
    for options, expected in gates.items():
        capacity = TrainingSchedule(schedule=Uniform(blocks=4, span=9), options=options).capacity(static)
        assert (capacity.gate, capacity.decay_locked) == expected
        assert (capacity.axis, capacity.blocks, capacity.span) == ("hidden", 4, 9)


# --- two processes -------------------------------------------------------------------------------------------------------


def tiny_mlp() -> nn.Module:
    """Seven hidden units on two ranks: the shards of every matrix are uneven."""
    torch.manual_seed(0)

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(3, 14, bias=False), nn.Linear(7, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.up(x).chunk(2, -1)
            return x + self.down(nn.functional.silu(a) * b)

    return nn.Sequential(MLP(), MLP())


def sharded_worker(rank: int, meeting: str) -> None:
    """Ten steps on a sharded and on a whole copy, both gated, over the unlocks at steps 4 and 7; prints the gap."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    schedule, worst = Uniform(blocks=3, span=9), 0.0
    for options, period in ((MaskOptions(), 1), (ALL, 1), (ALL, 2), (LITERAL, 1)):
        whole, cut = tiny_mlp(), tiny_mlp()
        for layer in cut:
            fully_shard(layer, mesh=mesh)
        fully_shard(cut, mesh=mesh)
        sides = []
        for model in (whole, cut):
            names = [n for n, _ in model.named_parameters()]
            slices = {n: HiddenSlice(dim=0, size=7, parts=2) if "up" in n else HiddenSlice(dim=1, size=7) for n in names}
            made = groups(model.named_parameters(), slices=slices, periods=dict.fromkeys(names, period), weight_decay=0.1)
            opt = MaskedAdamW(made, schedule=schedule, options=options, lr=0.02)
            sides.append((model, opt, ReadGate([(layer.down, 7) for layer in model] if options.mask_read else [], schedule)))
        make = torch.Generator().manual_seed(1)
        for i in range(1, 11):
            x = torch.randn(8, 3, generator=make)
            for (model, opt, gate), rows in zip(sides, (x, x[4 * rank : 4 * rank + 4]), strict=True):
                gate.at(i)
                model(rows).square().mean().backward()
                opt.step()
                opt.zero_grad()
        pairs = zip(whole.parameters(), cut.parameters(), strict=True)
        worst = max(worst, *(float((a - b.full_tensor()).detach().abs().max()) for a, b in pairs))  # type: ignore[attr-defined]
        moved = max(float((a - b).detach().abs().max()) for a, b in zip(whole.parameters(), tiny_mlp().parameters(), strict=True))
        assert moved > 0.05, "the steps did nothing"
    print(f"gap {worst:.3e}")
    dist.destroy_process_group()


def test_two_sharded_processes_equal_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment,
        ) for rank in (0, 1)
    ]  # fmt: skip
    outputs = [worker.communicate(timeout=120) for worker in workers]
    assert all(worker.returncode == 0 for worker in workers), outputs
    gaps = [float(out.split("gap ")[1]) for out, _ in outputs]
    assert max(gaps) <= 1e-6 and math.isfinite(max(gaps))


if __name__ == "__main__":
    sharded_worker(int(sys.argv[1]), sys.argv[2])
