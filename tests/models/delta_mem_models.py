"""Tiny language models of every supported architecture, their memories, and comparisons that the delta-mem tests share."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from proteus_bench.schedules import Capacity, Uniform
from proteus_models.delta_mem import DeltaMem
from proteus_models.delta_mem_state import DeltaMemConfig, DeltaMemState

VOCAB, WIDTH = 50, 16
SIZES = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 128, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=8),  # its queries are wider than its hidden states
    "smollm3": SmolLM3Config(**SIZES),
    "gpt2": GPT2Config(**GPT2),
}
SCHEDULE = Capacity(schedule=Uniform(blocks=4, span=24), axis="row", read="pre")
MODES = {
    "token": DeltaMemConfig(),
    "segment": DeltaMemConfig(write="segment", segment=5, segment_tokens=(7, 9)),
    "multi": DeltaMemConfig(states=3, rank=4),
    "token-scheduled": DeltaMemConfig(capacity=SCHEDULE),
    "segment-scheduled": DeltaMemConfig(write="segment", segment=4, capacity=SCHEDULE),
    "multi-scheduled": DeltaMemConfig(states=2, capacity=replace(SCHEDULE, gate="write")),
}


def base(kind: str = "llama", dtype: torch.dtype = torch.float64) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[kind])).to(dtype).eval()


def adapted(mode: str = "token", kind: str = "llama", dtype: torch.dtype = torch.float64) -> tuple[Any, DeltaMem]:
    """A model with a memory whose output heads are no longer zero."""
    model = base(kind, dtype)
    memory = DeltaMem(model, MODES[mode])
    stir(memory)
    return model, memory


def stir(memory: DeltaMem) -> None:
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in memory.layers:
            for head in (layer.to_query, layer.to_output):
                head.weight.copy_(0.3 * torch.randn(head.weight.shape, generator=g, dtype=torch.float64))


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def left_padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :], mask[i, width - len(row) :] = row, 1
    return ids, mask


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.detach() - b.detach()).abs().max())


def state_gap(a: DeltaMemState, b: DeltaMemState) -> float:
    assert torch.equal(a.position, b.position) and torch.equal(a.pending, b.pending)
    return max(gap(x, y) for x, y in zip((*a.memory, *a.sums), (*b.memory, *b.sums), strict=True))


def random_state(memory: DeltaMem, batch: int) -> DeltaMemState:
    """Nothing is zero, and the rows stand at different positions."""
    g = torch.Generator().manual_seed(3)
    blank = memory.empty(batch)
    noise = [tuple(torch.randn(x.shape, generator=g, dtype=x.dtype) for x in part) for part in (blank.memory, blank.sums)]
    pending = torch.arange(batch) % 3 + 1 if blank.sums else torch.zeros(batch, dtype=torch.long)
    return replace(blank, memory=noise[0], sums=noise[1], position=torch.arange(batch) * 4 + 3, pending=pending)
