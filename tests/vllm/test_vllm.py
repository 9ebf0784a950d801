"""Our models on vLLM: greedy tokens as ours, log-probabilities within 1e-4, whatever is batched and however it is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import Alone, alone, decoder, prompts, saved, static

from proteus_bench.schedules import Capacity, Late, Schedule, Surprise
from proteus_models import zoo
from proteus_models.decoder import MIXERS, DecoderLM

pytestmark = pytest.mark.vllm
LENGTHS = (1, 5, 37, 130, 90, 64, 130)
NEW = 10
SMALL = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 32}
MODELS: list[tuple[str, str, str, Schedule | None]] = [
    ("gdn", "value", "zero", None),
    ("gdn", "value", "zero", static()),
    ("deltanet", "key", "zero", None),
    ("titans", "key", "learned", None),
    ("titans-mlp", "hidden", "learned", None),
    ("retnet", "value", "zero", None),
    ("titans-mag", "key", "zero", None),
    ("titans-mal", "value", "zero", None),
    ("titans-mac", "value", "zero", None),
    ("transformer++", "value", "zero", static()),
    ("hope-attention", "hidden", "zero", None),
]
ATTENTION_HEAD = 32
"""The smallest head of vLLM's attention on a CPU."""


def served(llm: Any, asked: list[list[int]], new: int) -> list[Alone]:
    """Greedy tokens and the log-probabilities of prompt and answer. Prompts at once, four sequences and 32 tokens a step."""
    from vllm import SamplingParams

    wish = SamplingParams(temperature=0, max_tokens=new, logprobs=0, prompt_logprobs=0, detokenize=False)
    found = []
    for prompt, output in zip(asked, llm.generate([{"prompt_token_ids": p} for p in asked], wish, use_tqdm=False), strict=True):
        tokens = list(output.outputs[0].token_ids)
        told = [*zip(prompt[1:], output.prompt_logprobs[1:], strict=True), *zip(tokens, output.outputs[0].logprobs, strict=True)]
        found.append(Alone(tokens, [at[token].logprob for token, at in told]))
    return found


def check(model: DecoderLM, found: list[Alone], asked: list[list[int]], new: int) -> None:
    for prompt, one in zip(asked, found, strict=True):
        mine = alone(model, prompt, new)
        assert one.tokens == mine.tokens
        assert one.logprobs == pytest.approx(mine.logprobs, abs=1e-4)


@pytest.mark.parametrize(("mixer", "axis", "m0", "schedule"), MODELS)
def test_prompts_of_many_lengths_in_pieces(
    mixer: str, axis: str, m0: str, schedule: Schedule | None, engine: Callable[..., Any], tmp_path: Path
) -> None:
    """More sequences than slots, so slots are used again; prompts longer than a step, so they continue from the pages."""
    head = ATTENTION_HEAD if MIXERS[mixer].memory == "none" else 8
    model, asked = decoder(mixer, axis, m0, schedule, head=head), prompts(LENGTHS)
    with engine(saved(model, tmp_path / mixer), **SMALL) as llm:
        check(model, served(llm, asked, NEW), asked, NEW)
        assert len({tuple(one.tokens) for one in served(llm, asked, NEW)}) >= 4  # answers that depend on the prompt
        check(model, served(llm, asked[::-1], NEW), asked[::-1], NEW)


def test_a_schedule_of_another_kind_is_put_on_the_same_weights(engine: Callable[..., Any], tmp_path: Path) -> None:
    model, asked = decoder("gdn", "value"), prompts(LENGTHS)
    folder = saved(model, tmp_path / "gdn")
    late = Capacity(schedule=Late(blocks=4, span=48), axis="value")
    before = [alone(model, prompt, NEW).logprobs for prompt in asked]
    model.set_capacity(late)
    with engine(folder, hf_overrides={"architecture": model.config.as_dict()}, **SMALL) as llm:
        check(model, served(llm, asked, NEW), asked, NEW)
    assert before != [alone(model, prompt, NEW).logprobs for prompt in asked]


def test_a_trained_model_answers_texts(engine: Callable[..., Any], tmp_path: Path) -> None:
    from vllm import SamplingParams

    from proteus_models.hf import from_zoo

    model, tokenizer = from_zoo("titans+proteus")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = ["The key of the harbor is 1 2 3. The key of the harbor is", "Fellow citizens of the Senate", "The Congress " * 60]
    with engine(tmp_path, skip_tokenizer_init=False, max_model_len=1024, max_num_batched_tokens=64, max_num_seqs=2) as llm:
        outputs = llm.generate(texts, SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), use_tqdm=False)
    micro = zoo.tokenizer()
    for text, output in zip(texts, outputs, strict=True):
        assert list(output.prompt_token_ids) == micro.encode(text)
        mine = alone(model.model, micro.encode(text), 6).tokens
        assert list(output.outputs[0].token_ids) == mine
        assert output.outputs[0].text == micro.decode(mine)


@pytest.mark.parametrize(
    ("mixer", "schedule", "options", "message"),
    [
        ("gdn", None, {"enable_prefix_caching": True}, "no prefix caching"),
        ("gdn", None, {"tensor_parallel_size": 2}, "lives on one device"),
        ("gdn", Surprise(blocks=4, span=48), {}, "decided by the data"),
        ("transformer++", static(), {"tensor_parallel_size": 2}, "lives on one device"),
    ],
)
def test_what_cannot_be_served_is_said(
    mixer: str, schedule: Schedule | None, options: dict[str, Any], message: str, engine: Callable[..., Any], tmp_path: Path
) -> None:
    folder = saved(decoder(mixer, "value", "zero", schedule), tmp_path / "model")
    with pytest.raises(ValueError, match=message), engine(folder, **(SMALL | options)):
        pass
