"""A back end that works on token ids answers texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proteus_bench.backends.base import Answer, Ask, AskIds, Ids, Reply
from proteus_bench.backends.encoding import encode_long, stop_ids


class TokenBackend:
    """Mixin: `reply` by `answer`. Context, question and gold are encoded apart, as a model reads them that is fed the
    context once and then asked many times."""

    @property
    def tokenizer(self) -> Any:
        raise NotImplementedError

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """Answers in the order of the questions; ``questions[i]`` belong to ``contexts[i]``."""
        raise NotImplementedError

    def ask_ids(self, ask: Ask) -> AskIds:
        """A question as token ids."""
        tokenizer = self.tokenizer
        return AskIds(
            tokenizer.encode(ask.text + ask.answer_prefix),
            tokenizer.encode(ask.gold),
            ask.max_new_tokens,
            stop_ids(tokenizer, ask.stop),
        )

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """See `base.Backend.reply`."""
        ids = [encode_long(self.tokenizer, text) for text in contexts]
        asks = [[self.ask_ids(ask) for ask in row] for row in questions]
        return [
            [reply_of(self.tokenizer, ask, answer, len(context)) for ask, answer in zip(row, answers, strict=True)]
            for context, row, answers in zip(ids, asks, self.answer(ids, asks), strict=True)
        ]


def reply_of(tokenizer: Any, ask: AskIds, answer: Answer, context_tokens: int) -> Reply:
    """An answer in text."""
    return Reply(
        output=tokenizer.decode(answer.text_ids),
        output_ids=list(answer.text_ids),
        gold_logprob=answer.gold_logprob,
        gold_tokens=len(ask.gold_ids),
        context_tokens=context_tokens,
        seconds=answer.seconds,
        unlocks=answer.unlocks,
    )
