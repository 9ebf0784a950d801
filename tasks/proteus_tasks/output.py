"""Writing generated items: proven writable first, complete or absent, with a manifest that pins the bytes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import OutputError
from .item import Item

ITEMS_FILE = "items.jsonl"
MANIFEST_FILE = "manifest.json"


def prepare(folder: Path) -> None:
    """Create `folder` and prove that it can be written; OutputError otherwise."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error


def write_items(folder: Path, items: Iterable[Item], request: dict[str, Any]) -> dict[str, Any]:
    """Write items.jsonl, then manifest.json; returns the manifest. The manifest comes last: with it, the items are whole."""
    digest, count, reached = hashlib.sha256(), 0, []
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".items-")
        try:
            with os.fdopen(handle, "wb") as file:
                for item in items:
                    row = {**item.to_dict(), "sha256": item.sha256}
                    line = json.dumps(row, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
                    digest.update(line)
                    file.write(line)
                    count += 1
                    reached.append(item.reached)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, folder / ITEMS_FILE)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        manifest = {
            **request,
            "items": count,
            "reached_min": min(reached, default=0),
            "reached_max": max(reached, default=0),
            "files": {ITEMS_FILE: {"sha256": digest.hexdigest(), "bytes": (folder / ITEMS_FILE).stat().st_size}},
        }
        write_bytes(folder / MANIFEST_FILE, (json.dumps(manifest, sort_keys=True, indent=2) + "\n").encode("ascii"))
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror or error}") from error
    return manifest


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, so that it survives a crash. OSError when that fails."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the renames themselves must survive a crash
    finally:
        os.close(folder)
