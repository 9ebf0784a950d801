"""`leaderboard add`."""

from __future__ import annotations

from pathlib import Path

from proteus_bench.cli.output import print_json


def add_command(run: Path, into: Path, *, as_json: bool) -> None:
    """Add the entries of one run folder. Raises InvalidFileError (exit 3) for a folder that fails its checks."""
    from proteus_bench.leaderboard import add_run

    added = add_run(run, into)
    if as_json:
        print_json({"entries": [{"id": a.id, "model": a.model, "path": str(a.path), "new": a.new} for a in added]})
        return
    for a in added:
        state = "added" if a.new else "already there"
        rank = "" if a.rankable else f", not ranked: {a.reason}"
        print(f"{a.model} on {a.suite}: {state} ({a.path}{rank})")
    print(f"rebuilt {into / 'leaderboard.json'}")
