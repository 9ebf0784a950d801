"""The kernel benchmark checks first, times what passed, and holds its goals for a GPU to what was measured."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "kernels" / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.delitem(sys.modules, "run", raising=False)
    return importlib.import_module("run")


def measured(bench: ModuleType, op: str) -> list[dict[str, Any]]:
    shape = bench.Shape(B=1, T=48, H=1, K=16, V=16, C=16)
    return bench.measure(op, shape, "cpu", 2, bench.timer("cpu"), {"flops": 1e9, "bytes": 1e9})


def test_one_command_checks_times_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCH / "run.py"), "--device", "cpu", "--shapes", "1,48,1,16,16,16", "--repeats", "2"]
    done = subprocess.run([*command, "--ops", "delta", "--json", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {(r["backend"], r["mode"]): r for r in json.loads(out.read_text())["rows"]}
    for mode in ("static", "open", "key", "value"):
        row = rows["chunk", mode]
        assert row["check"]["error"] < 1e-5 and min(row[x]["ms"]["median"] for x in ("forward", "both")) > 0
    # static: 48 positions of 6CK + 4CV + 6KV + C^2/3 at K = V = C = 16; one row of 16 opens every 3 positions: mean 8.5
    assert rows["chunk", "static"]["forward"]["flops"] == pytest.approx(48 * (16 * 256 + 256 / 3))
    assert rows["chunk", "key"]["forward"]["flops"] == pytest.approx(48 * (12 * 16 * 8.5 + 4 * 256 + 256 / 3))
    here = importlib.util.find_spec("triton") is not None
    assert rows["triton", "static"]["skipped"] == ("triton needs CUDA" if here else "triton is not installed")


def test_what_fails_its_check_is_never_timed(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = importlib.import_module("ops")
    right = ops.call

    def wrong(op: str, backend: str, x: Any, shape: Any, mode: str) -> Any:
        y, state = right(op, backend, x, shape, mode)
        return (y * 1.001, state) if backend == "chunk" and mode == "key" else (y, state)

    monkeypatch.setattr(ops, "call", wrong)
    rows = {r["mode"]: r for r in measured(bench, "linear") if r["backend"] == "chunk"}
    assert not rows["key"]["check"]["passed"] and "forward" not in rows["key"]
    assert rows["static"]["check"]["passed"] and "forward" in rows["static"]
    assert "WRONG" in bench.line(rows["key"])


def test_goals_hold_for_good_rows_alone(bench: ModuleType) -> None:
    def row(op: str, mode: str, shape: str, over: float) -> dict[str, Any]:
        part = {"ms": {"median": 2.0}, "over static": {"median": over}}
        return {"op": op, "backend": "triton", "mode": mode, "shape": shape, "forward": part, "both": part}

    shape, wide = "B=8 T=8192 H=16 K=128 V=128 C=64", "B=4 T=8192 H=8 K=256 V=256 C=64"
    rows = [
        r for op in ("delta", "titans_linear")
        for r in (row(op, "static", shape, 1.0), row(op, "open", shape, 1.02), row(op, "key", wide, 0.8))
    ]  # fmt: skip
    assert bench.broken_goals(rows) == []
    assert len(bench.broken_goals([])) == 10  # forward time; full mask and schedule, forward and both: for two ops
    rows[1]["forward"] = {"ms": {"median": 2.0}, "over static": {"median": 1.04}}
    rows[0]["both"]["over fla static"] = {"median": 1.5}
    assert bench.broken_goals(rows) == [
        "delta forward, full mask over none: 1.040 > 1.03",
        *(f"delta {part} at {shape}: 1.500 of fla's time" for part in ("forward", "both")),
    ]


def test_goals_are_refused_on_a_cpu() -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--device", "cpu", "--assert-goals"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.strip().endswith("--assert-goals needs --device cuda")
