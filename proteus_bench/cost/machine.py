"""Which machine a second was measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

from proteus_bench.runner.environment import environment

CPUINFO = Path("/proc/cpuinfo")


def machine(torch_version: str, threads: int) -> dict[str, Any]:
    """Plain values of `leaderboard.cost.Machine`. Not the host's name: it says nothing about speed."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch_version,
    }


def program() -> str:
    """Version and commit of this program: other code has other speed."""
    here = environment()
    commit = f", commit {here['commit'][:12]}{' with changes' if here['dirty'] else ''}" if here["commit"] else ""
    return f"proteus-bench {here['proteus_bench']}{commit}"


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    name = found[1] if found else platform.processor() or platform.machine()
    return " ".join(name.split())[:200] or "unknown"


def load() -> float | None:
    """Processes that ran or waited for a core over the last minute; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None
