"""A back end that works on token ids answers texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proteus_bench.backends.base import Answer, Ask, AskIds, Ids, Reply
from proteus_bench.backends.encoding import TAIL_CHARS, continuation_ids, encode_long, ids_that_begin_with, stop_ids


class TokenBackend:
    """Mixin: `reply` by `answer`. Context, question and gold are encoded apart, as a model reads them that is fed the
    context once and then asked many times."""

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """Answers in the order of the questions; ``questions[i]`` belong to ``contexts[i]``."""
        raise NotImplementedError

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """See `base.Backend.reply`."""
        tokenizer = self.tokenizer
        pairs = [self._ids(context, asks) for context, asks in zip(contexts, questions, strict=True)]
        answers = self.answer([ids for ids, _ in pairs], [asks for _, asks in pairs])
        return [
            [
                reply_of(tokenizer, ask, ids, answer, len(context))
                for ask, ids, answer in zip(asks, row, found, strict=True)
            ]
            for asks, (context, row), found in zip(questions, pairs, answers, strict=True)
        ]

    def _ids(self, context: str, asks: Sequence[Ask]) -> tuple[Ids, list[AskIds]]:
        """Context and questions as token ids. A question without text begins with the context's last token."""
        tokenizer = self.tokenizer
        ids: Ids = encode_long(tokenizer, context) if context else []
        prompts = [tokenizer.encode(ask.text + ask.answer_prefix) for ask in asks]
        if not all(prompts):
            lead = list(map(int, ids[-1:])) or [tokenizer.begin_id]
            ids, prompts = ids[:-1], [lead + prompt for prompt in prompts]
        return ids, [
            AskIds(
                prompt,
                continuation_ids(tokenizer, (context[-TAIL_CHARS:] if context else "") + ask.text + ask.answer_prefix, ask.gold),
                ask.max_new_tokens,
                ends_of(tokenizer, ask),
            )
            for ask, prompt in zip(asks, prompts, strict=True)
        ]


def ends_of(tokenizer: Any, ask: Ask) -> frozenset[int]:
    """The tokens that end an answer."""
    found = stop_ids(tokenizer, ask.stop)
    if ask.until is not None:
        found = found | ids_that_begin_with(tokenizer, ask.until) | tokenizer.end_ids
    return found


def reply_of(tokenizer: Any, ask: Ask, ids: AskIds, answer: Answer, context_tokens: int) -> Reply:
    """An answer in text."""
    output = tokenizer.decode(answer.text_ids)
    ends = [at for stop in ask.until or () if (at := output.find(stop)) >= 0]
    return Reply(
        output=output[: min(ends)] if ends else output,
        output_ids=list(answer.text_ids),
        gold_logprob=answer.gold_logprob,
        gold_tokens=len(ids.gold_ids),
        context_tokens=max(1, context_tokens),
        seconds=answer.seconds,
        unlocks=answer.unlocks,
        gold_is_greedy=answer.gold_is_greedy,
    )
