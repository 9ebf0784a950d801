"""leaderboard.json: a pure function of the entries and the published numbers, byte for byte. No clock, no locale."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard.board_schema import BOARD, Leaderboard, Published
from proteus_bench.leaderboard.effects import effects_of
from proteus_bench.leaderboard.entry import overall_block, read_entry
from proteus_bench.leaderboard.forms import read_as, rounded
from proteus_bench.leaderboard.item_scores import parse_scores
from proteus_bench.leaderboard.pairwise import Method, ranking
from proteus_bench.leaderboard.schema import Entry, Retired
from proteus_bench.score import SCORER_ID, SCORER_VERSION
from proteus_bench.stats import holm, pool_draws, verdict
from proteus_bench.stats.ranks import Rank
from proteus_bench.store import read_json, write_bytes
from proteus_bench.store.canonical import digest

P_DIGITS = 4
"""Significant digits of a p-value: more are an accident of the arithmetic."""


@dataclass(frozen=True)
class Built:
    """What a build wrote. removed: ids that stood in the old leaderboard.json and have no entry any more."""

    path: Path
    board: Leaderboard
    removed: tuple[str, ...]


def build_leaderboard(folder: Path) -> Built:
    """Rebuild ``folder/leaderboard.json`` from ``entries/``, ``archive/`` and ``published/``.

    Raises InvalidFileError (exit 3) for an entry that fails its checks, and before anything is written.
    """
    board = leaderboard_of(folder)
    path = folder / "leaderboard.json"
    removed = _removed(path, board)
    write_bytes(path, board_text(board).encode("utf-8"))
    return Built(path, board, removed)


def board_text(board: Leaderboard) -> str:
    """leaderboard.json: indented down to the rows, and one line a row, so that a change of one row is a change of a line."""
    document = board.model_dump(mode="json", by_alias=True)
    rows: list[str] = []
    for one in (*document["boards"], *document["archive"]):
        rows += [json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False) for row in one["rows"]]
        one["rows"] = [f"row {len(rows) - len(one['rows']) + i}" for i in range(len(one["rows"]))]
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return re.sub(r'^( *)"row ([0-9]+)"', lambda found: f"{found[1]}{rows[int(found[2])]}", text, flags=re.MULTILINE)


def leaderboard_of(folder: Path) -> Leaderboard:
    """The leaderboard of a folder, computed and not written."""
    entries = [read_entry(path) for path in _files(folder / "entries")]
    retired = [read_retired(path) for path in _files(folder / "archive")]
    both = sorted({entry.id for entry in entries} & {old.entry.id for old in retired})
    if both:
        raise InvalidFileError(f"{folder}: entry {both[0]} stands among the entries and in the archive")
    published = [read_as(Published, path) for path in _files(folder / "published")]
    live, stale = _boards(entries)
    return Leaderboard.model_validate(
        {
            "schema": BOARD,
            "boards": live,
            "archive": stale,
            "retired": [
                {
                    "id": old.entry.id, "label": old.entry.label, "suite": old.entry.suite.model_dump(),
                    "score": old.entry.overall.score, "reason": old.reason,
                }
                for old in sorted(retired, key=lambda old: old.entry.id)
            ],
            "published": [one.model_dump(by_alias=True) for one in published],
        }
    )  # fmt: skip


def read_retired(path: Path) -> Retired:
    """One file of the archive, checked. InvalidFileError (exit 3)."""
    old: Retired = read_as(Retired, path)
    if path.stem != old.entry.id:
        raise InvalidFileError(f"{path}: its name is not its entry's id {old.entry.id}")
    return old


def _files(folder: Path) -> list[Path]:
    """JSON files by name. A link or a folder under such a name raises InvalidFileError."""
    paths = sorted((p for p in folder.glob("*.json") if not p.name.startswith(".")), key=lambda p: p.name)
    for path in paths:
        if path.is_symlink() or not path.is_file():
            raise InvalidFileError(f"{path} is a link or no plain file")
    return paths


def _removed(path: Path, board: Leaderboard) -> tuple[str, ...]:
    """Ids of the old file that are nowhere in the new one. A file that cannot be read has none: it is replaced."""
    try:
        old = read_json(path)
        rows = [row["id"] for part in ("boards", "archive") for one in old[part] for row in one["rows"]]
    except (InvalidFileError, KeyError, TypeError):
        return ()
    held = {row.id for part in (board.boards, board.archive) for one in part for row in one.rows}
    held |= {old_row.id for old_row in board.retired}
    return tuple(sorted(str(name)[:64] for name in rows if name not in held))


def _boards(entries: Sequence[Entry]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(live boards, archived boards): one for every suite version, scorer and set of items."""
    groups: dict[tuple[str, str, str, str, str, str], list[Entry]] = {}
    for entry in entries:
        items = digest([[cell.task, cell.length, cell.items_sha256, cell.n] for cell in entry.cells])
        key = (
            entry.suite.name, entry.suite.version, entry.suite.sha256, entry.scorer.id, entry.scorer.version, items,
        )  # fmt: skip
        groups.setdefault(key, []).append(entry)
    newest: dict[str, tuple[int, ...]] = {}
    for name, version, *_ in groups:
        newest[name] = max(newest.get(name, ()), _version(version))
    live: list[dict[str, Any]] = []
    stale: list[dict[str, Any]] = []
    for key, members in sorted(groups.items(), key=lambda group: _place(*group)):
        reason = ""
        if (key[3], key[4]) != (SCORER_ID, SCORER_VERSION):
            reason = f"scored by {key[3]} version {key[4]}; this is {SCORER_ID} version {SCORER_VERSION}"
        elif _version(key[1]) < newest[key[0]]:
            reason = "the suite has a newer version"
        (stale if reason else live).append(_board(key[5], members, reason))
    return live, stale


