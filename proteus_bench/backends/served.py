"""Engines that batch by themselves, here or behind an address: every question is a whole prompt, answered and scored apart.

The answer is the greedy continuation of the prompt; the gold's log-probability is read from the prompt and the gold sent
together. What the questions of one context have in common is the engine's business (prefix caching).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from proteus_bench.backends.base import Answer, AskIds, Ids
from proteus_bench.backends.prompted import PromptedBackend
from proteus_bench.errors import EnvironmentFault, UsageError

Prompt = tuple[list[int], AskIds]  # every token before the answer, and the question it belongs to
Gold = tuple[float | None, bool | None]  # nats of the whole gold, whether each of its tokens is the likeliest


class ServedBackend(PromptedBackend):
    """Mixin: `answer` by ``generate`` and ``score``. ``scores``: whether the engine tells log-probabilities of a prompt."""

    batch_items = 64
    """Contexts that the runner hands over together; the engine decides what runs together."""
    scores = True

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The greedy continuations, max_new_tokens at most. They may go on behind a stop token."""
        raise NotImplementedError

    def score(self, prompts: Sequence[Prompt]) -> list[Gold]:
        """The golds behind their prompts."""
        raise NotImplementedError

    @property
    def window_limit(self) -> int | None:
        limit = self.info.max_length
        return None if limit is None else limit - 2  # the token before the window, and one that engines must generate

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        prompts = [
            ([int(i) for i in (*context, *ask.prompt_ids)], ask)
            for context, asks in zip(contexts, questions, strict=True)
            for ask in asks
        ]
        self._check(prompts)
        begun = time.perf_counter()
        asked = [prompt for prompt in prompts if prompt[1].max_new_tokens > 0]
        texts = iter(self.generate(asked) if asked else [])
        golds = self.score(prompts) if self.scores else [(None, None)] * len(prompts)
        each = (time.perf_counter() - begun) / max(1, len(prompts))
        answers = iter(
            Answer(_cut(next(texts), ask) if ask.max_new_tokens else [], logprob, each, None, greedy)
            for (_, ask), (logprob, greedy) in zip(prompts, golds, strict=True)
        )
        return [[next(answers) for _ in asks] for asks in questions]

    def _check(self, prompts: Sequence[Prompt]) -> None:
        limit, model = self.info.max_length, self.info.model
        longest = max((len(ids) + max(ask.max_new_tokens, len(ask.gold_ids) + 1) for ids, ask in prompts), default=0)
        if limit is not None and longest > limit:
            raise UsageError(f"{model} is served with at most {limit} tokens; {longest} are needed here: raise max_model_len")
        if not self.scores and any(ask.max_new_tokens == 0 for _, ask in prompts):
            raise EnvironmentFault(f"{model} gives no log-probabilities of a prompt, and this task asks for nothing else")


def _cut(ids: Sequence[int], ask: AskIds) -> list[int]:
    """What stands before the first stop token."""
    return list(ids[: next((i for i, token in enumerate(ids) if token in ask.stop_ids), len(ids))])
