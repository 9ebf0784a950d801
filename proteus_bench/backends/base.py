"""What the runner needs from whatever answers: token ids in, token ids and a log-probability out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Ids = Sequence[int] | np.ndarray
"""Token ids, as a list or an integer array ``[T]``."""


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
    """Greedy continuation, log-probability (nats) of the whole gold continuation, seconds spent (its share).

    unlocks: positions at which blocks opened while the context was read, where the data decided it.
    """

    text_ids: list[int]
    gold_logprob: float
    seconds: float
    unlocks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class BackendInfo:
    """Who answers. Sizes in bytes and tokens; ``max_length`` None when the state is fixed; sha256 of the weights.

    recipe: how it was trained, verbatim from its card. capacity: every choice of the evaluated capacity, plain values.
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

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]: ...
