"""What a run looks like in a terminal. No torch."""

from proteus_bench.render.report import print_report
from proteus_bench.render.strip import schedule_strip

__all__ = ["print_report", "schedule_strip"]
