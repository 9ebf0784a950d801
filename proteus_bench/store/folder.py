"""The layout of a run folder, and the manifest that says what it will hold.

manifest.json            planned cells, written before any work
cells/<cell>.jsonl       one checksummed row per question, append-only
cells/<cell>.seconds.jsonl  seconds per question, apart, so that results are byte-identical when the run is repeated
tokenizers/*.json        tokenizers of models outside the zoo, by the first digits of their fingerprint
run.json items.parquet   results;  timing.json  what it cost
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import EnvironmentFault, InvalidFileError, UsageError
from proteus_bench.store.atomic import prove_writable, write_json
from proteus_bench.store.canonical import digest, file_digest, loads_strict

SCHEMA = "proteus-bench/manifest@1"
TOKENIZERS = "tokenizers"
MAX_JSON_BYTES = 64 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9.@_-]+")


@dataclass(frozen=True, order=True)
class CellKey:
    """One cell: model (canonical text) x task x length (tokens) x training seed."""

    model: str
    task: str
    length: int
    seed: int

    @property
    def file_name(self) -> str:
        """A portable name; the hash keeps two cells apart whose names differ only in characters that were replaced."""
        text = f"{self.model}-{self.task}-{self.length}-s{self.seed}"
        return f"{_UNSAFE.sub('_', text)[:120]}-{digest(asdict(self))[:8]}"


class RunFolder:
    """Paths and whole-file reads and writes of one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest_path = path / "manifest.json"
        self.run_path = path / "run.json"
        self.timing_path = path / "timing.json"
        self.items_path = path / "items.parquet"

    def prepare(self) -> None:
        """Prove that the folder can be written, before any work. EnvironmentFault (exit 4)."""
        prove_writable(self.path)
        prove_writable(self.path / "cells")

    def cell_path(self, cell: CellKey) -> Path:
        """The item log of a cell."""
        return self.path / "cells" / f"{cell.file_name}.jsonl"

    def time_path(self, cell: CellKey) -> Path:
        """The seconds of a cell, outside the results."""
        return self.path / "cells" / f"{cell.file_name}.seconds.jsonl"

    def tokenizer_path(self, fingerprint: str) -> Path:
        """Where the tokenizer of a model outside the zoo stands."""
        return self.path / TOKENIZERS / f"{fingerprint[:16]}.json"

    def claim(self, plan: dict[str, Any]) -> bool:
        """Write the manifest, or accept one of the same plan (True: this is a resumption).

        UsageError (exit 2) when the folder holds another run: its rows must not mix with these.
        """
        wanted = {"schema": SCHEMA, "plan": plan, "sha256": digest(plan)}
        if not self.manifest_path.exists():
            write_json(self.manifest_path, wanted)
            return False
        found = self.manifest()
        if found["sha256"] != wanted["sha256"]:
            raise UsageError(
                f"{self.path} holds another run ({_difference(found['plan'], plan)}); choose another --out or delete it"
            )
        return True

    def manifest(self) -> dict[str, Any]:
        """The manifest, checked. InvalidFileError (exit 3) when it is damaged."""
        found = read_json(self.manifest_path)
        if not isinstance(found, dict) or found.get("schema") != SCHEMA or digest(found.get("plan")) != found["sha256"]:
            raise InvalidFileError(f"{self.manifest_path} is damaged or of another version")
        return found

    def file_hash(self, cell: CellKey) -> str | None:
        """sha256 of the item log, or None when there is none."""
        path = self.cell_path(cell)
        return file_digest(path) if path.exists() else None


def read_json(path: Path) -> Any:
    """Strict JSON of a file of at most 64 MiB; InvalidFileError (exit 3) otherwise."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise InvalidFileError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB")
        return loads_strict(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise InvalidFileError(f"{path} does not exist") from error
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror or error}") from error


def _difference(old: Any, new: Any) -> str:
    """The first key in which two plans differ, for the message."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}, key=lambda key: (isinstance(old.get(key), list), key)):
            if old.get(key) != new.get(key):
                inner = _difference(old.get(key), new.get(key))
                return f"{key}: {inner}" if inner else str(key)
    shown = [str(value) if not isinstance(value, list | dict) else f"{len(value)} entries" for value in (old, new)]
    return f"{shown[0][:60]} there, {shown[1][:60]} asked"
