"""One process or many: what `accelerate launch` says about a training, and the model placed accordingly.

accelerate knows the processes, the device and the plan (nothing, DDP, FSDP2) from its configuration. Sharding is done here,
not by `Accelerator.prepare`: that one pairs optimizer and model by the address of each parameter, and a parameter without
storage (a model on the meta device, or a vector with fewer entries than there are processes) has none.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import Tensor, nn

from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_models.decoder import DecoderLM, new_block
from proteus_models.train_objective import Objective, Rows


class Processes:
    """The processes of this launch. EnvironmentFault for a launch configuration that training does not follow."""

    def __init__(self) -> None:
        if os.environ.get("ACCELERATE_MIXED_PRECISION", "no") != "no":
            raise EnvironmentFault("set `precision` in the recipe, and mixed_precision: no in accelerate's configuration")
        # said aloud: of several processes on a machine without GPUs accelerate would otherwise see one
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.count, self.rank = self.accelerator.num_processes, self.accelerator.process_index
        launched = int(os.environ.get("WORLD_SIZE", "1"))
        if self.count != launched:  # each would train alone and write over the others
            raise EnvironmentFault(
                f"{launched} processes were launched and accelerate sees {self.count}: start them by accelerate or torchrun"
            )
        self.device: torch.device = self.accelerator.device
        sharded = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and self.count > 1
        self.plan = FullyShardedDataParallelPlugin() if sharded else None
        if self.plan is not None and self.plan.fsdp_version != 2:
            raise EnvironmentFault("training shards by FSDP2: set fsdp_version: 2 in accelerate's configuration")
        if self.plan is not None and os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
            raise EnvironmentFault("training keeps its shards on the device: set fsdp_offload_params: false")

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def place(self, objective: Objective, seed: int) -> nn.Module:
        """The module to call: its weights on this process's device, drawn from `seed` if they are on the meta device."""
        model = objective.model
        for block in model.stack:
            block.recompute = block.recompute or (self.plan is not None and bool(self.plan.activation_checkpointing))
        if self.plan is not None:
            self._shard(objective, model)
        if any(p.is_meta for p in model.parameters()):
            objective.to_empty(device=self.device)
            draw(model, seed)
        if self.plan is not None:
            return objective
        return self.accelerator.prepare_model(objective)

    def _shard(self, objective: Objective, model: DecoderLM) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if model.along.is_data_dependent:
            raise UsageError("a schedule that looks at the data calls the blocks unequally often in each process: no FSDP2")
        assert self.plan is not None
        # a block returns views of its inputs as its state; nobody writes to them
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in model.stack:
            fully_shard(block, mesh=mesh, reshard_after_forward=bool(self.plan.reshard_after_forward))
        fully_shard(objective, mesh=mesh)

    def parts(self, rows: Rows, at_a_time: int) -> list[Rows]:
        """This process's rows of a step, `at_a_time` in each part (0: all). UsageError when they cannot be shared equally."""
        total = len(rows.ids)
        size = at_a_time or -(-total // self.count)
        if total % (size * self.count):
            raise UsageError(
                f"a step of {total} rows cannot be shared by {self.count} processes of {size} rows at a time: "
                "change batch_tokens, micro_rows or the number of processes"
            )
        places = range(self.rank * size, total, self.count * size)
        return [rows.cut(slice(at, at + size)) for at in places]

    def together(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Where a part's backward runs: DDP exchanges gradients in the last one; FSDP2 in each, and keeps its shard."""
        if last or self.plan is not None or self.count == 1:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model)

    def sum(self, values: Tensor) -> Tensor:
        """Elementwise over all processes, the same in each."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def close(self) -> None:
        """The others may go: what is left is the main one's."""
        self.accelerator.end_training()


def whole(t: Tensor) -> Tensor:
    """All of a tensor, in every process: its shards are collected when it has any."""
    from torch.distributed.tensor import DTensor

    return t.full_tensor() if isinstance(t, DTensor) else t


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """`value`, whole in every process, laid out as the parameter: its device, and its own shard without communication."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return value.to(parameter.device)
    value = value.to(parameter.to_local().device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def pieces(model: DecoderLM) -> Iterator[tuple[str, nn.Module]]:
    """(prefix, freshly drawn module) of a decoder piece by piece, in the order in which its constructor draws them."""
    config = model.config
    embed = nn.Embedding(config.vocab_size, config.d_model)
    nn.init.normal_(embed.weight, std=0.02)
    yield "embed.", embed
    for i in range(config.n_layers):
        yield f"blocks.{i}.", new_block(config)
    yield "norm.", nn.RMSNorm(config.d_model, eps=1e-5)


@torch.no_grad()
def draw(model: DecoderLM, seed: int) -> None:
    """The weights of `torch.manual_seed(seed); DecoderLM(config)`, bit for bit, whatever the model's device and sharding.

    At most one block is whole at a time, on the CPU of each process.
    """
    torch.manual_seed(seed)
    targets = dict(model.named_parameters())
    for prefix, fresh in pieces(model):
        for name, value in fresh.named_parameters():
            parameter = targets.pop(prefix + name)
            parameter.copy_(like(value, parameter))
    if targets:
        raise ValueError(f"no initial value for {', '.join(sorted(targets))}")
