"""Bundles, verification, entries computed from run folders, and the leaderboard built from entries. No torch up to V2."""

from proteus_bench.leaderboard.build import Built, build_leaderboard
from proteus_bench.leaderboard.bundle import submit
from proteus_bench.leaderboard.merge import Added, Merged, add_runs, merge, retire
from proteus_bench.leaderboard.verify import Options, Verification, verify

__all__ = [
    "Added",
    "Built",
    "Merged",
    "Options",
    "Verification",
    "add_runs",
    "build_leaderboard",
    "merge",
    "retire",
    "submit",
    "verify",
]
