"""`leaderboard` and `report`: what the commands do and say."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json
from proteus_bench.errors import UsageError


def statement_of(submitter: str | None, link: str | None, note: str | None, configs_tried: int | None) -> Any:
    """What a submitter says. UsageError (exit 2) for a link that is not https and for odd characters."""
    from pydantic import ValidationError

    from proteus_bench.leaderboard.forms import first_error
    from proteus_bench.leaderboard.schema import Statement

    try:
        return Statement(submitter=submitter, link=link, note=note, configs_tried=configs_tried)
    except ValidationError as error:
        raise UsageError(first_error(error)) from error


def options_of(
    level: int, suites: Sequence[Path] | None, tokenizers: Sequence[Path] | None, items: int = 4,
    sample_seed: int | None = None, recipe: Path | None = None, work: Path | None = None, seed: int = 0,
) -> Any:  # fmt: skip
    """Options of a verification. V3 draws its items by a seed that nobody knew before, unless one is given."""
    from proteus_bench.leaderboard import Options
    from proteus_bench.leaderboard.rerun import Retraining, Sample

    drawn = sample_seed if sample_seed is not None else secrets.randbits(32)
    if level >= 3:
        _say(f"V3 asks {items} items a record again, drawn by --sample-seed {drawn}")
    again = None if recipe is None else Retraining(recipe, work or Path("runs-out") / "retrained", seed)
    return Options(
        level=level,
        suites=tuple(suites or ()),
        tokenizers=tuple(tokenizers or ()),
        sample=Sample(items, drawn),
        retraining=again,
        say=_say,
    )


def _say(text: str) -> None:
    print("".join(sign if sign.isprintable() else "?" for sign in text), file=sys.stderr, flush=True)


def submit_command(runs: Sequence[Path], out: Path, statement: Any, *, checkpoints: bool, as_json: bool) -> None:
    """Write a bundle, and say how large it is."""
    from proteus_bench.leaderboard import submit

    held = _checkpoints(runs) if checkpoints else {}
    name = submit(runs, out, statement, held)
    size = out.stat().st_size if out.is_file() else sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    if as_json:
        print_json({"bundle": str(out), "id": name, "bytes": size, "runs": len(runs), "checkpoints": len(held)})
        return
    print(f"{out}: {len(runs)} run(s), {len(held)} checkpoint(s), {size / 1e6:.1f} MB, id {name[:16]}")
    print(f"check it with: proteus-bench leaderboard verify {out} --level 2")


def _checkpoints(runs: Sequence[Path]) -> dict[str, Path]:
    """Folders of the zoo with the weights of the runs, by sha256. UsageError when one is not in the zoo."""
    from proteus_bench.backends.weights import zoo_root
    from proteus_bench.store.canonical import file_digest
    from proteus_bench.store.run_file import read_run_file
    from proteus_models import zoo

    folders = {
        file_digest(weights): weights.parent
        for entry in zoo.available(zoo_root())
        for seed in entry.seeds
        if (weights := entry.path / f"seed{seed}" / "model.safetensors").is_file()
    }
    wanted = {}
    for run in runs:
        for record in read_run_file(run / "run.json").records:
            sha = str(record.identity.get("checkpoint_sha256"))
            if sha not in folders:
                raise UsageError(f"the zoo has no weights of {record.label} seed {record.seed} (sha256 {sha[:12]})")
            wanted[sha] = folders[sha]
    return wanted


def verify_command(path: Path, options: Any, *, as_json: bool) -> int:
    """0 when the level was reached, 1 when something was refused (what is malformed raises: exit 3)."""
    from proteus_bench.leaderboard import verify

    found = verify(path, options)
    if as_json:
        print_json(
            {
                "path": str(path),
                "level": found.asked,
                "reached": found.reached,
                "ok": found.ok,
                "bundle": found.bundle,
                "runs": found.runs,
                "rows": found.rows,
                "refused": [{"level": level, "reason": reason} for level, reason in found.refused],
                "entries": [
                    {"id": e.id, "model": e.label, "suite": e.suite.name, "tier": e.tier, "ranked": e.ranked, "reason": e.reason}
                    for e in found.entries
                ],
            }
        )
    else:
        _print_verification(path, found)
    return 0 if found.ok else 1


def _print_verification(path: Path, found: Any) -> None:
    from proteus_bench.leaderboard.verify import LEVELS

    print(f"{path}: {found.runs} run(s), {found.rows} rows, {len(found.entries)} entries")
    for level, text in enumerate(LEVELS[: found.asked + 1]):
        reasons = [reason for at, reason in found.refused if at == level]
        state = "passed" if level <= found.reached else "REFUSED" if reasons else "not reached"
        print(f"{state:<12} {text}")
        for reason in reasons:
            print(f"             - {reason}")
    for entry in found.entries if found.ok else ():
        print(f"{entry.label} on {entry.suite.name}: " + (f"not ranked: {entry.reason}" if entry.reason else "ranks"))


def added_command(merged: Any, into: Path, *, as_json: bool) -> None:
    """What `add` and `merge` did. A page that stands is made again."""
    _renew_page(merged.built, into)
    if as_json:
        print_json(
            {
                "bundle": str(merged.bundle),
                "entries": [
                    {
                        "id": a.id, "model": a.model, "path": str(a.path), "new": a.new, "state": a.state,
                        "rankable": a.rankable, "reason": a.reason,
                    }
                    for a in merged.added
                ],
                "removed": list(merged.built.removed),
            }
        )  # fmt: skip
        return
    words = {"added": "added", "raised": "raised to a higher tier", "costed": "its cost was added", "there": "already there"}
    for a in merged.added:
        rank = "" if a.rankable else f", not ranked: {a.reason}"
        print(f"{a.model} on {a.suite}: {words[a.state]} ({a.path}{rank})")
    built_words(merged.built, into)


def _renew_page(built: Any, into: Path) -> None:
    if (into / "site").is_dir():
        from proteus_bench.site import write_page

        write_page(built.board, into / "site")


def built_words(built: Any, into: Path) -> None:
    """What a build wrote, and what is no longer there."""
    for name in built.removed:
        print(f"removed: {name} stood in {into / 'leaderboard.json'} and has no entry any more")
    print(f"rebuilt {built.path}")


def build_command(folder: Path, out: Path | None, *, as_json: bool) -> None:
    """Rebuild leaderboard.json and the page."""
    from proteus_bench.leaderboard import build_leaderboard
    from proteus_bench.site import write_page
    from proteus_bench.store import FolderLock, prove_writable

    if not (folder / "entries").is_dir():
        raise UsageError(f"{folder} is no leaderboard: it has no folder 'entries'")
    site = out if out is not None else folder / "site"
    prove_writable(site)
    with FolderLock(folder):
        built = build_leaderboard(folder)
        page = write_page(built.board, site)
    if as_json:
        rows = sum(len(board.rows) for board in built.board.boards)
        print_json({"leaderboard": str(built.path), "page": str(page), "rows": rows, "removed": list(built.removed)})
        return
    built_words(built, folder)
    print(f"page: {page} ({page.stat().st_size / 1000:.0f} kB)")


def retire_command(name: str, into: Path, reason: str) -> None:
    """Move an entry into the archive."""
    from proteus_bench.leaderboard import retire

    built = retire(name, into, reason)
    _renew_page(built, into)
    print(f"{name} is in the archive: {reason}")
    built_words(built, into)


def export_command(folder: Path, to: str, out: Path, timestamp: str | None, *, as_json: bool) -> None:
    """Write the entries as CSV or in the schema of Every Eval Ever."""
    from proteus_bench.leaderboard.export import export

    written = export(folder, to, out, timestamp)
    if as_json:
        print_json({"files": [str(path) for path in written]})
    else:
        print("\n".join(str(path) for path in written))


def report_command(run: Path, out: Path | None, *, as_json: bool) -> None:
    """Write the page of one run folder."""
    from proteus_bench.site import write_report

    path = write_report(run, out if out is not None else run / "report.html")
    if as_json:
        print_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        print(f"report: {path} ({path.stat().st_size / 1000:.0f} kB)")
