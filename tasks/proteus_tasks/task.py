"""What a task is to the rest of the program: this protocol, and nothing about needles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .item import Item
from .tokenizers import Tokenizer


class Task(Protocol):
    """A source of items, each a pure function of (id@version, length, tokenizer fingerprint, data seed, split, index, depth)."""

    @property
    def id(self) -> str: ...

    @property
    def version(self) -> int: ...

    def item(
        self,
        index: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Item:
        """Item `index` at `length` tokens; LengthBudgetError when that is too short, TaskError for a bad argument."""
        ...

    def items(
        self,
        n: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Iterator[Item]:
        """Items 0..n-1."""
        ...
