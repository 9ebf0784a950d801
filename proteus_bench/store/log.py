"""An append-only log of JSON rows, one checksum a line: ``<sha256[:16]> <canonical JSON>``.

A kill can only tear the last line, which is then dropped; anything else that does not match its checksum is damage.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.store.atomic import fsync_folder
from proteus_bench.store.canonical import canonical_json, loads_strict

_CHECK = 16
# A worker whose parent was killed ends within one batch; whoever takes its cell over waits for that.
_TAKE_OVER_SECONDS = 30.0


def _line(row: dict[str, Any]) -> bytes:
    body = canonical_json(row)
    return hashlib.sha256(body).hexdigest()[:_CHECK].encode() + b" " + body + b"\n"


def parse_log(data: bytes, source: str) -> tuple[list[dict[str, Any]], int]:
    """(rows, bytes that hold them). A last line without its newline is left out; damage raises InvalidFileError."""
    rows: list[dict[str, Any]] = []
    end = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:end].split(b"\n")[:-1], 1):
        check, _, body = line.partition(b" ")
        if hashlib.sha256(body).hexdigest()[:_CHECK].encode() != check:
            raise InvalidFileError(f"{source}, line {number}: the row does not match its checksum")
        row = loads_strict(body, f"{source}, line {number}")
        if not isinstance(row, dict):
            raise InvalidFileError(f"{source}, line {number}: not a row")
        rows.append(row)
    return rows, end


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole rows of a log, in order; [] when there is none. InvalidFileError (exit 3) names the damaged line."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentFault(f"cannot read {path}: {error.strerror or error}") from error
    return parse_log(data, str(path))[0]


class CellLog:
    """Appends rows durably. Opening reads what is there and cuts a torn last line off; ``rows`` is what stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("a+b")
        except OSError as error:
            raise EnvironmentFault(f"cannot write to {path}: {error.strerror or error}") from error
        self._own()
        self._stream.seek(0)
        self.rows, end = parse_log(self._stream.read(), str(path))
        self._stream.truncate(end)
        self._stream.seek(end)
        fsync_folder(path.parent)

    def _own(self) -> None:
        """One writer a log, whatever became of the process that held the folder's lock."""
        deadline = time.monotonic() + _TAKE_OVER_SECONDS
        while True:
            try:
                fcntl.flock(self._stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if not isinstance(error, BlockingIOError):  # a network file system without locks
                    self._stream.close()
                    raise EnvironmentFault(f"cannot lock {self.path}: {error.strerror or error}") from error
                if time.monotonic() > deadline:
                    self._stream.close()
                    raise EnvironmentFault(f"{self.path} is being written by another process") from error
                time.sleep(0.1)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write a batch and sync it to disk. EnvironmentFault (exit 4) on a full or failing disk."""
        batch = list(rows)
        try:
            self._stream.write(b"".join(_line(row) for row in batch))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            raise EnvironmentFault(f"cannot save {self.path}: {error.strerror or error}") from error
        self.rows.extend(batch)

    def close(self) -> None:
        """Close the file; nothing is pending."""
        self._stream.close()
