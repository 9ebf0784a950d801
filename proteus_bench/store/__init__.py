"""The run folder: manifest first, one checksummed log per cell, results written whole or not at all. No torch."""

from proteus_bench.store.atomic import prove_writable, write_bytes, write_json
from proteus_bench.store.canonical import canonical_json, digest, loads_strict
from proteus_bench.store.folder import CellKey, RunFolder, read_json
from proteus_bench.store.lock import FolderLock
from proteus_bench.store.log import CellLog, read_log

__all__ = [
    "CellKey",
    "CellLog",
    "FolderLock",
    "RunFolder",
    "canonical_json",
    "digest",
    "loads_strict",
    "prove_writable",
    "read_json",
    "read_log",
    "write_bytes",
    "write_json",
]
