"""Canonical JSON in the manner of RFC 8785: one spelling for one value, so that a hash of it is an identity."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NoReturn

from proteus_bench.errors import InvalidFileError

MAX_DEPTH = 64


def canonical_json(value: Any) -> bytes:
    """UTF-8, sorted keys, no spaces. Raises ValueError for NaN and infinities, which are no JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of ``value``."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def loads_strict(data: bytes, source: str) -> Any:
    """Parse JSON from an untrusted file: no duplicate keys, no NaN or 1e999, no deep nesting, valid UTF-8.

    Raises InvalidFileError (exit 3) that names ``source``.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_constant, parse_float=_finite
        )
        _shallow(value, MAX_DEPTH)
        canonical_json(value)  # lone surrogates parse and do not encode
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(f"{source} is not valid JSON: {str(error).splitlines()[0][:200]}") from error
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice[:60]!r} is given twice")
    return table


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"{text[:40]} is out of range")
    return value


def _shallow(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(child, dict | list):
            _shallow(child, depth - 1)
