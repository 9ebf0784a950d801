"""Entries are computed from checked run folders; the leaderboard is a pure function of its entries."""

import json
import shutil
from pathlib import Path

import pytest

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard import add_run, build_leaderboard
from proteus_bench.leaderboard.entry import read_entry


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_zoo: Path, tiny_suite: str) -> Path:
    from proteus_bench.cli import invoke

    out = tmp_path_factory.mktemp("runs") / "run"
    patch = pytest.MonkeyPatch()
    with patch.context() as p:
        p.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
        code = invoke(["run", "--model", "titans+proteus", "--suite", tiny_suite, "--out", str(out), "--workers", "1"])
    assert code == 0
    return out


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_gives_one_entry_a_method_and_the_same_bytes_again(run_folder: Path, tmp_path: Path) -> None:
    board = tmp_path / "leaderboards"
    first = add_run(run_folder, board)
    assert [(a.model, a.new, a.rankable) for a in first] == [("titans+proteus", True, True), ("titans", True, True)]
    before = {path: path.read_bytes() for path in board.rglob("*.json")}
    assert all(not added.new for added in add_run(run_folder, board))
    (board / "leaderboard.json").unlink()
    build_leaderboard(board)
    assert {path: path.read_bytes() for path in board.rglob("*.json")} == before
    rows = json.loads((board / "leaderboard.json").read_text())["boards"][0]["rows"]
    assert {row["label"] for row in rows} == {"titans", "titans+proteus"}
    assert [row["overall"]["score"] for row in rows] == sorted((row["overall"]["score"] for row in rows), reverse=True)
    assert all(row["seeds"] == [0, 1] and row["tier"] == "V1" for row in rows)


def _change(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def test_a_changed_row_is_found_by_its_hash(run_folder: Path, tmp_path: Path) -> None:
    log = next((run_folder / "cells").glob("*s0-*[0-9a-f].jsonl"))
    _change(log, b'"strict":0', b'"strict":1')
    with pytest.raises(InvalidFileError, match="does not match its sha256"):
        add_run(run_folder, tmp_path / "board")
    assert not (tmp_path / "board").exists()


def _edit(run_folder: Path, change) -> None:  # type: ignore[no-untyped-def]
    path = run_folder / "run.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["records"][0]["cells"][0].update(score=0.987), "not the mean of its rows"),
        (lambda d: d["records"][0]["cells"][0].update(file="../../etc/passwd"), "no file of the run folder"),
        (lambda d: d["records"][0]["cells"][0].update(status="partial"), "finish the run first"),
        (lambda d: d["records"][0].update(seed=1), "another seed|stands twice"),
        (lambda d: d["records"][0]["identity"].update(seed=7), "not its identity's hash"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d.update(run_id="0" * 64), "run_id"),
        (lambda d: d["records"][0]["cells"][0].update(score=float("nan")), "NaN"),
        (lambda d: d["records"][0]["cells"].pop(), "not run on the same tasks|address"),
    ],
)
def test_a_run_file_that_does_not_add_up_is_refused(run_folder: Path, tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    _edit(run_folder, change)
    with pytest.raises(InvalidFileError, match=message) as caught:
        add_run(run_folder, tmp_path / "board")
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)
    assert not (tmp_path / "board").exists()


def test_a_symlink_out_of_the_folder_is_refused(run_folder: Path, tmp_path: Path) -> None:
    log = next((run_folder / "cells").glob("*s0-*[0-9a-f].jsonl"))
    shutil.move(log, tmp_path / "elsewhere")
    log.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidFileError, match="no file of the run folder"):
        add_run(run_folder, tmp_path / "board")


def test_other_values_under_the_same_identity_are_refused(run_folder: Path, tmp_path: Path) -> None:
    board = tmp_path / "board"
    added = add_run(run_folder, board)
    path = added[0].path
    entry = json.loads(path.read_text())
    entry["overall"]["score"] = 0.5
    path.write_text(json.dumps(entry))
    with pytest.raises(InvalidFileError, match="not overwritten"):
        add_run(run_folder, board)


def test_an_entry_under_a_wrong_name_or_a_wrong_identity_is_refused(run_folder: Path, tmp_path: Path) -> None:
    board = tmp_path / "board"
    path = add_run(run_folder, board)[0].path
    read_entry(path)
    path.rename(path.with_name("0" * 16 + ".json"))
    with pytest.raises(InvalidFileError, match="identity's hash"):
        build_leaderboard(board)
