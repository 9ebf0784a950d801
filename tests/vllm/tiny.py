"""Tiny decoders saved for transformers, and what they answer by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from proteus_bench.schedules import Capacity, Schedule, Static, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.hf import from_decoder

VOCAB = 40
SIZES = {"d_model": 16, "n_heads": 2, "mlp_hidden": 16, "memory_hidden": 8, "n_layers": 2}


def decoder(
    mixer: str, axis: str = "key", m0: str = "zero", schedule: Schedule | None = None, vocab: int = VOCAB, head: int = 8
) -> DecoderLM:
    """Four blocks over 48 positions unless another schedule is given: unlocks at 13, 25, 37, inside pieces of a prompt."""
    torch.manual_seed(0)
    capacity = Capacity(schedule=schedule or Uniform(blocks=4, span=48), axis=axis, m0=m0)
    config = ModelConfig(
        mixer=mixer, vocab_size=vocab, train_length=48, capacity=capacity, chunk=4, inner=4, window=6, segment=6,
        head_k=head, head_v=head, **SIZES,
    )  # fmt: skip
    model = DecoderLM(config).eval()
    model.embed.weight.data.mul_(6)  # answers that differ, and no two tokens as good as equally likely
    return model


def static() -> Schedule:
    return Static(blocks=1, span=48)


def saved(model: DecoderLM, folder: Path) -> Path:
    from_decoder(model, eos_token_id=None).save_pretrained(folder)
    return folder


def prompts(lengths: tuple[int, ...], vocab: int = VOCAB) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]


@dataclass(frozen=True)
class Alone:
    """What a decoder says of a prompt: its greedy tokens, and the log-probabilities of every token but the first."""

    tokens: list[int]
    logprobs: list[float]


@torch.inference_mode()
def alone(model: DecoderLM, prompt: list[int], new: int) -> Alone:
    """Token by token from the state, then everything once more in one pass for the log-probabilities."""
    found: list[int] = []
    logits_BV, state = model.prefill(torch.tensor([prompt]))
    for _ in range(new):
        found.append(int(logits_BV.argmax()))
        logits_BV, state = model.prefill(torch.tensor([found[-1:]]), state)
    whole = torch.tensor(prompt + found)
    logprobs_TV = model(whole[None])[0].log_softmax(-1)
    return Alone(found, logprobs_TV[:-1].gather(1, whole[1:, None])[:, 0].tolist())
