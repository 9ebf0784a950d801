"""Haystacks: State of the Union addresses by split, the noise group, or any text file; all as tuples of sentences."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from . import niah_text
from .errors import DataFileError, TaskError, nearest
from .resources import data_dir

SPLITS = ("train", "tune", "test")
DATA_FILE = "sotu.jsonl.xz"
MAX_FILE_BYTES = 256 * 2**20
MAX_WORDS = 60
"""Sentences longer than this are left out: a haystack unit bounds how far an item may stay under its length."""
MAX_START_WORDS = 20
"""A haystack starts at a sentence of at most this many words, so that the shortest items of a task all fit."""
_TO_ASCII = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "‑": "-", "•": " ", "°": " degrees",
     "ó": "o", "ï": "i", "á": "a", "é": "e"}
)  # fmt: skip
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Za-z]|Mr|Mrs|Ms|Dr|Gen|Col|Capt|Lieut|Lt|Gov|Sen|Rep|Hon|Jr|Sr|St|No|Nos|Vol|Art|Sec|Messrs|viz|vs|"
    r"Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec|etc|cf|Co|Inc|[Ii]\.e|e\.g|U\.S|D\.C)\.[\"')]*$"
)
_BOUNDARY = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")
_LONG_NUMBER = re.compile(r"\d{7}")


@dataclass(frozen=True)
class Document:
    """One address: `text` is plain ASCII, white space collapsed."""

    year: int
    president: str
    text: str


@dataclass(frozen=True)
class Haystack:
    """Units in reading order. `documents[i]` = (first, one past last) unit of a document; `starts` = where a run may begin."""

    name: str
    units: tuple[str, ...]
    documents: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    sha256: str


def clean(text: str) -> str:
    """Plain ASCII with single spaces: typographic marks become their ASCII forms, anything else non-ASCII is dropped."""
    ascii_text = text.translate(_TO_ASCII).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[\s\x00-\x1f\x7f]+", " ", ascii_text).strip()


def split_of_year(year: int) -> str:
    """The split of a document: the last digit of its year, 0-6 train, 7 tune, 8-9 test."""
    digit = year % 10
    return "train" if digit < 7 else "tune" if digit == 7 else "test"


def check_split(split: str) -> str:
    """`split` itself, or TaskError with the nearest known name."""
    if split not in SPLITS:
        raise TaskError(f"unknown split '{split}'{nearest(split, SPLITS)}; known: {', '.join(SPLITS)}")
    return split


def split_sentences(text: str) -> list[str]:
    """Sentences of collapsed text: cut after . ! ? before a capital or a digit, not after an abbreviation or an initial."""
    sentences, start = [], 0
    for match in _BOUNDARY.finditer(text):
        candidate = text[start : match.end()].rstrip()
        if _ABBREVIATION.search(candidate):
            continue
        sentences.append(candidate)
        start = match.end()
    rest = text[start:].strip()
    return [*sentences, rest] if rest else sentences


def usable(sentence: str) -> bool:
    """Whether a sentence may stand in a haystack: it ends as a sentence, is not too long, and cannot pass for a needle."""
    return (
        sentence.endswith((".", "!", "?", '."', '!"', '?"', ".)"))
        and len(sentence.split()) <= MAX_WORDS
        and niah_text.TEMPLATE_PHRASE not in sentence.lower()
        and _LONG_NUMBER.search(sentence) is None
    )


@lru_cache(maxsize=1)
def _all_documents() -> tuple[Document, ...]:
    path = data_dir() / DATA_FILE
    try:
        lines = lzma.decompress(path.read_bytes()).decode("ascii").splitlines()
        rows = [json.loads(line) for line in lines]
        return tuple(Document(int(row["year"]), str(row["president"]), str(row["text"])) for row in rows)
    except OSError as error:
        raise DataFileError(f"cannot read the shipped prose: {error}") from error
    except (lzma.LZMAError, ValueError, KeyError) as error:
        raise DataFileError(f"the shipped prose {path.name} is damaged: {error}") from error


@lru_cache(maxsize=len(SPLITS))
def documents(split: str) -> tuple[Document, ...]:
    """Addresses of one split, by year."""
    check_split(split)
    return tuple(document for document in _all_documents() if split_of_year(document.year) == split)


@lru_cache(maxsize=len(SPLITS))
def sotu(split: str) -> Haystack:
    """The default haystack of one split."""
    return _haystack(f"sotu-{split}", [document.text for document in documents(split)])


def sentences(split: str) -> tuple[str, ...]:
    """Usable sentences of one split in reading order."""
    return sotu(split).units


@lru_cache(maxsize=1)
def noise() -> Haystack:
    """The repeated group of single_1."""
    return _haystack("noise", [" ".join(niah_text.NOISE)])


@lru_cache(maxsize=4)
def from_file(path: str) -> Haystack:
    """Any text file as one document. Its sentences serve every split: the caller answers for what a model has seen."""
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise DataFileError(f"haystack {path}: larger than {MAX_FILE_BYTES // 2**20} MiB")
        text = clean(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise DataFileError(f"haystack {path}: {error.strerror or error}") from error
    return _haystack(f"file-{hashlib.sha256(text.encode()).hexdigest()[:16]}", [text])


def _haystack(name: str, texts: list[str]) -> Haystack:
    units: list[str] = []
    spans = []
    for text in texts:
        first = len(units)
        units += [sentence for sentence in split_sentences(text) if usable(sentence)]
        if len(units) > first:
            spans.append((first, len(units)))
    starts = tuple(i for i, unit in enumerate(units) if len(unit.split()) <= MAX_START_WORDS)
    if not starts:
        raise DataFileError(f"haystack {name}: no sentence of at most {MAX_START_WORDS} words to start from")
    digest = hashlib.sha256("\n".join(units).encode("utf-8")).hexdigest()
    return Haystack(name, tuple(units), tuple(spans), starts, digest)
