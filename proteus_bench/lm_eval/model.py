"""Any of our back ends as an lm-eval model: `--model proteus --model_args model=gdn+proteus,seed=0`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from proteus_bench.backends import Ask, Backend, Reply, Settings, opened
from proteus_bench.errors import UsageError

DEFAULT_BATCH = 8
MAX_NEW_TOKENS = 256
"""What lm-eval's models generate where a task names no limit."""


class ProteusLM(LM):
    """Answers are those of `proteus-bench run`: no pad enters a state, and requests with one context read it once.

    model: as for ``--model`` of proteus-bench; seed: which trained checkpoint. batch_size: contexts that are read together;
    an answer does not depend on it beyond rounding. Sampling is refused: decoding is greedy. UsageError for a model that
    is not known, as in the command line.
    """

    def __init__(
        self,
        model: str | Backend,
        seed: int | str = 0,
        batch_size: int | str | None = None,
        device: str | None = None,
        dtype: str = "auto",
        train_length: int | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(model, str):
            from proteus_bench.runner.models import parse

            where = "cpu" if str(device).startswith("cpu") else "auto"  # lm-eval says cuda:0 where nobody asked
            self.backend = opened(parse(model), int(seed), Settings(where, dtype, False, train_length))
        else:
            self.backend = model
        size = str(batch_size or DEFAULT_BATCH).partition(":")[0]
        self.batch_size = int(size) if size.isdigit() else DEFAULT_BATCH

    @property
    def max_length(self) -> int | None:
        """Tokens of context, None for a fixed state."""
        return self.backend.info.max_length

    @property
    def tokenizer_name(self) -> str:
        """The fingerprint of the tokenizer: what lm-eval's cache of requests may depend on."""
        return self.backend.info.tokenizer_sha256

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation as the folder's tokenizer writes it. UsageError for a model that has no template."""
        whole = getattr(self.backend.tokenizer, "whole", None)
        if whole is None or not whole.chat_template:
            raise UsageError(f"{self.backend.info.model} has no chat template")
        mode = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return str(whole.apply_chat_template(chat_history, tokenize=False, **mode))

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability in nats, whether it is the greedy continuation) of each (context, continuation)."""
        replies = self._ask([_pair(*args) for args in _args(requests)])
        return [(self._nats(reply), bool(reply.gold_is_greedy)) for reply in replies]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each whole text behind the begin token, in windows where the model has a limit."""
        replies = self._ask([("", Ask("", "", text, 0)) for (text,) in _args(requests)])
        return [self._nats(reply) for reply in replies]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations up to the strings in ``until``, at most ``max_gen_toks`` tokens."""
        return [reply.output for reply in self._ask([_generation(*args) for args in _args(requests)])]

    def _nats(self, reply: Reply) -> float:
        if reply.gold_logprob is None:
            raise UsageError(f"{self.backend.info.model} gives no log-probabilities of a text")
        return reply.gold_logprob

    def _ask(self, pairs: Sequence[tuple[str, Ask]]) -> list[Reply]:
        """Replies in order. Equal contexts are asked as one; contexts of about one length are read together."""
        by_context: dict[str, list[int]] = defaultdict(list)
        documents = []
        for index, (context, ask) in enumerate(pairs):
            if context + ask.text:
                by_context[context].append(index)
            else:
                documents.append(("", [index]))
        groups = sorted(by_context.items(), key=lambda group: len(group[0])) + documents
        found: dict[int, Reply] = {}
        for start in range(0, len(groups), self.batch_size):
            part = groups[start : start + self.batch_size]
            rows = self.backend.reply([context for context, _ in part], [[pairs[i][1] for i in members] for _, members in part])
            for (_, members), replies in zip(part, rows, strict=True):
                found.update(zip(members, replies, strict=True))
        return [found[index] for index in range(len(pairs))]


def _args(requests: Sequence[Instance]) -> list[Any]:
    return [request.args for request in requests]


def _pair(context: str, continuation: str) -> tuple[str, Ask]:
    """Spaces at a context's end belong to the continuation, as in lm-eval's own models."""
    bare = context.rstrip()
    return bare, Ask("", "", context[len(bare) :] + continuation, 0)


def _generation(context: str, settings: dict[str, Any]) -> tuple[str, Ask]:
    """Any gold will do: only the text is read. UsageError for sampling."""
    if settings.get("do_sample") or float(settings.get("temperature") or 0) > 0:
        raise UsageError("proteus-bench decodes greedily: a task that samples cannot be run")
    until = settings.get("until") or []
    stops = (until,) if isinstance(until, str) else tuple(stop for stop in until if stop)
    limit = int(settings.get("max_gen_toks") or settings.get("max_new_tokens") or MAX_NEW_TOKENS)
    return context, Ask("", "", " .", limit, stop="none", until=stops)
