"""Measuring what a schedule costs. The figures themselves are computed in `leaderboard.cost`."""
