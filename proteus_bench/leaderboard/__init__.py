"""Entries computed from run folders, and the leaderboard built from entries. No torch."""

from proteus_bench.leaderboard.add import Added, add_run
from proteus_bench.leaderboard.build import build_leaderboard

__all__ = ["Added", "add_run", "build_leaderboard"]
