"""Verifying what stands: an entry file, and a leaderboard's folder, whose entries must come out of its bundles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard.build import leaderboard_of, read_retired
from proteus_bench.leaderboard.entry import NEAR, entry_reasons
from proteus_bench.leaderboard.forms import read_as, shown
from proteus_bench.leaderboard.items import Book
from proteus_bench.leaderboard.opening import BUNDLE_CHARS, opened
from proteus_bench.leaderboard.schema import RANKING_TIER, TIERS, Entry
from proteus_bench.leaderboard.verify import Options, Verification, verify_bundle
from proteus_bench.store import read_json

# What depends on how far a bundle was verified, or on the schedules that are installed.
_BY_LEVEL = {"tier", "ranked", "reason", "depths", "roles"}
_BY_PLUGINS = {"active", "opening"}


def verify_entry(path: Path, options: Options, book: Book) -> Verification:
    """One entry file by itself: its numbers follow from its item scores. Where those come from, only its bundle can say."""
    found = Verification(path, options.level)
    entry: Entry = read_as(Entry, path)
    found.entries, found.reached = [entry], 0
    reasons = [] if path.stem == entry.id else [f"its name is not its id {entry.id}"]
    reasons += entry_reasons(entry)
    found.refuse(1, reasons)
    bundles = path.parent.parent / "bundles"
    if not reasons and options.level >= 1:
        found.reached = _from_bundles([(path.name, entry)], bundles, options, book, found)
    return found


def verify_leaderboard(folder: Path, options: Options, book: Book) -> Verification:
    """All entries, each against the bundle that it came from; and leaderboard.json against all of them."""
    found = Verification(folder, options.level)
    paths = sorted((folder / "entries").glob("*.json"), key=lambda p: p.name)
    held: list[tuple[str, Entry]] = []
    wrong = []
    for path in paths:
        entry: Entry = read_as(Entry, path)
        held.append((path.name, entry))
        found.entries.append(entry)
        reasons = ["its name is not its id"] if path.stem != entry.id else []
        wrong += [f"entries/{shown(path.name)}: {reason}" for reason in [*reasons, *entry_reasons(entry)]]
    for path in sorted((folder / "archive").glob("*.json"), key=lambda p: p.name):
        old = read_retired(path)
        wrong += [f"archive/{shown(path.name)}: {reason}" for reason in entry_reasons(old.entry)]
    found.reached = 0
    if not wrong and options.level >= 1:
        wrong += _board_reasons(folder)
    if options.level >= 1:
        found.refuse(1, wrong)
    if not wrong and options.level >= 1:
        found.reached = _from_bundles(held, folder / "bundles", options, book, found)
    return found


def _board_reasons(folder: Path) -> list[str]:
    again = leaderboard_of(folder).model_dump(mode="json", by_alias=True)
    if read_json(folder / "leaderboard.json") != json.loads(json.dumps(again)):
        return ["leaderboard.json is not what its entries give; build it again"]
    page = folder / "site" / "index.html"
    if page.is_file():
        from proteus_bench.site import board_page

        if page.read_bytes() != board_page(leaderboard_of(folder)).encode("utf-8"):
            return ["site/index.html is not what the entries give; build it again"]
    return []


def _from_bundles(
    held: Sequence[tuple[str, Entry]], bundles: Path, options: Options, book: Book, found: Verification
) -> int:
    """Level that every entry reaches: the bundles are verified, and each entry must be one that a bundle gives."""
    given: dict[str, list[tuple[Entry, int]]] = {}
    for path in sorted((*bundles.glob("*.zip"), *(p for p in bundles.glob("*") if p.is_dir())), key=lambda p: p.name):
        with opened(path) as bundle:
            if bundle.id is None or path.stem != bundle.id[:BUNDLE_CHARS]:
                raise InvalidFileError(f"{path}: its name is not the start of its manifest's hash")
            one = verify_bundle(path, bundle, options, book)
        found.runs += one.runs
        found.rows += one.rows
        for level, reason in one.refused:
            found.refuse(level, [f"bundles/{path.name}: {reason}"])
        for entry in one.entries:
            given.setdefault(entry.id, []).append((entry, TIERS.index(entry.tier)))
    reached = options.level
    for name, entry in held:
        level, reason = _level_of(entry, given.get(entry.id, []), options.level)
        if reason:
            found.refuse(level + 1, [f"entries/{shown(name)}: {reason}"])
        reached = min(reached, level)
    return reached


def _level_of(entry: Entry, given: Sequence[tuple[Entry, int]], asked: int) -> tuple[int, str]:
    """(level that the entry reaches, why no further)."""
    if not given:
        return 0, "no bundle gives it: written by hand, or its bundle was taken away"
    wrong = [(_differences(made, entry, level), level) for made, level in given]
    differences, level = min(wrong, key=lambda pair: (len(pair[0]), -pair[1]))
    if differences:
        return 0, f"{differences[0]} is not what its bundle gives"
    if level < asked:
        return level, f"its bundle reaches V{level} only"
    return level, ""


def _differences(made: Entry, held: Entry, level: int) -> list[str]:
    """Fields in which an entry differs from what its bundle gives."""
    free = _BY_PLUGINS | ({"tier"} if level >= RANKING_TIER else _BY_LEVEL)
    a, b = (entry.model_dump(mode="json") for entry in (made, held))
    return [name for name in a if name not in free and not _same(a[name], b[name], free)]


def _same(a: Any, b: Any, free: set[str]) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(name in free or _same(a[name], b[name], free) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, free) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) < NEAR
    return bool(a == b)
