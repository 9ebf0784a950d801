"""Comparing run folders: exact pairs, equal capacity checked, corrected verdicts, gates. No torch."""

from proteus_bench.compare.report import Report, compare_runs

__all__ = ["Report", "compare_runs"]
