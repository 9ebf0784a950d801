"""Pages: the leaderboard, and the report of one run. Each is one HTML file that loads nothing."""

from proteus_bench.site.board_page import board_page, write_page
from proteus_bench.site.run_page import run_page, write_report

__all__ = ["board_page", "run_page", "write_page", "write_report"]