def _place(key: tuple[str, ...], members: Sequence[Entry]) -> tuple[Any, ...]:
    """Suites of one family by their longest context: 4k before 16k."""
    return re.sub(r"[0-9]+", "0", key[0]), max(cell.length for cell in members[0].cells), key


def _version(text: str) -> tuple[int, ...]:
    """Versions in their order: 10 after 9. Parts that are no numbers count as zero."""
    return tuple(int(part) if part.isdecimal() and len(part) < 10 else 0 for part in text.split("."))


def _board(items: str, members: Sequence[Entry], archived: str) -> dict[str, Any]:
    ranked = [entry for entry in members if entry.ranked and not archived]
    methods, weights = _methods(members)
    ranks = ranking([methods[entry.id] for entry in sorted(ranked, key=lambda e: e.id)], weights)
    against = _against_static(members, methods, weights)
    first = members[0]
    rows = [_row(entry, ranks.get(entry.id), against.get(entry.id), archived) for entry in members]
    rows.sort(key=_order)
    return {
        "suite": first.suite.model_dump(),
        "scorer": first.scorer.model_dump(),
        "items_sha256": items,
        "tokenizer_sha256": first.tokenizer_sha256,
        "archived": archived,
        "family_size": len(against),
        "rows": rows,
    }


def _methods(members: Sequence[Entry]) -> tuple[dict[str, Method], list[float]]:
    """The members of a board by id, cells of one draw pooled alike in all (older runs do not say theirs); the tasks' weights."""
    said: dict[str, str] = {}
    for entry in sorted(members, key=lambda e: e.id):
        for cell in entry.cells:
            if cell.draws is not None:
                said.setdefault(cell.task, cell.draws)
    found, weights = {}, [1.0]
    for entry in members:
        scores = [parse_scores(cell.scores) for cell in entry.cells]
        keys = [(said.get(cell.task, cell.task), cell.n) for cell in entry.cells]
        tasks, weights = pool_draws(scores, keys)
        found[entry.id] = Method(entry.id, tuple(entry.seeds), tuple(tasks))
    return found, weights


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """By tie group, then by score inside it; what is not ranked comes last."""
    unranked = row["rank_best"] is None
    return (unranked, row["tie_group"] or 0, not row["ranked"], -row["overall"]["score"], row["label"], row["id"])


