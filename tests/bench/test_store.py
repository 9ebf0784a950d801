"""The run folder survives: torn lines, flipped bytes, dead owners, folders that cannot be written."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.errors import BenchError, EnvironmentFault, InvalidFileError, UsageError
from proteus_bench.store import (
    CellKey,
    CellLog,
    FolderLock,
    RunFolder,
    loads_strict,
    prove_writable,
    read_log,
    write_json,
)
from proteus_bench.store.log import parse_log

ROWS = [{"index": i, "text": f"zeile {i} ü\n", "logprob": -0.1 * i} for i in range(5)]


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    log = CellLog(tmp_path / "cell.jsonl")
    log.append(ROWS[:2])
    log.append(ROWS[2:])
    log.close()
    return tmp_path / "cell.jsonl"


def test_rows_come_back_in_order(log_path: Path) -> None:
    assert read_log(log_path) == ROWS


def test_a_log_torn_at_any_byte_keeps_its_whole_lines_and_can_be_continued(log_path: Path) -> None:
    whole = log_path.read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    for cut in range(last, len(whole)):
        log_path.write_bytes(whole[:cut])
        log = CellLog(log_path)
        assert log.rows == ROWS[:4]
        log.append(ROWS[4:])
        log.close()
        assert log_path.read_bytes() == whole


@given(st.data())
def test_a_flipped_bit_is_found_and_its_line_is_named(data: st.DataObject) -> None:
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    path = Path("/nonexistent")
    lines = _bytes_of(rows)
    body = lines.rfind(b"\n", 0, -1)  # damage in the last line may look like a torn one; anywhere before it may not
    at = data.draw(st.integers(0, body - 1))
    bit = data.draw(st.integers(0, 7))
    broken = bytearray(lines)
    broken[at] ^= 1 << bit
    number = lines.count(b"\n", 0, at) + 1
    with pytest.raises(InvalidFileError, match=f"line {number}:"):
        parse_log(bytes(broken), str(path))


def _bytes_of(rows: list[dict]) -> bytes:
    from proteus_bench.store.log import _line

    return b"".join(_line(row) for row in rows)


def test_two_writers_of_one_log_exclude_each_other(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus_bench.store.log._TAKE_OVER_SECONDS", 0.2)
    first = CellLog(log_path)
    with pytest.raises(EnvironmentFault, match="another process"):
        CellLog(log_path)
    first.close()
    CellLog(log_path).close()


def test_a_locked_folder_refuses_and_the_lock_of_a_dead_process_does_not(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from proteus_bench.store import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, env=_env())
    assert owner.stdout is not None and owner.stdout.readline() == b"held\n"
    with (
        pytest.raises(EnvironmentFault, match=f"in use by another run .process {owner.pid}.") as caught,
        FolderLock(tmp_path),
    ):
        pass
    assert caught.value.exit_code == 4
    owner.kill()
    owner.wait()
    assert (tmp_path / ".lock").exists()
    with FolderLock(tmp_path):
        assert (tmp_path / ".lock").read_text().strip() == str(os.getpid())


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_a_folder_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(EnvironmentFault, match="cannot write to"):
            prove_writable(folder)


def test_a_failed_save_raises_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        write_json(path, {"a": 2})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_no_nan_is_ever_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "x.json", {"a": float("nan")})


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', "NaN", '{"a": 1e999}', "[" * 100 + "]" * 100, '{"a": "\\ud800"}', "{", "[" * 100_000, "\xff"],
)
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidFileError) as caught:
        loads_strict(text.encode("latin-1"), "file")
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


def test_a_folder_of_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.prepare()
    assert folder.claim({"spec": {"limit": 5}}) is False
    assert folder.claim({"spec": {"limit": 5}}) is True
    with pytest.raises(UsageError, match="limit: 5 there, 6 asked"):
        folder.claim({"spec": {"limit": 6}})


def test_a_damaged_manifest_is_found(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim({"spec": {"limit": 5}})
    data = json.loads(folder.manifest_path.read_text())
    data["plan"]["spec"]["limit"] = 7
    folder.manifest_path.write_text(json.dumps(data))
    with pytest.raises(InvalidFileError):
        folder.claim({"spec": {"limit": 5}})
    folder.manifest_path.write_text("[]")
    with pytest.raises(BenchError):
        folder.manifest()


def test_cells_that_differ_get_different_portable_files() -> None:
    names = {CellKey(m, "t", 8, s).file_name for m in ("a+b(x=1)", "a+b(x-1)", "../../etc", "a" * 500) for s in (0, 1)}
    assert len(names) == 8
    assert all("/" not in name and len(name) < 140 for name in names)


def test_a_file_system_without_locks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(EnvironmentFault, match="cannot lock .*cell.jsonl: No locks available"):
        CellLog(tmp_path / "cell.jsonl")
