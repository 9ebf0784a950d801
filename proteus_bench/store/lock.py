"""One process per run folder. The kernel holds the lock, so it goes with its owner, however that one ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from proteus_bench.errors import EnvironmentFault


class FolderLock:
    """Exclusive lock on ``folder/.lock`` for the life of a ``with`` block.

    Raises EnvironmentFault (exit 4) when another live process holds it. The file keeps the owner's pid only to name it:
    a lock file left by a killed process is not locked any more and is taken over.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self._handle: int | None = None

    def __enter__(self) -> FolderLock:
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise EnvironmentFault(f"cannot lock {self.path.parent}: {error.strerror or error}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise EnvironmentFault(
                f"{self.path.parent} is in use by another run (process {owner}); wait for it or choose another --out"
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._handle = handle
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            os.close(self._handle)  # the file stays: unlinking it would let two processes lock two different files
            self._handle = None
