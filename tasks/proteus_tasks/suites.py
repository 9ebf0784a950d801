"""Frozen suites: a TOML file fixes tasks, lengths, item count and the hashes of the items. A suite file is hostile input.

Suites of other distributions lie in their plugins' folders; a caller that knows those gives `folders` and `tasks`.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import TASKS, Task
from .errors import SuiteError, nearest
from .haystack import SPLITS
from .resources import suites_dir
from .tokenizers import Tokenizer

MAX_BYTES = 256 * 2**10
MAX_LENGTH = 2**22
MAX_ITEMS = 100_000
MAX_LENGTHS = 64
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[A-Za-z0-9+_.-]{1,100}")
_KEYS: dict[str, type] = {
    "id": str, "version": str, "description": str, "data_seed": int, "split": str, "length": int, "lengths": list,
    "n": int, "tasks": list, "hashes": dict,
}  # fmt: skip
_OPTIONAL = ("length", "lengths", "hashes")


@dataclass(frozen=True)
class Suite:
    """`n` items of every task at each of `lengths` tokens; `sha256` is of the file.

    `hashes[fingerprint][hash_key(task, length)]` = `task_hash`: keys are task ids, and `task@length` with several lengths.
    """

    id: str
    version: str
    description: str
    data_seed: int
    split: str
    lengths: tuple[int, ...]
    n: int
    tasks: tuple[str, ...]
    hashes: Mapping[str, Mapping[str, str]]
    sha256: str

    def cells(self) -> tuple[tuple[str, int, int], ...]:
        """(task id, length, item count) of each cell, tasks first."""
        return tuple((task, length, self.n) for length in self.lengths for task in self.tasks)

    @property
    def length(self) -> int:
        """The longest length, in tokens."""
        return max(self.lengths)

    def hash_key(self, task: str, length: int) -> str:
        """Under which name the hash of a cell stands in `hashes`."""
        return task if len(self.lengths) == 1 else f"{task}@{length}"

    def hash_keys(self) -> tuple[str, ...]:
        """All of them, in the order of `cells`."""
        return tuple(self.hash_key(task, length) for task, length, _ in self.cells())


def task_hash(
    suite: Suite,
    task: str,
    tokenizer: Tokenizer,
    length: int | None = None,
    tasks: Mapping[str, Task] = TASKS,
) -> str:
    """sha256 over the item hashes of one task at one length (the longest when None) in index order, one a line."""
    digest = hashlib.sha256()
    items = tasks[task].items(
        suite.n,
        length=suite.length if length is None else length,
        tokenizer=tokenizer,
        data_seed=suite.data_seed,
        split=suite.split,
    )
    for item in items:
        digest.update(item.sha256.encode("ascii") + b"\n")
    return digest.hexdigest()


def list_suites(folders: Sequence[Path] | None = None, tasks: Mapping[str, Task] = TASKS) -> tuple[str, ...]:
    """Names of the suites in `folders` (of the shipped ones when None), shortest length first."""
    return tuple(sorted(suite_files(folders), key=lambda name: (load_suite(name, folders, tasks).length, name)))


def suite_files(folders: Sequence[Path] | None) -> dict[str, Path]:
    """Suite files by name. The first folder wins, so that nobody replaces a shipped suite."""
    found: dict[str, Path] = {}
    for folder in folders if folders is not None else (suites_dir(),):
        for path in sorted(folder.glob("*.toml")):
            if _NAME.fullmatch(path.stem):
                found.setdefault(path.stem, path)
    return found


def load_suite(
    name_or_path: str | Path,
    folders: Sequence[Path] | None = None,
    tasks: Mapping[str, Task] = TASKS,
    texts: Mapping[str, str] | None = None,
) -> Suite:
    """A suite of `folders` by name, or any suite file by path (a Path, or text with a slash or ending in .toml).

    `tasks`: those that a suite may list; `texts`: suite files by name that lie in no folder. SuiteError with exit_code 2 for
    an unknown name or a missing file, 3 for an invalid file.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".toml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise SuiteError(f"no suite file {text[:200]}", exit_code=2)
        return parse_suite(_read(path), path.name, tasks)
    known, more = suite_files(folders), texts or {}
    if text in known:
        suite = parse_suite(_read(known[text]), f"{text}.toml", tasks)
    elif text in more and len(more[text]) <= MAX_BYTES:
        suite = parse_suite(more[text].encode("utf-8"), f"{text}.toml", tasks)
    else:
        names = sorted({*known, *more})
        raise SuiteError(f"unknown suite '{text[:64]}'{nearest(text, names)}; known: {', '.join(names)}", 2)
    if suite.id != text:
        raise SuiteError(f"suite {text}.toml: calls itself '{suite.id[:64]}'")
    return suite


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"suite {path.name}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise SuiteError(f"suite {path.name}: larger than {MAX_BYTES // 1024} KiB")
    return data


def parse_suite(data: bytes, source: str, known: Mapping[str, Task] = TASKS) -> Suite:
    """A suite from the bytes of its file; SuiteError (exit code 3) that names `source` when anything is wrong."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors are ValueErrors
        raise SuiteError(f"suite {source}: not valid TOML ({str(error)[:200]})") from error
    _check_keys(table, source)
    tasks = _tasks(table["tasks"], source, known)
    suite = Suite(
        id=table["id"],
        version=table["version"],
        description=table["description"],
        data_seed=_within(table, "data_seed", 0, 2**63 - 1, source),
        split=table["split"],
        lengths=_lengths(table, source),
        n=_within(table, "n", 1, MAX_ITEMS, source),
        tasks=tasks,
        hashes={},
        sha256=hashlib.sha256(data).hexdigest(),
    )
    suite = replace(suite, hashes=_hashes(table.get("hashes", {}), suite.hash_keys(), source))
    if _NAME.fullmatch(suite.id) is None:
        raise SuiteError(f"suite {source}: id must be lower-case letters, digits, - and _ (at most 64)")
    if suite.split not in SPLITS:
        raise SuiteError(f"suite {source}: unknown split '{suite.split[:64]}'{nearest(suite.split, SPLITS)}")
    return suite


def _check_keys(table: dict[str, Any], source: str) -> None:
    for key, value in table.items():
        if key not in _KEYS:
            raise SuiteError(f"suite {source}: unknown key '{key[:64]}'{nearest(key, _KEYS)}")
        if type(value) is not _KEYS[key]:  # bool is an int, and must not pass for one
            raise SuiteError(f"suite {source}: '{key}' must be of type {_KEYS[key].__name__}")
    missing = [key for key in _KEYS if key not in table and key not in _OPTIONAL]
    if "length" not in table and "lengths" not in table:
        missing.append("length")
    if missing:
        raise SuiteError(f"suite {source}: missing {', '.join(missing)}")


def _lengths(table: dict[str, Any], source: str) -> tuple[int, ...]:
    if "lengths" not in table:
        return (_within(table, "length", 1, MAX_LENGTH, source),)
    listed = table["lengths"]
    if "length" in table or not 2 <= len(listed) <= MAX_LENGTHS:
        raise SuiteError(f"suite {source}: give 'length', or 'lengths' with 2..{MAX_LENGTHS} of them")
    if any(type(length) is not int or not 1 <= length <= MAX_LENGTH for length in listed):
        raise SuiteError(f"suite {source}: 'lengths' must be whole numbers in 1..{MAX_LENGTH}")
    if sorted(set(listed)) != listed:
        raise SuiteError(f"suite {source}: 'lengths' must rise")
    return tuple(listed)


def _within(table: dict[str, Any], key: str, low: int, high: int, source: str) -> int:
    if not low <= table[key] <= high:
        raise SuiteError(f"suite {source}: '{key}' must be in {low}..{high}")
    return int(table[key])


def _tasks(listed: list[Any], source: str, known: Mapping[str, Task]) -> tuple[str, ...]:
    if not listed:
        raise SuiteError(f"suite {source}: no tasks")
    for task in listed:
        if not isinstance(task, str) or task not in known:
            raise SuiteError(f"suite {source}: unknown task '{str(task)[:64]}'{nearest(str(task), known)}")
    if len(set(listed)) != len(listed):
        raise SuiteError(f"suite {source}: a task stands twice")
    return tuple(listed)


def _hashes(table: dict[str, Any], keys: tuple[str, ...], source: str) -> dict[str, dict[str, str]]:
    for fingerprint, row in table.items():
        if _FINGERPRINT.fullmatch(fingerprint) is None or not isinstance(row, dict):
            raise SuiteError(f"suite {source}: [hashes] holds one table per tokenizer fingerprint")
        if set(row) != set(keys):
            raise SuiteError(f"suite {source}: hashes of '{fingerprint[:16]}' are not those of the suite's tasks")
        if not all(isinstance(value, str) and _HASH.fullmatch(value) for value in row.values()):
            raise SuiteError(f"suite {source}: a hash of '{fingerprint[:16]}' is not 64 hexadecimal digits")
    return {fingerprint: dict(row) for fingerprint, row in table.items()}
