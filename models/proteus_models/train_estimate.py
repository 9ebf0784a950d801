"""What a language-model recipe would cost, before anything is paid: parameters, tokens, FLOPs, memory, time.

FLOPs and saved activations are counted, not guessed: one block of the static twin runs forward and backward on the meta
device on one row. Attention is counted as full T x T products; a fused kernel does about half and saves no scores. A schedule
computes less than its twin. Activations are counted in 32 bits; bf16 keeps up to half of that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from proteus_bench.errors import UsageError
from proteus_bench.schedules import Capacity
from proteus_models.config import ModelConfig
from proteus_models.sizes import on_meta
from proteus_models.train_lm import LMRecipe
from proteus_models.train_objective import PIECE

STATE_BYTES = 16
"""Per parameter: weight, gradient and Adam's two moments, 4 bytes each."""


@dataclass(frozen=True, kw_only=True)
class BlockCost:
    """Of one block on one row: FLOPs of both passes, of the forward alone, and bytes kept between them."""

    flops: int
    forward: int
    saved: int


def estimate(lm: LMRecipe, *, processes: int = 1, sharded: bool = True, rate: float | None = None) -> dict[str, Any]:
    """Plain numbers with their formulas. `rate`: tokens a second of one process, which only a measurement can give.

    UsageError when the rows of a step cannot be shared by the processes.
    """
    config, phase, stage = lm.config, lm.phase, lm.stage
    rows = stage.batch_tokens // stage.length
    if rows % processes or (phase.micro_rows and rows % (processes * phase.micro_rows)):
        raise UsageError(f"{rows} rows a step cannot be shared by {processes} processes of {phase.micro_rows or 'all'} rows each")
    own_rows = phase.micro_rows or rows // processes
    n = sum(p.numel() for p in on_meta(config).parameters())
    embedding = config.vocab_size * config.d_model
    block = block_cost(config, stage.length)
    tokens = phase.steps * stage.batch_tokens
    again = block.forward if lm.recompute else 0
    per_token = config.n_layers * (block.flops + again) / stage.length + 6 * embedding
    kept = (config.n_layers * 4 * stage.length * config.d_model + block.saved) if lm.recompute else config.n_layers * block.saved
    logits = 3 * 4 * config.vocab_size * min(PIECE, own_rows * stage.length)
    state = STATE_BYTES * n // (processes if sharded else 1)
    plan = {
        "recipe": lm.recipe.name, "recipe_sha256": lm.recipe.sha256, "model": lm.entry,
        "parameters": n, "parameters_embedding": embedding, "layers": config.n_layers, "mlp_hidden": config.mlp_hidden,
        "tokens": tokens, "steps": phase.steps, "tokens_a_step": stage.batch_tokens, "rows_a_step": rows,
        "tokens_per_parameter": round(tokens / n, 1),
        "flops_a_token": round(per_token), "flops_a_token_6n": 6 * n, "flops": round(per_token * tokens),
        "processes": processes, "parts_a_step": rows // (own_rows * processes),
        "bytes_weights_gradients_adam": state, "bytes_activations_fp32": own_rows * kept, "bytes_logits": logits,
        "bytes_a_process": state + own_rows * kept + logits,
    }  # fmt: skip
    if rate is not None:
        hours = tokens / (rate * processes) / 3600
        plan |= {
            "rate": rate, "hours": round(hours, 2), "process_hours": round(hours * processes, 2),
            "teraflops_a_process": round(per_token * rate / 1e12, 3),
        }  # fmt: skip
    return plan


def block_cost(config: ModelConfig, length: int) -> BlockCost:
    """Counted on the meta device: no storage, no arithmetic."""
    static = Capacity.static(**{k: getattr(config.capacity, k) for k in ("axis", "m0", "origin")}, span=config.train_length)
    model = on_meta(replace(config, n_layers=1, capacity=static))
    kept: dict[int, Tensor] = {}
    weights = {p.untyped_storage()._cdata for p in model.parameters()}

    def keep(t: Tensor) -> Tensor:
        if t.untyped_storage()._cdata not in weights:
            kept[t.untyped_storage()._cdata] = t  # held, so that no later storage can take its place
        return t

    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as forward, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        h_BTD, _ = model.hidden(ids)
    with FlopCounterMode(display=False) as backward:
        h_BTD.sum().backward()
    first = forward.get_total_flops()
    saved = sum(t.untyped_storage().nbytes() for t in kept.values())
    return BlockCost(flops=first + backward.get_total_flops(), forward=first, saved=saved)
