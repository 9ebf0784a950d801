"""Where the shipped files are: next to the package in a source checkout, inside it in an installed wheel."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def data_dir() -> Path:
    """Folder with `sotu.jsonl.xz` and `words.txt`."""
    return _shipped("data")


def suites_dir() -> Path:
    """Folder with the frozen `*.toml` suites."""
    return _shipped("suites")


def micro_tokenizer_path() -> Path | None:
    """The shipped micro tokenizer's `tokenizer.json`, or None where no zoo is installed.

    Looked up by location: importing the models package here would pull torch into a numpy-only package.
    """
    candidates = [_PACKAGE.parent.parent / "models" / "zoo" / "tokenizer.json"]
    spec = importlib.util.find_spec("proteus_models")
    if spec is not None:
        for folder in spec.submodule_search_locations or []:
            candidates += [Path(folder) / "zoo" / "tokenizer.json", Path(folder).parent / "zoo" / "tokenizer.json"]
    return next((path for path in candidates if path.is_file()), None)
