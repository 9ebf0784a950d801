"""`merge` and `add`: verified bundles become entries. Append-only, idempotent, and the leaderboard is rebuilt at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.leaderboard.build import Built, build_leaderboard
from proteus_bench.leaderboard.bundle import submit, zip_bytes
from proteus_bench.leaderboard.checks import Prediction, twin_predictions
from proteus_bench.leaderboard.entry import read_entry
from proteus_bench.leaderboard.items import Book
from proteus_bench.leaderboard.opening import BUNDLE_CHARS, Opened, bundle_id, listed_files, opened
from proteus_bench.leaderboard.schema import RETIRED, TIERS, Entry, Statement
from proteus_bench.leaderboard.verify import Options, accept
from proteus_bench.store import FolderLock, prove_writable, write_bytes, write_json

_MAY_CHANGE = {"tier", "ranked", "reason", "cost", "paired_cost", "statement", "active", "opening", "cells.depths"}


@dataclass(frozen=True)
class Added:
    """One entry of a merge. ``state``: added, raised (to a higher tier), costed (it had no paired cost), or there (already)."""

    id: str
    model: str
    suite: str
    path: Path
    state: str
    rankable: bool
    reason: str

    @property
    def new(self) -> bool:
        """Whether it was not there before."""
        return self.state == "added"


@dataclass(frozen=True)
class Merged:
    """What a merge did."""

    bundle: Path
    added: tuple[Added, ...]
    built: Built


def add_runs(
    runs: Sequence[Path], into: Path, options: Options | None = None, statement: Statement | None = None,
    fresh: bool = False,
) -> Merged:  # fmt: skip
    """`submit`, `verify` and `merge` of run folders in one. Raises as those do; nothing is written unless all pass."""
    with tempfile.TemporaryDirectory(prefix="proteus-submit-") as folder:
        bundle = Path(folder) / "bundle"
        submit(runs, bundle, statement or Statement(), durable=False)
        return merge(bundle, into, options, fresh)


def merge(path: Path, into: Path, options: Options | None = None, fresh: bool = False) -> Merged:
    """Verify a bundle to ``options.level`` (V2), keep it under ``into/bundles``, write its entries and rebuild.

    fresh: everything that stands there is taken away first, once the bundle has passed.

    Raises InvalidFileError (exit 3) for a bundle that is refused, and for an entry whose values differ from those that
    stand under the same identity; EnvironmentFault (exit 4) when nothing can be written. Nothing is written unless all
    entries pass; a merge that was cut off is completed by repeating it.
    """
    options = options or Options()
    book = Book(options.suites, options.tokenizers)
    with opened(path) as bundle:
        if bundle.manifest is None or bundle.id is None:
            raise UsageError(f"{path} is a run folder: 'submit' makes a bundle of it, 'add' does everything at once")
        entries = accept(path, bundle, options, book).entries
        _proof(into)
        with FolderLock(into):
            if fresh:
                _clear(into)
            held = _held(into)
            _refuse_twins(entries, held)
            added = [_place(entry, into, held) for entry in entries]
            kept = _keep(bundle, into)
            for entry, place in zip(entries, added, strict=True):
                if place.state != "there":
                    write_json(place.path, entry.model_dump(mode="json", by_alias=True))
            return Merged(kept, tuple(added), build_leaderboard(into))


def _proof(into: Path) -> None:
    for name in ("entries", "bundles"):
        prove_writable(into / name)


def _held(into: Path) -> dict[str, Entry]:
    return {path.stem: read_entry(path) for path in sorted((into / "entries").glob("*.json"))}


def _refuse_twins(entries: Sequence[Entry], held: dict[str, Entry]) -> None:
    """Another entry's predictions under other weights."""
    found = [
        Prediction(entry.label, record.seed, record.checkpoint_sha256, record.predictions_sha256)
        for entry in [*held.values(), *entries]
        for record in entry.records
    ]
    reason = next(iter(twin_predictions(found)), None)
    if reason is not None:
        raise InvalidFileError(reason)


def _place(entry: Entry, into: Path, held: dict[str, Entry]) -> Added:
    path = into / "entries" / f"{entry.id}.json"
    state = "added"
    if (into / "archive" / f"{entry.id}.json").exists():
        raise InvalidFileError(f"{entry.label}: its entry {entry.id} was retired; it does not come back")
    if entry.id in held:
        old = held[entry.id]
        differs = _changed(old, entry)
        if differs:
            raise InvalidFileError(
                f"{path} holds another {differs} for the same models, seeds and suite; it is not overwritten"
            )
        costed = "costed" if old.paired_cost is None and entry.paired_cost is not None else "there"
        state = "raised" if TIERS.index(entry.tier) > TIERS.index(old.tier) else costed
    return Added(entry.id, entry.label, entry.suite.name, path, state, entry.ranked, entry.reason)


def _changed(old: Entry, new: Entry) -> str:
    """The first field whose value changed, '' for none. The tier may rise, and what nobody checks is not compared."""
    a, b = (_values(entry) for entry in (old, new))
    return next((name for name in a if a[name] != b[name]), "")


def _values(entry: Entry) -> dict[str, Any]:
    values = entry.model_dump(mode="json", exclude=_MAY_CHANGE - {"cells.depths"})
    for cell in values["cells"]:
        cell.pop("depths")
    return values


def _keep(bundle: Opened, into: Path) -> Path:
    """The bundle as a zip under its address, without checkpoints: those are large, and their hashes stand in it."""
    assert bundle.manifest is not None
    manifest = bundle.manifest.model_copy(update={"checkpoints": []})
    path = into / "bundles" / f"{bundle_id(manifest)[:BUNDLE_CHARS]}.zip"
    if not path.exists():
        sources = {name: bundle.root / name for name, _ in listed_files(manifest)}
        write_bytes(path, zip_bytes(manifest, sources))
    return path


def retire(name: str, into: Path, reason: str) -> Built:
    """Move an entry into ``into/archive`` with a reason. UsageError for one that is not there or a reason without words."""
    path = into / "entries" / f"{name}.json"
    if "/" in name or not path.is_file():
        raise UsageError(f"there is no entry {name[:64]!r} in {into / 'entries'}")
    if not reason.strip():
        raise UsageError("an entry is retired with a --reason")
    entry = read_entry(path)
    document = {"schema": RETIRED, "reason": reason, "entry": entry.model_dump(mode="json", by_alias=True)}
    prove_writable(into / "archive")
    with FolderLock(into):
        write_json(into / "archive" / path.name, document)
        os.unlink(path)
        return build_leaderboard(into)


def _clear(into: Path) -> None:
    for name in ("entries", "bundles", "archive"):
        for path in (into / name).glob("*.*"):
            path.unlink()
