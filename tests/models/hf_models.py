"""Tiny decoders, their wrappers for transformers, padded batches and comparisons that the tests of `hf` share."""

from __future__ import annotations

import torch
from torch import Tensor

from proteus_bench.schedules import Capacity, Schedule, Static, Uniform
from proteus_models import zoo
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM, map_tensors
from proteus_models.hf import ProteusForCausalLM, fast_tokenizer, from_decoder

MICRO, FAST = zoo.tokenizer(), fast_tokenizer()
SIZES = {"d_model": 16, "n_heads": 2, "head_k": 8, "head_v": 8, "mlp_hidden": 16, "memory_hidden": 8, "n_layers": 2}
CASES = [("gdn", "value", "zero"), ("titans", "key", "learned"), ("titans-mlp", "hidden", "learned")]
VOCAB = 40


def config(mixer: str = "gdn", axis: str = "value", m0: str = "zero") -> ModelConfig:
    schedule: Schedule = Uniform(blocks=4, span=24) if MIXERS[mixer].axes else Static(blocks=1, span=24)
    return ModelConfig(
        mixer=mixer, vocab_size=VOCAB, train_length=24, capacity=Capacity(schedule=schedule, axis=axis, m0=m0),
        chunk=4, inner=4, window=6, segment=6, **SIZES,
    )  # fmt: skip


def pair(*case: str, dtype: torch.dtype = torch.float64) -> tuple[DecoderLM, ProteusForCausalLM]:
    torch.manual_seed(0)
    decoder = DecoderLM(config(*case)).to(dtype).eval()
    return decoder, from_decoder(decoder, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.detach() - b.detach()).abs().max())


def state_gap(a: object, b: object) -> float:
    both: tuple[list[Tensor], list[Tensor]] = ([], [])
    for tree, out in zip((a, b), both, strict=True):
        map_tensors(tree, lambda x, out=out: out.append(x) or x)
    return max(gap(x, y) for x, y in zip(*both, strict=True))


def padded(rows: list[Tensor], where: str) -> tuple[Tensor, Tensor]:
    """Rows of unequal length in one rectangle; pads (id 0) on one side or scattered inside."""
    width = max(map(len, rows)) + 2
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        places = {
            "left": range(width - len(row), width),
            "right": range(len(row)),
            "scattered": sorted(torch.randperm(width, generator=torch.Generator().manual_seed(i))[: len(row)].tolist()),
        }[where]
        ids[i, list(places)], mask[i, list(places)] = row, 1
    return ids, mask


def weights_equal(wrapped: ProteusForCausalLM, decoder: DecoderLM) -> bool:
    own = wrapped.model.state_dict()
    return all(torch.equal(t, own[n]) for n, t in decoder.state_dict().items())


def greedy(decoder: DecoderLM, row: Tensor, new: int) -> list[int]:
    out: list[int] = []
    logits, state = decoder.prefill(row[None])
    for _ in range(new):
        out.append(int(logits.argmax()))
        logits, state = decoder.prefill(torch.tensor([[out[-1]]]), state)
    return out
