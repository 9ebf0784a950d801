"""Files that are there whole or not at all: temporary file, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from proteus_bench.errors import EnvironmentFault


def fsync_folder(path: Path) -> None:
    """Make renames inside ``path`` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` atomically and durably. EnvironmentFault (exit 4) when it cannot be saved."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        fsync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise EnvironmentFault(f"cannot save {path}: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    """`write_bytes` of indented JSON with sorted keys. Raises ValueError for NaN."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(path, text.encode("utf-8") + b"\n")


def prove_writable(folder: Path) -> None:
    """Create ``folder`` and write, sync and delete a file in it. EnvironmentFault (exit 4) when that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".proof-") as stream:
            stream.write(b"\0" * 4096)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror or error}") from error
