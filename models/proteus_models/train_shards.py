"""Token shards: documents of a text source as flat files of token ids with hashes, written once, read by memory map.

A folder holds `shard-00000.bin` .. (little-endian uint16, or uint32 for vocabularies over 65,536), a JSON file beside each,
`tokenizer.json`, and `shards.json`, which names all of them with their sha256 and is written last: a folder with it is whole.
Every document is closed by the end token, which stands nowhere else. Shards end with a document, so a broken-off writing
skips the documents that are in whole shards and goes on: the same bytes as an unbroken one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from proteus_bench.errors import EnvironmentFault, InvalidFileError, UsageError
from proteus_models.checkpoint import read_json, sha256_file
from proteus_models.tokenizer import MicroTokenizer
from proteus_models.train_state import write_json

MANIFEST = "shards.json"
BATCH = 512
"""Documents that are tokenized at a time."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """`stop`: documents of the source up to the end of this shard."""

    file: str
    tokens: int
    documents: int
    stop: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    source: str
    tokenizer_sha256: str
    vocab_size: int
    end: int
    dtype: str
    shard_tokens: int
    shards: tuple[Shard, ...]

    @property
    def tokens(self) -> int:
        return sum(s.tokens for s in self.shards)


@dataclass(frozen=True, kw_only=True)
class TextSource:
    """Documents: text or JSON-lines files of this machine, or a data set of the `datasets` library, streamed.

    `name` with `files` is a loader of that library (json, text, parquet) on local files.
    """

    files: tuple[str, ...] = ()
    name: str = ""
    subset: str | None = None
    split: str = "train"
    field: str = "text"

    @property
    def label(self) -> str:
        parts = [self.name, self.subset or "", self.split] if self.name else []
        return " ".join([*(p for p in parts if p), *(Path(f).name for f in self.files)])

    def documents(self, start: int) -> Iterator[str]:
        """From the document at 0-based `start` on. InvalidFileError, EnvironmentFault: what cannot be read."""
        if self.name:
            return self._streamed(start)
        return islice((text for file in self.files for text in self._read(Path(file))), start, None)

    def _read(self, path: Path) -> Iterator[str]:
        """A .jsonl file's `field`, line by line; any other file is one document."""
        try:
            if path.suffix != ".jsonl":
                yield path.read_text("utf-8")
                return
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    yield self._text(json.loads(line), f"{path}:{number}")
        except OSError as error:
            raise InvalidFileError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise InvalidFileError(f"{path}: not the text that was expected ({error})") from error

    def _streamed(self, start: int) -> Iterator[str]:
        try:
            import datasets
        except ImportError as error:
            raise EnvironmentFault("streaming a data set needs the extra: pip install 'proteus-bench[train]'") from error
        more: dict[str, Any] = {"data_files": list(self.files)} if self.files else {}
        try:
            rows = datasets.load_dataset(self.name, self.subset, split=self.split, streaming=True, **more)
        except Exception as error:  # the library raises its own, the hub's and the network's kinds
            raise EnvironmentFault(f"cannot stream {self.label}: {error}") from error
        for number, row in enumerate(rows.skip(start), start):
            yield self._text(row, f"{self.label}, row {number}")

    def _text(self, row: Any, where: str) -> str:
        text = row.get(self.field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            raise InvalidFileError(f"{where}: no text in field {self.field!r}")
        return text


def write_shards(
    source: TextSource, tokenizer_file: Path, end_token: str, folder: Path, *, shard_tokens: int, tokens: int | None = None,
    report: Callable[[dict[str, Any]], None] = lambda _: None,
) -> Manifest:  # fmt: skip
    """Tokenize `source` into `folder` until it or `tokens` ends, and return the manifest. Repeating the call resumes.

    UsageError: an end token that the tokenizer lacks; a folder that other shards lie in.
    """
    tokenizer = open_tokenizer(tokenizer_file)
    try:
        end = tokenizer.id(end_token)
    except KeyError as error:
        raise UsageError(f"the tokenizer has no token {end_token!r}: name its end-of-text token") from error
    folder.mkdir(parents=True, exist_ok=True)
    head = {
        "source": source.label, "tokenizer_sha256": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "end": end,
        "dtype": "<u2" if tokenizer.vocab_size <= 2**16 else "<u4", "shard_tokens": shard_tokens,
    }  # fmt: skip
    done = _begun(folder, head)
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    start = done[-1].stop if done else 0
    pieces = _tokenized(source.documents(start), tokenizer, end)
    while tokens is None or sum(s.tokens for s in done) < tokens:
        shard = _write_one(folder, len(done), pieces, head, done[-1].stop if done else 0)
        if shard is None:
            break
        done.append(shard)
        report({**asdict(shard), "total_tokens": sum(s.tokens for s in done)})
    if not done:
        raise InvalidFileError(f"{source.label}: no documents")
    made = Manifest(shards=tuple(done), **head)  # type: ignore[arg-type]
    write_json(folder / MANIFEST, asdict(made))
    return made


def open_tokenizer(path: Path) -> MicroTokenizer:
    try:
        return MicroTokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exceptions
        raise InvalidFileError(f"{path}: not a tokenizer file ({error})") from error


def _begun(folder: Path, head: dict[str, Any]) -> list[Shard]:
    """The whole shards that an earlier call with the same head has left."""
    started = folder / "begun.json"
    shards: list[Shard] = []
    if started.exists() and read_json(started) != head:
        raise UsageError(f"{folder} holds shards of another source, tokenizer or size: choose another folder")
    write_json(started, head)
    while (beside := folder / f"shard-{len(shards):05d}.json").exists():
        shards.append(Shard(**read_json(beside)))
    return shards


def _tokenized(documents: Iterable[str], tokenizer: MicroTokenizer, end: int) -> Iterator[np.ndarray]:
    """The ids of each document and the end token."""
    documents = iter(documents)
    while batch := list(islice(documents, BATCH)):
        for ids in tokenizer.encode_batch(batch):
            own = np.asarray(ids, np.int64)
            yield np.append(own[own != end], end)


def _write_one(
    folder: Path, number: int, pieces: Iterator[np.ndarray], head: dict[str, Any], before: int
) -> Shard | None:
    """The next shard, whole with the JSON beside it; None when there is nothing left."""
    name = f"shard-{number:05d}.bin"
    digest, tokens, documents = hashlib.sha256(), 0, 0
    temporary = folder / "shard.tmp"
    with temporary.open("wb") as f:
        for ids in pieces:
            data = ids.astype(head["dtype"]).tobytes()
            f.write(data)
            digest.update(data)
            tokens, documents = tokens + len(ids), documents + 1
            if tokens >= head["shard_tokens"]:
                break
        f.flush()
        os.fsync(f.fileno())
    if not documents:
        temporary.unlink()
        return None
    os.replace(temporary, folder / name)
    shard = Shard(file=name, tokens=tokens, documents=documents, stop=before + documents, sha256=digest.hexdigest())
    write_json(folder / f"shard-{number:05d}.json", asdict(shard))
    return shard


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a whole folder; InvalidFileError for anything else. Sizes are checked, contents by `verify`."""
    raw = read_json(folder / MANIFEST)
    try:
        made = Manifest(**{**raw, "shards": tuple(Shard(**s) for s in raw["shards"])})
        width = np.dtype(made.dtype).itemsize
    except (TypeError, KeyError) as error:
        raise InvalidFileError(f"{folder / MANIFEST}: {error}") from error
    for shard in made.shards:
        path = folder / shard.file
        if Path(shard.file).name != shard.file or not path.is_file() or path.stat().st_size != width * shard.tokens:
            raise InvalidFileError(f"{path}: missing, or not of the size that {MANIFEST} says")
    return made


def verify(folder: Path) -> Manifest:
    """`read_manifest`, with every hash computed. InvalidFileError names the first file that differs."""
    made = read_manifest(folder)
    for shard in made.shards:
        if sha256_file(folder / shard.file) != shard.sha256:
            raise InvalidFileError(f"{folder / shard.file}: its sha256 is not the one in {MANIFEST}")
    return made