def _is_static(entry: Entry) -> bool:
    return entry.capacity.get("schedule") == "static" or entry.capacity.get("blocks") == 1


def _against_static(
    members: Sequence[Entry], methods: Mapping[str, Method], weights: Sequence[float]
) -> dict[str, dict[str, Any]]:
    """Each schedule less its static twin: of the same backbone and size, from the same run if there is one. Holm over all."""
    pairs = []
    static: dict[tuple[str, str], list[Entry]] = {}
    for entry in members:
        if _is_static(entry):
            static.setdefault((entry.model, entry.size), []).append(entry)
    for entry in members:
        twins = list(static.get((entry.model, entry.size), ()))
        if _is_static(entry) or not twins:
            continue
        runs = {record.run_id for record in entry.records}
        twins.sort(key=lambda e, runs=runs: (not runs & {r.run_id for r in e.records}, -len(e.seeds), e.id))  # type: ignore[misc]
        shared = sorted(set(entry.seeds) & set(twins[0].seeds))
        if shared:
            pairs.append((entry, twins[0], shared))
    judged = []
    for entry, twin, shared in pairs:
        sides = [[task[[m.seeds.index(s) for s in shared]] for task in m.tasks] for m in (methods[entry.id], methods[twin.id])]
        judged.append(verdict(entry.label, twin.label, [a - b for a, b in zip(*sides, strict=True)], B=0, weights=weights))
    values = [v.p_value for v in judged if v.p_value is not None]
    adjusted = iter(holm(values))
    found = {}
    for (entry, twin, shared), v in zip(pairs, judged, strict=True):
        p = next(adjusted) if v.p_value is not None else None
        shown = v.outcome if v.outcome == "identical" or (p is not None and p < 0.05) else "not_separable"
        found[entry.id] = {
            "entry": twin.id, "label": twin.label, "diff": rounded(v.primary.mean), "ci_low": rounded(v.primary.lo),
            "ci_high": rounded(v.primary.hi), "p_holm": None if p is None else float(f"{p:.{P_DIGITS}g}"),
            "outcome": shown, "seeds": len(shared), "items": v.items,
        }  # fmt: skip
    return found


def _row(entry: Entry, rank: Rank | None, against: dict[str, Any] | None, archived: str) -> dict[str, Any]:
    whole = entry.model_dump(
        mode="json",
        exclude={
            **dict.fromkeys(("schema_", "identity", "suite", "scorer", "tokenizer_sha256", "records", "cells"), True),
            "paired_cost": {"lines": {"__all__": {"seconds", "static_seconds"}}},
        },
    )
    cells = [cell.model_dump(mode="json", exclude={"scores", "items_sha256", "roles", "draws"}) for cell in entry.cells]
    ranked = entry.ranked and not archived
    return {
        **whole,
        "entry": f"entries/{entry.id}.json",
        "diverged_seeds": [record.seed for record in entry.records if record.status == "diverged"],
        "ranked": ranked,
        "reason": entry.reason or archived,
        "rank_best": rank.best if rank else (1 if ranked else None),
        "rank_worst": rank.worst if rank else (1 if ranked else None),
        "tie_group": rank.group if rank else (1 if ranked else None),
        "against_static": against,
        "trained_tokens": _trained_tokens(entry),
        "weights": digest(sorted(record.checkpoint_sha256 for record in entry.records))[:16],
        "lengths": _lengths(entry),
        "effects": [effect.model_dump() for effect in effects_of(entry)],
        "cells": cells,
    }


def _trained_tokens(entry: Entry) -> int | None:
    """Mean over seeds; None unless every card states its own."""
    held = [record.tokens for record in entry.records if record.tokens is not None]
    return round(sum(held) / len(held)) if len(held) == len(entry.records) else None


def _lengths(entry: Entry) -> list[dict[str, Any]]:
    """The mean over tasks at each length."""
    lengths = sorted({cell.length for cell in entry.cells})
    if len(lengths) == 1:
        return [{**entry.overall.model_dump(), "length": lengths[0]}]
    return [
        {"length": at, **overall_block([c for c in entry.cells if c.length == at], bootstrap=False)}
        for at in lengths
    ]
