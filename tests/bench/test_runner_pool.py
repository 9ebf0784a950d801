"""Cells on worker processes: errors stay theirs, a killed worker's cell is tried once more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proteus_bench.errors import InvalidFileError
from proteus_bench.runner.pool import Outcome, attempt, run_jobs


def work(job: tuple[str, str]) -> None:
    """Importable by the workers: what to do, and a folder to leave a trace in."""
    kind, folder = job
    trace = Path(folder) / kind
    if kind == "invalid":
        raise InvalidFileError("a bad file")
    if kind == "defect":
        raise ZeroDivisionError("a defect")
    if kind == "noisy":
        print("not for stdout")
    if kind == "killed once" and not trace.exists():
        trace.write_text("x")
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "killed always":
        os.kill(os.getpid(), signal.SIGKILL)
    trace.write_text(str(os.getpid()))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import this module by its name, so it has to have one that they can find."""
    folder = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(folder)
    name = Path(__file__).stem
    monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    monkeypatch.setattr(work, "__module__", name)


def test_every_job_gets_its_own_outcome(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kinds = ["fine", "invalid", "killed once", "noisy", "killed always", "defect"]
    ticks: list[int] = []
    jobs = [(kind, str(tmp_path)) for kind in kinds]
    outcomes = {job[0]: outcome for job, outcome in run_jobs(work, jobs, 2, lambda: ticks.append(1))}
    assert set(outcomes) == set(kinds)
    assert all(outcomes[kind] == Outcome() for kind in ("fine", "killed once", "noisy"))
    assert outcomes["invalid"] == Outcome("a bad file", 3)
    assert outcomes["defect"].error == "ZeroDivisionError: a defect" and "in work" in outcomes["defect"].trace
    assert "died twice" in str(outcomes["killed always"].error)
    assert ticks
    assert "not for stdout" not in capfd.readouterr().out
    assert int((tmp_path / "fine").read_text()) != os.getpid()


def test_one_worker_runs_in_this_process(tmp_path: Path) -> None:
    jobs = [("fine", str(tmp_path)), ("invalid", str(tmp_path))]
    outcomes = [outcome for _, outcome in run_jobs(work, jobs, 1, lambda: None)]
    assert outcomes == [Outcome(), Outcome("a bad file", 3)]
    assert int((tmp_path / "fine").read_text()) == os.getpid()


def test_an_interrupt_is_not_an_outcome() -> None:
    def interrupted(job: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted, None)


def test_workers_that_die_as_they_start_end_the_run_at_once(tmp_path: Path) -> None:
    """A script without a guard runs itself again in every worker."""
    source = Path(__file__).read_text().partition("@pytest.fixture")[0]
    call = f"jobs = [('fine', {str(tmp_path)!r})] * 4\nprint(list(run_jobs(work, jobs, 2, lambda: None)))\n"
    (tmp_path / "script.py").write_text(source + call)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Outcome" not in done.stdout
    faults = [line for line in done.stderr.splitlines() if line.startswith("proteus_bench.errors.EnvironmentFault")]
    assert faults == [
        "proteus_bench.errors.EnvironmentFault: worker processes die as they start (exit 1); a script that starts a run needs "
        "if __name__ == '__main__': around it"
    ]
    assert not (tmp_path / "fine").exists()
