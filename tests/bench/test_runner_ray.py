"""Cells on Ray: a grid with a killed worker comes out as the local one, byte for byte; faults are one line and exit 4."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.runner.environment import package_versions
from proteus_bench.runner.ray_pool import Needs, Place, _serve, needs_of
from proteus_bench.store import RunFolder

pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.ray
Environment = Callable[..., dict[str, str]]
SuiteAt = Callable[[Path, int], str]
Cli = Callable[..., Any]

MODEL = "titans+proteus"  # with its static twin
LENGTHS = (256, 384, 512)
MANY = 24
"""Items of a cell of the first suite: enough to be caught in between."""
GRID = Path(__file__).resolve().parents[2] / "docs" / "ray_grid.py"


def writers(folder: Path) -> dict[int, Path]:
    """Ray's workers that hold a cell's log below ``folder`` open, with that log."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if not (process.name.isdigit() and (process / "cmdline").read_bytes().startswith(b"ray::")):
                continue
            logs = [Path(os.readlink(handle)) for handle in (process / "fd").iterdir()]
        except OSError:  # it ended meanwhile
            continue
        mine = [log for log in logs if log.is_relative_to(folder) and ".seconds" not in log.name and log.suffix == ".jsonl"]
        if mine:
            found[int(process.name)] = mine[0]
    return found


def kill_one_writer(folder: Path, driver: subprocess.Popen[str]) -> None:
    """Kill -9 a worker in the midst of a cell: some of its items are in the log, others are not."""
    pid, log = next(iter(writers(folder).items())) if wait_for(lambda: writers(folder), driver, 0.02) else (0, folder)
    assert pid and wait_for(lambda: log.stat().st_size, driver, 0.0005), "no worker was seen in the midst of a cell"
    os.kill(pid, signal.SIGSTOP)
    rows = log.read_bytes().count(b"\n")
    os.kill(pid, signal.SIGKILL)
    assert 0 < rows < MANY


def wait_for(found: Callable[[], object], driver: subprocess.Popen[str], pause: float) -> bool:
    deadline = time.monotonic() + 300
    while driver.poll() is None and time.monotonic() < deadline:
        if found():
            return True
        time.sleep(pause)
    return False


def results(folder: Path) -> dict[str, bytes]:
    """Every file of every run but what it cost; without the commit, which may change while the test runs."""
    kept = [path for path in folder.rglob("*") if path.is_file() and path.name not in (".lock", "timing.json")]
    commit = re.compile(rb'"(commit|dirty)": .*')
    return {str(p.relative_to(folder)): commit.sub(b"", p.read_bytes()) for p in kept if ".seconds." not in p.name}


def test_a_grid_with_a_killed_worker_is_the_local_one(
    tiny_zoo: Path, environment: Environment, cli: Cli, suite_at: SuiteAt, tmp_path: Path
) -> None:
    suites = [suite_at(tmp_path, length) for length in LENGTHS]
    Path(suites[0]).write_text(Path(suites[0]).read_text().replace("n = 4", f"n = {MANY}"))
    flags = ("--batch-tokens", "1", "--seeds", "1")
    command = [sys.executable, str(GRID), str(tmp_path / "ray"), "--models", MODEL, "--suites", *suites, *flags]
    with subprocess.Popen(
        command, env=environment(tiny_zoo), cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            kill_one_writer(tmp_path / "ray", driver)
            said = driver.communicate(timeout=300)[1]
        finally:
            driver.kill()
    assert driver.returncode == 0, said
    for suite in suites:
        out = str(tmp_path / "local" / f"{MODEL}-{Path(suite).stem}")
        assert cli("run", "--model", MODEL, "--suite", suite, "--out", out, "--workers", "1", *flags).returncode == 0
    ray, local = results(tmp_path / "ray"), results(tmp_path / "local")
    assert len(local) == len(LENGTHS) * (2 * 2 + 3)  # cells; manifest, run.json, items.parquet
    assert ray.keys() == local.keys()
    assert [name for name in local if ray[name] != local[name]] == []


def test_an_interrupt_ends_the_cluster_and_a_repeated_command_finishes(
    tiny_zoo: Path, environment: Environment, cli: Cli, suite_at: SuiteAt, tmp_path: Path
) -> None:
    suite, out = suite_at(tmp_path, 512), tmp_path / "run"
    run = ["run", "--model", "gdn+proteus", "--suite", suite, "--out", str(out), "--batch-tokens", "1", "--workers", "1"]
    code = "import sys; from proteus_bench.cli import main; main(sys.argv[1:])"
    with subprocess.Popen(
        [sys.executable, "-c", code, *run, "--executor", "ray"], env=environment(tiny_zoo), cwd=tmp_path,
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # see test_runner.py
    ) as driver:  # fmt: skip
        try:
            assert wait_for(lambda: writers(out), driver, 0.02)
            os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all of them
            said = driver.communicate(timeout=120)[1]
        finally:
            driver.kill()
    assert driver.returncode == 130, said
    assert said.splitlines()[-1] == "proteus-bench: interrupted; what was done is kept"
    assert writers(out) == {}
    assert cli(*run).returncode == 0
    assert (out / "run.json").exists()


def test_a_model_on_cuda_takes_as_many_gpus_as_its_engine_splits_it_over() -> None:
    assert needs_of("cpu", ()) == needs_of("server", ()) == Needs(cpus=1, gpus=0)
    assert needs_of("cuda", ("max_model_len=4096",)) == Needs(cpus=1, gpus=1)
    assert needs_of("cuda", ("tensor_parallel_size=4",)) == Needs(cpus=1, gpus=4)


def test_a_cluster_that_does_not_answer_is_one_line(cli: Cli, tiny_suite: str) -> None:
    with socket.socket() as held:  # a port that nobody listens at
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = cli("run", "--model", "titans", "--suite", tiny_suite, "--executor", "ray", RAY_ADDRESS=address)
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.splitlines() == [
        f"proteus-bench: no Ray cluster answers at RAY_ADDRESS={address}: [Errno 111] Connection refused"
    ]
    wrong = cli("run", "--model", "titans", "--suite", tiny_suite, "--executor", "ray", RAY_ADDRESS="auto")
    assert wrong.returncode == 4 and "RAY_ADDRESS=auto is no address" in wrong.stderr and len(wrong.stderr.splitlines()) == 1


def test_a_missing_ray_is_one_line(cli: Cli, tiny_suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = cli("run", "--model", "titans", "--suite", tiny_suite, "--executor", "ray")
    assert done.returncode == 4
    assert done.stderr.splitlines() == ["proteus-bench: --executor ray needs Ray: pip install 'proteus-bench[ray]'"]


def test_a_node_that_cannot_stand_in_for_the_driver_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.prepare()
    folder.claim({"of": "this test"})
    here = Place(package_versions(), {}, str(tmp_path), "run", folder.manifest()["sha256"])
    done: list[str] = []
    assert _serve(done.append, "job", here).error is None and done == ["job"]
    other = replace(here, packages={**here.packages, "torch": "0.1"})
    missing = replace(here, folder="elsewhere")
    stale = replace(here, manifest="0" * 64)
    for place, words in ((other, "has torch .* driver has 0.1"), (missing, "does not see elsewhere"), (stale, "not see run")):
        found = _serve(done.append, "job", place)
        assert found.exit_code == 4 and re.search(words, str(found.error))
    assert done == ["job"]
