"""Every Triton kernel compiles for three architectures without a GPU: nothing spilled, shared memory within limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.triton

BENCH = Path(__file__).resolve().parents[2] / "kernels" / "bench"


def compiled(environment: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / "aot.py"), *options]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_every_kernel_fits_every_architecture(compiler_environment: dict[str, str]) -> None:
    """One case a kernel at K = V = 128, the tightest; the committed table has all cases."""
    done = compiled(compiler_environment, "--first", "--sizes", "128")
    assert done.returncode == 0, done.stderr
    assert "sm_80 | sm_90 | sm_100" in done.stdout and "delta_forward.carry" in done.stdout


def test_a_kernel_that_cannot_fit_is_refused(compiler_environment: dict[str, str]) -> None:
    """Negative control: with 1024 key rows in registers the states spill, and the command says which and fails."""
    done = compiled(compiler_environment, "--first", "--sizes", "1024", "--arch", "80")
    assert done.returncode == 1 and "titans_forward.states_forward" in done.stderr and "spills" in done.stderr


def test_the_committed_table_holds_the_limits_at_both_sizes() -> None:
    rows = json.loads((BENCH / "aot.json").read_text())["rows"]
    assert {(r["arch"], r["case"].rpartition(" ")[2]) for r in rows} == {(a, f"K=V={n}") for a in (80, 90, 100) for n in (64, 128)}
    assert all(r["spill_stores"] == r["spill_loads"] == r["narrow"] == 0 and r["shared"] <= r["shared_limit"] for r in rows)
