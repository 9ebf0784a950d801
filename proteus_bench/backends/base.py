"""What the runner needs from whatever answers: texts in; a greedy answer and the log-probability of the right one out.

A back end is a class whose constructor takes ``(spec: ModelSpec, seed: int, settings: Settings)`` and which stands in
`backends.SOURCES` under its source (the part before the colon of ``hf:PATH``). It provides

``info``       BackendInfo. ``backend`` is the source; ``settings`` holds what else decides its numbers (chat mode, engine and
               its version), and becomes part of the record's identity. ``sha256`` addresses the weights (of a server that
               shows none: the hash of what it says about itself). ``max_length`` is its context in tokens, prompt and answer
               together: a suite with longer items is refused before any work. ``train_length`` is required: see
               `external.train_length_of`. Models outside the zoo have capacity ``Capacity.static()`` and state_bytes 0.
``tokenizer``  with `encode`, `decode`, `vocab_size`, `fingerprint`: the suite's items are fitted to it. Its `special_tokens`
               (begin mark, chat template) count towards an item's length.
``reply``      see `Backend.reply`. One that works on token ids inherits `tokens.TokenBackend` and writes ``answer``;
               one that works on texts writes ``reply`` (`encoding.cut_at_stop`, `encoding.continuation_ids` help).
``close``      optional: free engine or connection; called before another model outside the zoo is opened.

Heavy imports stand inside functions. Bad input is a BenchError of one line: UsageError (2), InvalidFileError (3),
EnvironmentFault (4; a missing extra, a server that does not answer). The constructor raises it, so that it surfaces
while the run is planned. A back end outside the zoo runs in one process unless `--workers` says otherwise, and is opened once:
`backends.opened` keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Ids = Sequence[int] | np.ndarray
"""Token ids, as a list or an integer array ``[T]``."""


@dataclass(frozen=True)
class Settings:
    """How to open a model, from the run's flags. Plain values: they travel to worker processes.

    device: auto (CUDA where there is one, except for the zoo), cpu, cuda. dtype: auto, float32, bfloat16, float16. chat: the
    prompt becomes a user's turn and the answer prefix begins the assistant's. train_length: tokens, where the model does
    not say. tokenizer: the folder of a server's tokenizer. engine: key=value options of the engine that runs the model.
    """

    device: str = "auto"
    dtype: str = "auto"
    chat: bool = False
    train_length: int | None = None
    tokenizer: str | None = None
    engine: tuple[str, ...] = ()


DEFAULT = Settings()


@dataclass(frozen=True)
class Ask:
    """One question in text. The prompt is context + text + answer_prefix; ``gold`` continues it, with its leading space.

    stop: the rule of `encoding.STOP_SIGNS` that ends an answer. until: strings that end it besides; not None lets the model's
    own end token end it too (outside the zoo it always does). max_new_tokens 0: only the log-probability is wanted. Where
    context and prompt are empty, the gold is a whole document and follows the begin token; where only the question is
    empty, the gold follows the context.
    """

    text: str
    answer_prefix: str
    gold: str
    max_new_tokens: int
    stop: str = "sentence"
    until: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to an Ask. output: greedy text before the stop; gold_logprob: nats of the whole gold, None from a server that
    gives no log-probabilities of a prompt.

    gold_tokens, context_tokens: how many tokens gold and context are. seconds, unlocks: as in Answer. gold_is_greedy: whether
    each token of the gold is the likeliest; None where the model does not say.
    """

    output: str
    output_ids: list[int]
    gold_logprob: float | None
    gold_tokens: int
    context_tokens: int
    seconds: float
    unlocks: tuple[int, ...] | None = None
    gold_is_greedy: bool | None = None


@dataclass(frozen=True)
class AskIds:
    """One question about a context. The prompt follows the context; ``gold_ids`` is the right continuation.

    stop_ids: tokens that end the answer; the stop token itself is not part of it.
    """

    prompt_ids: Sequence[int]
    gold_ids: Sequence[int]
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Answer:
    """Greedy continuation, log-probability (nats) of the whole gold continuation or None (see Reply), seconds spent (its share).

    unlocks: positions at which blocks opened while the context was read, where the data decided it. gold_is_greedy: as in Reply.
    """

    text_ids: list[int]
    gold_logprob: float | None
    seconds: float
    unlocks: tuple[int, ...] | None = None
    gold_is_greedy: bool | None = None


@dataclass(frozen=True)
class BackendInfo:
    """Who answers. Sizes in bytes and tokens; ``max_length`` None when the state is fixed; sha256 of the weights.

    recipe: how it was trained, verbatim from its card. capacity: every choice of the evaluated capacity, plain values.
    backend: the source it was opened by ("local": the zoo). settings: what else decides its numbers, for the identity.
    """

    model: str
    schedule: str
    size: str
    seed: int
    n_params: int
    state_bytes: int
    train_length: int
    max_length: int | None
    dtype: str
    device: str
    sha256: str
    config_sha256: str
    tokenizer_sha256: str
    memory: str
    trained_schedule: str
    capacity: dict[str, Any]
    config: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    backend: str = "local"
    settings: dict[str, Any] = field(default_factory=dict)


class Tokenizer(Protocol):
    """Text to ids and back. ``fingerprint`` is the sha256 of the tokenizer's definition."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class Backend(Protocol):
    """Answers questions about contexts; ``questions[i]`` belong to ``contexts[i]``."""

    info: BackendInfo

    @property
    def tokenizer(self) -> Any: ...

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """Replies in the order of the questions. An answer must not depend on what else is in the call, beyond rounding."""
        ...
