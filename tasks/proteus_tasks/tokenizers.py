"""Tokenizers as the tasks see them: `encode` and a fingerprint. Bytes, any callable, and `tokenizer.json` files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .errors import DataFileError, TaskError
from .resources import micro_tokenizer_path

_CROSSES = re.compile(r"[!-~][ \u0120\u2581]")
"""A space behind an ASCII character; byte-level and SentencePiece vocabularies write it as \u0120 and \u2581."""
MAX_FILE_BYTES = 64 * 2**20
BATCH = 1024
"""Texts that are encoded together when they are only counted."""


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids, without special tokens. `fingerprint` names the definition: equal fingerprints, equal ids.

    Optional: `special_tokens: int`, how many a model adds to a prompt; `count_batch(texts) -> list[int]` and `splits_at_spaces`
    (no token holds a space behind an ASCII character), for speed; `decode(ids) -> str`, which tasks that cut texts by tokens need.
    """

    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...


class ByteTokenizer:
    """One token for each UTF-8 byte."""

    fingerprint = "bytes"
    splits_at_spaces = True

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        return [len(text.encode("utf-8")) for text in texts]


@dataclass(frozen=True)
class CallableTokenizer:
    """Any `text -> ids` function. The caller names it: the fingerprint must change when the function does."""

    function: Callable[[str], Sequence[int]]
    fingerprint: str
    special_tokens: int = 0

    def encode(self, text: str) -> list[int]:
        return list(self.function(text))


class FileTokenizer:
    """A `tokenizers` object; its fingerprint is the sha256 of the library's serialised form."""

    def __init__(self, inner: Any, special_tokens: int = 0) -> None:
        self._inner = inner
        self.special_tokens = special_tokens
        digest = hashlib.sha256(inner.to_str().encode("utf-8")).hexdigest()
        self.fingerprint = digest if special_tokens == 0 else f"{digest}+{special_tokens}"

    @cached_property
    def splits_at_spaces(self) -> bool:
        """Whether no token of the vocabulary holds a space behind an ASCII character.

        Then no merge and no piece crosses into the next word, and the tokens of an ASCII text are those of its words.
        """
        return not any(_CROSSES.search(token) for token in self._inner.get_vocab(with_added_tokens=True))

    @classmethod
    def from_path(cls, path: Path, special_tokens: int = 0) -> FileTokenizer:
        """Read `tokenizer.json` or a folder that holds one; DataFileError when that fails."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                raise DataFileError(f"tokenizer {path}: larger than {MAX_FILE_BYTES // 2**20} MiB")
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataFileError(f"tokenizer {path}: {error}") from error
        try:
            from tokenizers import Tokenizer as Inner
        except ImportError as error:
            raise DataFileError(f"tokenizer {path}: needs the package 'tokenizers'") from error
        try:
            return cls(Inner.from_str(text), special_tokens)
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise DataFileError(f"tokenizer {path}: not a tokenizer.json ({error})") from error

    def encode(self, text: str) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=False))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        if len(texts) < 4 and sum(map(len, texts)) < 4000:  # a batch call costs more than it saves
            return [len(self._inner.encode(text, add_special_tokens=False)) for text in texts]
        counts: list[int] = []
        for start in range(0, len(texts), BATCH):  # encodings take hundreds of bytes a token until they are counted
            part = list(texts[start : start + BATCH])
            counts += [len(encoded) for encoded in self._inner.encode_batch_fast(part, add_special_tokens=False)]
        return counts


def resolve(name: str) -> Tokenizer:
    """`bytes`, `micro` (the shipped tokenizer), or the path of a tokenizer.json or of a folder with one."""
    if name == "bytes":
        return ByteTokenizer()
    if name == "micro":
        path = micro_tokenizer_path()
        if path is None:
            raise DataFileError("the micro tokenizer is not installed (models/zoo/tokenizer.json)")
        return FileTokenizer.from_path(path)
    if not Path(name).exists():
        raise TaskError(f"unknown tokenizer '{name}': give 'bytes', 'micro' or the path of a tokenizer.json")
    return FileTokenizer.from_path(Path(name))


def count(tokenizer: Tokenizer, text: str) -> int:
    """Tokens of one text."""
    return int(count_batch(tokenizer, [text])[0])


def count_batch(tokenizer: Tokenizer, texts: Sequence[str]) -> np.ndarray:
    """Tokens of each text, int64 [len(texts)]."""
    batched = getattr(tokenizer, "count_batch", None)
    counts = batched(texts) if batched is not None else [len(tokenizer.encode(text)) for text in texts]
    return np.asarray(counts, dtype=np.int64)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Ids to text; TaskError for a tokenizer that cannot."""
    decoder = getattr(tokenizer, "decode", None)
    if decoder is None:
        raise TaskError(f"tokenizer {tokenizer.fingerprint[:16]} has no decode: this task cuts texts by tokens")
    return str(decoder(list(ids)))


def special_tokens(tokenizer: Tokenizer) -> int:
    """How many special tokens (such as a begin mark) a model adds to a prompt: 0 unless the tokenizer says so."""
    return int(getattr(tokenizer, "special_tokens", 0))
