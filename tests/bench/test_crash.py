"""kill -9 at every write, a full disk, two writers: a run and a leaderboard come back to the bytes of an undisturbed one."""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from proteus_bench.errors import BenchError, EnvironmentFault
from proteus_bench.leaderboard import Options, add_runs, build_leaderboard, merge, retire, submit, verify
from proteus_bench.leaderboard.schema import Statement
from proteus_bench.store import FolderLock, read_json, read_log

Work = Callable[[], object]
POINTS = ("fsync", "replace", "rename", "unlink", "truncate", "ftruncate")


def child(work: Work, before: Work = lambda: None) -> int:
    """Run `work` in a process of its own: its exit code, or minus the signal that ended it."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            before()
            result = work()
            code = result if isinstance(result, int) else 0
        except BenchError as error:
            os.write(2, f"{error}\n".encode())
            code = error.exit_code
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def killed_at(number: int) -> Work:
    """Arrange, in a child, for kill -9 right before the ``number``-th call that makes something durable."""

    def arrange() -> None:
        left = [number]
        for name in POINTS:
            real = getattr(os, name)

            def call(*args: object, real: Callable[..., object] = real, **more: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **more)

            setattr(os, name, call)

    return arrange


def survive(work: Work, look: Work, most: int = 400) -> int:
    """Kill `work` at its first write, then at its second, ... in one place, until it ends by itself: the number of kills.

    `look` examines what every kill has left.
    """
    for number in range(1, most):
        code = child(work, killed_at(number))
        if code == 0:
            return number - 1
        assert code == -signal.SIGKILL, code
        look()
    raise AssertionError("never finished")


def files(folder: Path, *odd: str) -> dict[str, bytes]:
    """Every file that is a result."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".seconds.jsonl", *odd))
    }


# -- runs


@pytest.fixture
def start(tiny_zoo: Path, tiny_suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Work]:
    """A small run into a folder: one method, one seed, two cells of two batches."""
    from proteus_bench.cli import invoke

    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
    monkeypatch.setenv("NO_COLOR", "1")

    def call(name: str) -> Work:
        out = str(tmp_path / name)
        args = ["run", "--model", "titans+proteus", "--no-twin", "--seeds", "1", "--limit", "2", "--batch-tokens", "512"]
        return lambda: invoke([*args, "--workers", "1", "--suite", tiny_suite, "--out", out])

    return call


def test_a_run_that_is_killed_at_any_write_resumes_to_the_same_bytes(start: Callable[[str], Work], tmp_path: Path) -> None:
    """The first write of every kind, and the last of the logs: between two of one kind is the same case again."""
    assert start("whole")() == 0  # in this process: the children find models and items loaded
    kinds, last = traced(start("traced"), tmp_path / "trace.txt")
    assert len(kinds) >= 12 and {"fsync .manifest.json.tmp", "replace run.json", "fsync items"} <= kinds.keys(), kinds
    kinds["fsync items, the last"] = last
    for kind, number in kinds.items():
        folder = tmp_path / f"killed{number}"
        assert child(start(folder.name), killed_at(number)) == -signal.SIGKILL, kind
        for path in folder.glob("*.json"):
            read_json(path)  # whole, or not there
        for path in (folder / "cells").glob("*.jsonl"):
            read_log(path)  # a torn last line at most
        assert child(start(folder.name)) == 0, kind
        assert files(folder, "timing.json") == files(tmp_path / "whole", "timing.json"), kind


def traced(work: Work, path: Path) -> tuple[dict[str, int], int]:
    """(kind of write -> number of the first such call, number of the last write of a log)."""

    def arrange() -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for name in POINTS:
            real = getattr(os, name)

            def call(*args: object, name: str = name, real: Callable[..., object] = real, **more: object) -> object:
                os.write(handle, f"{name} {kind_of(name, args)}\n".encode())
                return real(*args, **more)

            setattr(os, name, call)

    assert child(work, arrange) == 0
    lines = path.read_text().splitlines()
    return {line: lines.index(line) + 1 for line in dict.fromkeys(lines)}, len(lines) - lines[::-1].index("fsync items")


def kind_of(name: str, args: tuple[object, ...]) -> str:
    """What a call writes: a file by its name, a log by what it holds."""
    of_handle = name in ("fsync", "ftruncate", "truncate")
    target = os.readlink(f"/proc/self/fd/{args[0]}") if of_handle else str(args[-1])
    name = Path(target).name
    return "seconds" if name.endswith(".seconds.jsonl") else "items" if name.endswith(".jsonl") else name.partition("-")[0]


@pytest.mark.parametrize("room", [2000, 4500, 5500])
def test_a_run_on_a_full_disk_exits_4_and_resumes(start: Callable[[str], Work], tmp_path: Path, room: int, capfd) -> None:  # type: ignore[no-untyped-def]
    assert start("whole")() == 0
    capfd.readouterr()
    assert child(start("full"), lambda: full_disk(room)) == 4
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("proteus-bench: ")]
    assert len(told) == 1 and "cannot" in told[0] and "Traceback" not in told[0]
    assert child(start("full")) == 0
    assert files(tmp_path / "full", "timing.json") == files(tmp_path / "whole", "timing.json")


