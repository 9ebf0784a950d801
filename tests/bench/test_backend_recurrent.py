"""Prefill once, ask many: batched equals single, and nothing about the batch reaches an answer."""

import random
from typing import Any

import pytest
import torch

from proteus_bench.backends import AskIds
from proteus_bench.backends.recurrent import answer_recurrent
from proteus_bench.schedules import Capacity, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM

VOCAB = 61


def tiny(mixer: str, span: int = 256) -> DecoderLM:
    torch.manual_seed(1)
    axes: Any = MIXERS[mixer].axes
    m0: Any = "learned" if MIXERS[mixer].memory == "mlp" else "zero"
    capacity = Capacity.static(span=span)  # what a backbone without a fixed state can have
    if axes:
        capacity = Capacity(schedule=Uniform(blocks=4, span=span), axis=axes[0], m0=m0)
    config = ModelConfig(
        mixer=mixer,
        vocab_size=VOCAB,
        train_length=span,
        capacity=capacity,
        d_model=32,
        n_layers=2,
        n_heads=2,
        head_k=8,
        head_v=8,
        mlp_hidden=32,
        memory_hidden=16,
        theta_max=0.05,
    )
    return DecoderLM(config).eval()


def ids(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_batched_contexts_of_unequal_length_answer_as_single_ones(mixer: str) -> None:
    model, rng = tiny(mixer), random.Random(0)
    contexts = [ids(rng, n) for n in (300, 303, 300, 257)]
    questions = [[AskIds(ids(rng, 5 + q), ids(rng, 1 + q), 6, frozenset({3, 7})) for q in range(3)] for _ in contexts]
    together = answer_recurrent(model, contexts, questions)
    for context, asks, answers in zip(contexts, questions, together, strict=True):
        for ask, answer in zip(asks, answers, strict=True):
            alone = answer_recurrent(model, [context], [[ask]])[0][0]
            assert answer.text_ids == alone.text_ids
            assert answer.gold_logprob == pytest.approx(alone.gold_logprob, abs=2e-4)


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_answers_are_those_of_one_plain_forward_pass(mixer: str) -> None:
    model, rng = tiny(mixer), random.Random(2)
    context, prompt, gold = ids(rng, 290), ids(rng, 6), ids(rng, 4)
    answer = answer_recurrent(model, [context], [[AskIds(prompt, gold, 5)]])[0][0]
    with torch.inference_mode():
        logp = torch.log_softmax(model(torch.tensor([context + prompt + gold]))[0].double(), -1)
        start = len(context) + len(prompt)
        expected = sum(float(logp[start + i - 1, token]) for i, token in enumerate(gold))
        text: list[int] = []
        for _ in range(5):
            text.append(int(model(torch.tensor([context + prompt + text]))[0, -1].argmax()))
    assert answer.gold_logprob == pytest.approx(expected, abs=2e-4)
    assert answer.text_ids == text


def test_the_stop_token_ends_an_answer_and_is_not_part_of_it() -> None:
    model, rng = tiny("gdn"), random.Random(3)
    context, prompt = ids(rng, 40), ids(rng, 6)
    free = answer_recurrent(model, [context], [[AskIds(prompt, [1], 8)]])[0][0].text_ids
    stop = free[3]
    stopped = answer_recurrent(model, [context], [[AskIds(prompt, [1], 8, frozenset({stop}))]])[0][0].text_ids
    assert stopped == free[: free.index(stop)]


def test_repeating_a_call_gives_the_same_bits() -> None:
    model, rng = tiny("titans"), random.Random(4)
    contexts, asks = [ids(rng, 200), ids(rng, 200)], [[AskIds(ids(rng, 6), ids(rng, 3), 4)] for _ in range(2)]
    first, second = (answer_recurrent(model, contexts, asks) for _ in range(2))
    assert [a[0].gold_logprob for a in first] == [a[0].gold_logprob for a in second]


def test_empty_pieces_are_refused() -> None:
    model = tiny("gdn")
    for contexts, asks in (
        ([[1]], [[AskIds([1], [], 1)]]),
        ([[1]], [[AskIds([], [1], 1)]]),
    ):
        with pytest.raises(ValueError):
            answer_recurrent(model, contexts, asks)


def test_a_question_needs_no_context() -> None:
    model, rng = tiny("gdn"), random.Random(7)
    prompt, gold = ids(rng, 9), ids(rng, 3)
    alone, behind = (
        answer_recurrent(model, [context], [[AskIds(prompt[len(context) :], gold, 4)]])[0][0] for context in ([], prompt[:4])
    )
    assert alone.text_ids == behind.text_ids and alone.gold_logprob == pytest.approx(behind.gold_logprob, abs=1e-5)


def test_a_long_gold_is_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from proteus_bench.backends import recurrent

    model, rng = tiny("titans"), random.Random(8)
    context, ask = ids(rng, 20), AskIds(ids(rng, 3), ids(rng, 40), 0)
    whole = answer_recurrent(model, [context], [[ask]])[0][0].gold_logprob
    monkeypatch.setattr(recurrent, "GOLD_TOKENS", 7)
    assert answer_recurrent(model, [context], [[ask]])[0][0].gold_logprob == pytest.approx(whole, abs=1e-4)


def test_a_context_is_prefilled_once_however_many_questions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng = tiny("gdn"), random.Random(5)
    consumed: list[int] = []
    prefill = model.prefill

    def counted(ids_BT: torch.Tensor, state: Any) -> Any:
        if ids_BT.shape[1] > 1:  # decoding steps are single tokens
            consumed.append(ids_BT.numel())
        return prefill(ids_BT, state)

    monkeypatch.setattr(model, "prefill", counted)
    answer_recurrent(model, [ids(rng, 5000)], [[AskIds(ids(rng, 10), ids(rng, 4), 3) for _ in range(8)]])
    assert sum(consumed) == 5000 + 8 * 10
