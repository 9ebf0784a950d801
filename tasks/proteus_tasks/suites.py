"""Frozen suites: a TOML file fixes tasks, length, item count and the hashes of the items. A suite file is hostile input."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import TASKS
from .errors import SuiteError, nearest
from .haystack import SPLITS
from .resources import suites_dir
from .tokenizers import Tokenizer

MAX_BYTES = 256 * 2**10
MAX_LENGTH = 2**22
MAX_ITEMS = 100_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_FINGERPRINT = re.compile(r"[A-Za-z0-9+_.-]{1,100}")
_KEYS: dict[str, type] = {
    "id": str, "version": str, "description": str, "data_seed": int, "split": str, "length": int, "n": int,
    "tasks": list, "hashes": dict,
}  # fmt: skip


@dataclass(frozen=True)
class Suite:
    """`n` items of every task at `length` tokens. `hashes[fingerprint][task]` = `task_hash`; `sha256` is of the file."""

    id: str
    version: str
    description: str
    data_seed: int
    split: str
    length: int
    n: int
    tasks: tuple[str, ...]
    hashes: Mapping[str, Mapping[str, str]]
    sha256: str

    def cells(self) -> tuple[tuple[str, int, int], ...]:
        """(task id, length, item count) of each cell."""
        return tuple((task, self.length, self.n) for task in self.tasks)


def task_hash(suite: Suite, task: str, tokenizer: Tokenizer) -> str:
    """sha256 over the item hashes of one task in index order, one a line."""
    digest = hashlib.sha256()
    items = TASKS[task].items(
        suite.n, length=suite.length, tokenizer=tokenizer, data_seed=suite.data_seed, split=suite.split
    )
    for item in items:
        digest.update(item.sha256.encode("ascii") + b"\n")
    return digest.hexdigest()


def list_suites() -> tuple[str, ...]:
    """Names of the shipped suites, shortest length first."""
    names = [path.stem for path in suites_dir().glob("*.toml") if _NAME.fullmatch(path.stem)]
    return tuple(sorted(names, key=lambda name: (load_suite(name).length, name)))


def load_suite(name_or_path: str | Path) -> Suite:
    """A shipped suite by name, or any suite file by path (a Path, or text with a slash or ending in .toml).

    SuiteError with exit_code 2 for an unknown name or a missing file, 3 for an invalid file.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith(".toml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise SuiteError(f"no suite file {text[:200]}", exit_code=2)
        return parse_suite(_read(path), path.name)
    known = [path.stem for path in suites_dir().glob("*.toml")]
    if _NAME.fullmatch(text) is None or text not in known:
        raise SuiteError(f"unknown suite '{text[:64]}'{nearest(text, known)}; known: {', '.join(sorted(known))}", 2)
    suite = parse_suite(_read(suites_dir() / f"{text}.toml"), f"{text}.toml")
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


def parse_suite(data: bytes, source: str) -> Suite:
    """A suite from the bytes of its file; SuiteError (exit code 3) that names `source` when anything is wrong."""
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # TOML and UTF-8 errors are ValueErrors
        raise SuiteError(f"suite {source}: not valid TOML ({str(error)[:200]})") from error
    _check_keys(table, source)
    tasks = _tasks(table["tasks"], source)
    suite = Suite(
        id=table["id"],
        version=table["version"],
        description=table["description"],
        data_seed=_within(table, "data_seed", 0, 2**63 - 1, source),
        split=table["split"],
        length=_within(table, "length", 1, MAX_LENGTH, source),
        n=_within(table, "n", 1, MAX_ITEMS, source),
        tasks=tasks,
        hashes=_hashes(table.get("hashes", {}), tasks, source),
        sha256=hashlib.sha256(data).hexdigest(),
    )
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
    missing = [key for key in _KEYS if key not in table and key != "hashes"]
    if missing:
        raise SuiteError(f"suite {source}: missing {', '.join(missing)}")


def _within(table: dict[str, Any], key: str, low: int, high: int, source: str) -> int:
    if not low <= table[key] <= high:
        raise SuiteError(f"suite {source}: '{key}' must be in {low}..{high}")
    return int(table[key])


def _tasks(listed: list[Any], source: str) -> tuple[str, ...]:
    if not listed:
        raise SuiteError(f"suite {source}: no tasks")
    for task in listed:
        if not isinstance(task, str) or task not in TASKS:
            raise SuiteError(f"suite {source}: unknown task '{str(task)[:64]}'{nearest(str(task), TASKS)}")
    if len(set(listed)) != len(listed):
        raise SuiteError(f"suite {source}: a task stands twice")
    return tuple(listed)


def _hashes(table: dict[str, Any], tasks: tuple[str, ...], source: str) -> dict[str, dict[str, str]]:
    for fingerprint, row in table.items():
        if _FINGERPRINT.fullmatch(fingerprint) is None or not isinstance(row, dict):
            raise SuiteError(f"suite {source}: [hashes] holds one table per tokenizer fingerprint")
        if set(row) != set(tasks):
            raise SuiteError(f"suite {source}: hashes of '{fingerprint[:16]}' are not those of the suite's tasks")
        if not all(isinstance(value, str) and _HASH.fullmatch(value) for value in row.values()):
            raise SuiteError(f"suite {source}: a hash of '{fingerprint[:16]}' is not 64 hexadecimal digits")
    return {fingerprint: dict(row) for fingerprint, row in table.items()}