def full_disk(room: int) -> None:
    """No file can grow over ``room`` bytes: what a full disk does to a write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


# -- the leaderboard


@pytest.fixture
def options() -> Options:
    """V1 is enough here: what V2 reads, it does not write."""
    return Options(level=1)


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Path:
    submit([finished], tmp_path / "bundle.zip", Statement())
    return tmp_path / "bundle.zip"


@pytest.fixture
def whole(finished: Path, tmp_path: Path, options: Options) -> Path:
    add_runs([finished], tmp_path / "whole", options)
    return tmp_path / "whole"


def test_a_merge_that_is_killed_at_every_write_is_completed_by_repeating_it(
    bundle: Path, whole: Path, tmp_path: Path, options: Options
) -> None:
    board = tmp_path / "board"

    def look() -> None:
        if (board / "entries").is_dir():  # whatever stands is whole
            names = {path.stem for path in (board / "entries").glob("*.json")}
            found = verify(board, Options(level=0))
            assert {entry.id for entry in found.entries} == names

    kills = survive(lambda: merge(bundle, board, options) and None, look)
    assert kills >= 10
    assert files(board) == files(whole)


def test_a_bundle_is_there_whole_or_not_at_all(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def look() -> None:
        assert not out.exists() or verify(out, Options(level=1)).ok

    assert survive(lambda: None if out.exists() else submit([finished], out, Statement()) and None, look) >= 10
    assert verify(out, Options(level=1)).ok
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_build_and_a_retirement_survive_kills(whole: Path, tmp_path: Path) -> None:
    before = files(whole)
    (whole / "leaderboard.json").write_text("{}")
    survive(lambda: build_leaderboard(whole) and None, lambda: read_json(whole / "leaderboard.json"))
    assert files(whole) == before
    name = sorted((whole / "entries").glob("*.json"))[0].stem

    def work() -> None:
        if (whole / "entries" / f"{name}.json").exists():
            retire(name, whole, "a test")
        else:
            build_leaderboard(whole)

    survive(work, lambda: None)
    built = read_json(whole / "leaderboard.json")
    assert [row["id"] for row in built["retired"]] == [name]
    assert not (whole / "entries" / f"{name}.json").exists() and (whole / "archive" / f"{name}.json").exists()


@pytest.mark.parametrize("room", [3000, 5000, 15000])
def test_a_full_disk_leaves_the_leaderboard_as_it_was(
    bundle: Path, whole: Path, tmp_path: Path, options: Options, room: int
) -> None:
    board = tmp_path / "board"
    assert child(lambda: merge(bundle, board, options) and None, lambda: full_disk(room)) == 4
    for path in board.rglob("*.json"):
        read_json(path)
    assert child(lambda: merge(bundle, board, options) and None) == 0
    assert files(board) == files(whole)


def test_no_space_is_named(bundle: Path, tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        merge(bundle, tmp_path / "board", options)
    assert caught.value.exit_code == 4


def test_a_second_writer_is_refused_while_the_first_one_works(bundle: Path, whole: Path, options: Options) -> None:
    with FolderLock(whole):
        assert child(lambda: merge(bundle, whole, options) and None) == 4
    assert child(lambda: merge(bundle, whole, options) and None) == 0


def test_writers_that_try_again_all_get_in(finished: Path, tmp_path: Path, options: Options) -> None:
    """Three merges of different bundles at one time: no entry is lost, and the file holds all of them."""
    board = tmp_path / "board"
    bundles = []
    for number, label in enumerate(("titans", "titans+proteus")):
        bundles.append(tmp_path / f"{number}.zip")
        submit([_only(finished, label, tmp_path / f"run{number}")], bundles[-1], Statement(configs_tried=number + 1))

    def patiently(path: Path) -> Work:
        def work() -> None:
            for _ in range(200):
                try:
                    merge(path, board, options)
                    return
                except EnvironmentFault:
                    signal.sigtimedwait([], 0.02)

        return work

    pids = []
    for path in bundles:
        pid = os.fork()
        if pid == 0:
            os._exit(child(patiently(path)))
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    rows = read_json(board / "leaderboard.json")["boards"][0]["rows"]
    assert {row["label"] for row in rows} == {"titans", "titans+proteus"}
    assert verify(board, options).ok


def _only(finished: Path, label: str, folder: Path) -> Path:
    """The run with one of its methods."""
    import json
    import shutil

    from proteus_bench.store.run_file import run_id_of

    shutil.copytree(finished, folder)
    run = json.loads((folder / "run.json").read_text())
    run["records"] = [record for record in run["records"] if record["label"] == label]
    run["comparisons"] = []
    run["run_id"] = run_id_of([record["record_id"] for record in run["records"]])
    (folder / "run.json").write_text(json.dumps(run))
    return folder
