"""A back end that reads whole prompts through the tokenizer of a transformers folder: what `hf`, `vllm` and servers share.

The prompt is encoded as one text, as other harnesses do, and the gold is what it adds to it. Such a back end answers on token
ids: contexts are what the prompts of one context have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from proteus_bench.backends.base import Answer, Ask, AskIds, BackendInfo, Ids, Reply
from proteus_bench.backends.encoding import continuation_ids
from proteus_bench.backends.tokens import ends_of, reply_of

if TYPE_CHECKING:
    from proteus_bench.backends.hf_tokenizer import HFTokenizer


class PromptedBackend:
    """Mixin: `reply` by ``answer``. The constructor sets ``info``, ``_tokenizer`` and ``_ends``, tokens that end any text."""

    info: BackendInfo
    _tokenizer: HFTokenizer
    _ends: frozenset[int]

    @property
    def tokenizer(self) -> Any:
        """The folder's own, in the form that suites need."""
        return self._tokenizer

    @property
    def window_limit(self) -> int | None:
        """How many tokens of a document are read at once, besides the one before them."""
        return self.info.max_length

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """See `tokens.TokenBackend.answer`."""
        raise NotImplementedError

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """See `base.Backend.reply`. A document longer than the model's context is read in windows."""
        rows: list[list[int]] = []
        asked: list[list[AskIds]] = []
        places: list[list[list[tuple[int, int]]]] = []  # by context and question: where its answers will stand
        for context, asks in zip(contexts, questions, strict=True):
            prompts = [self._tokenizer.prompt_ids(context, ask.text, ask.answer_prefix) for ask in asks]
            shared = _shared([prompt for prompt in prompts if prompt])
            rows.append(shared)
            asked.append([])
            places.append([])
            home = len(rows) - 1
            for ask, prompt in zip(asks, prompts, strict=True):
                if prompt:
                    places[-1].append([(home, len(asked[home]))])
                    asked[home].append(self._ask_ids(context, ask, prompt[len(shared) :]))
                    continue
                places[-1].append([])
                for before, window in self._document(ask.gold):
                    places[-1][-1].append((len(rows), 0))
                    rows.append(before[:-1])
                    asked.append([AskIds(before[-1:], window, 0)])
        answers = self.answer(rows, asked)
        lengths = [max(1, len(self._tokenizer.encode(context))) for context in contexts]
        return [
            [
                _joined(self._tokenizer, ask, [(asked[r][c], answers[r][c]) for r, c in parts], length)
                for ask, parts in zip(asks, of_context, strict=True)
            ]
            for asks, of_context, length in zip(questions, places, lengths, strict=True)
        ]

    def _ask_ids(self, context: str, ask: Ask, prompt_ids: list[int]) -> AskIds:
        tokenizer = self._tokenizer
        gold_ids = continuation_ids(tokenizer, *tokenizer.seam(context, ask.text, ask.answer_prefix, ask.gold))
        stops = ends_of(tokenizer, ask) | self._ends
        return AskIds(prompt_ids, gold_ids, ask.max_new_tokens, stops)

    def _document(self, text: str) -> list[tuple[list[int], list[int]]]:
        """(what stands before, tokens) of the windows of a document behind the begin token."""
        return windows(self._tokenizer.begin_id, self._tokenizer.encode(text), self.window_limit)


def _shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """What all prompts begin with, less so much that something is left of each."""
    if not prompts:
        return []
    size = min(map(len, prompts)) - 1
    first = list(prompts[0])
    for other in prompts[1:]:
        size = next((i for i in range(size) if first[i] != other[i]), size)
    return first[:size]


def windows(begin_id: int, ids: list[int], limit: int | None) -> list[tuple[list[int], list[int]]]:
    """A document in parts that a model of ``limit`` tokens can read: (tokens before, tokens to predict), each token once.

    The rolling windows of lm-eval: a part has as many tokens as fit behind one token before it; the last one is given as
    much before it as fits.
    """
    if limit is None or len(ids) <= limit:
        return [([begin_id], ids)]
    parts = [([begin_id], ids[:limit])]
    for start in range(limit, len(ids), limit):
        end = min(start + limit, len(ids))
        parts.append((ids[end - limit - 1 : start], ids[start:end]))
    return parts


def _joined(tokenizer: Any, ask: Ask, parts: list[tuple[AskIds, Answer]], context_tokens: int) -> Reply:
    """One reply of the windows of a document; of one answer otherwise."""
    ids = replace(parts[0][0], gold_ids=[token for part, _ in parts for token in part.gold_ids])
    logprobs = [answer.gold_logprob for _, answer in parts]
    answer = replace(
        parts[0][1],
        gold_logprob=None if None in logprobs else sum(value for value in logprobs if value is not None),
        seconds=sum(answer.seconds for _, answer in parts),
        gold_is_greedy=None if None in logprobs else all(answer.gold_is_greedy for _, answer in parts),
    )
    return reply_of(tokenizer, ask, ids, answer, context_tokens)
