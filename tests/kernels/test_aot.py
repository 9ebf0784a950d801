"""Every Triton kernel compiles for three architectures without a GPU: nothing spilled, shared memory within limits."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.triton

BENCH = Path(__file__).resolve().parents[2] / "kernels" / "bench"


def test_every_kernel_fits_every_architecture(compiler_environment: dict[str, str]) -> None:
    """One case a kernel at K = V = 128, the tightest; the committed table has all cases."""
    command = [sys.executable, str(BENCH / "aot.py"), "--first", "--sizes", "128"]
    done = subprocess.run(command, capture_output=True, text=True, env=compiler_environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "sm_80 | sm_90 | sm_100" in done.stdout and "delta_forward.carry" in done.stdout


def test_what_breaks_a_limit_is_named() -> None:
    spec = importlib.util.spec_from_file_location("bench_aot", BENCH / "aot.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    row = json.loads((BENCH / "aot.json").read_text())["rows"][0]
    assert module.broken_limits([row]) == []
    for broken in ({"spill_stores": 4}, {"spill_loads": 4}, {"shared": row["shared_limit"] + 1}, {"narrow": 1}):
        (line,) = module.broken_limits([row | broken])
        assert line.startswith(f"{row['kernel']} ({row['case']}) for sm_80 ")


def test_the_committed_table_holds_the_limits_at_both_sizes() -> None:
    rows = json.loads((BENCH / "aot.json").read_text())["rows"]
    assert {(r["arch"], r["case"].rpartition(" ")[2]) for r in rows} == {(a, f"K=V={n}") for a in (80, 90, 100) for n in (64, 128)}
    assert all(r["spill_stores"] == r["spill_loads"] == r["narrow"] == 0 and r["shared"] <= r["shared_limit"] for r in rows)
