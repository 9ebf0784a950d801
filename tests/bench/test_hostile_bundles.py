"""Bundles and zip files are hostile until they are opened: paths, links, bombs; each refused with exit 3 and one line."""

import io
import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proteus_bench.errors import BenchError
from proteus_bench.leaderboard import Options, submit, verify
from proteus_bench.leaderboard import opening as op
from proteus_bench.leaderboard.forms import safe_path
from proteus_bench.leaderboard.schema import Statement
from tests.bench.leaderboard_help import edit, look, manifest, refused, run_folder


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Path:
    submit([finished], tmp_path / "bundle", Statement())
    return tmp_path / "bundle"


# -- paths and links

PATHS = [
    "../../etc/passwd", "/etc/passwd", "runs/../../x", "a//b", "./a", "a/./b", "C:\\x", "a\\b", "con.json", "a/aux",
    ".hidden", "a/.lock", "a.", "a b", "a\u202eb", "\u00e9", "", "x" * 300, "a/" * 250 + "a", "-rf",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_the_bundle_or_means_something_else_elsewhere(bundle: Path, path: str) -> None:
    with pytest.raises(ValueError):
        safe_path(path)
    manifest(bundle, lambda m: m["runs"][0]["files"][0].update(path=path))
    refused(lambda: look(bundle), "bundle.json")


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "cells/../../../x", "cells/nothere.jsonl"])
def test_no_path_of_a_run_file_leaves_its_folder(finished: Path, tmp_path: Path, path: str) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "r"))
    edit(folder / "run.json", lambda run: run["records"][0]["cells"][0].update(file=path))
    refused(lambda: look(folder), "no plain relative path" if ".." in path or path[0] == "/" else "no file of the run folder")
    refused(lambda: submit([folder], tmp_path / "b", Statement()))


@pytest.mark.parametrize("where", ["file", "folder", "run.json", "bundle"])
def test_links_are_refused(bundle: Path, tmp_path: Path, where: str) -> None:
    run = run_folder(bundle)
    log = next((run / "cells").glob("*.jsonl"))
    victim = {"file": log, "folder": run / "cells", "run.json": run / "run.json", "bundle": bundle}[where]
    target = tmp_path / "elsewhere"
    victim.rename(target)
    victim.symlink_to(target)
    refused(lambda: look(bundle))


def test_devices_and_pipes_are_refused(bundle: Path) -> None:
    os.mkfifo(bundle / "pipe")
    refused(lambda: look(bundle), "pipe is a link or no plain file")


def test_files_that_are_not_listed_or_listed_and_not_there_are_refused(bundle: Path) -> None:
    (bundle / "extra.txt").write_text("x")
    refused(lambda: look(bundle), "extra.txt is there and not listed")
    (bundle / "extra.txt").unlink()
    log = next((run_folder(bundle) / "cells").glob("*.jsonl"))
    log.write_bytes(log.read_bytes() + b"x")
    refused(lambda: look(bundle), "bytes where bundle.json says")
    log.unlink()
    refused(lambda: look(bundle), "is listed and not there")


def test_a_flipped_byte_is_found(bundle: Path) -> None:
    log = next((run_folder(bundle) / "cells").glob("*.jsonl"))
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    found = verify(bundle, Options(level=1))
    assert not found.ok and found.refused[0] == (1, f"{log.relative_to(bundle)} does not match its sha256")


@pytest.mark.parametrize("twice", [lambda m: m["runs"][0]["files"].append(m["runs"][0]["files"][1]),
                                   lambda m: m["runs"].append(m["runs"][0])])  # fmt: skip
def test_a_file_is_listed_once(bundle: Path, twice: Callable[[Any], Any]) -> None:
    manifest(bundle, twice)
    refused(lambda: look(bundle), "twice")


def test_names_that_are_one_file_on_some_systems_are_refused(bundle: Path) -> None:
    run = run_folder(bundle)
    (run / "RUN.json").write_bytes((run / "run.json").read_bytes())

    def change(m: Any) -> None:
        block = next(f for f in m["runs"][0]["files"] if f["path"] == "run.json")
        m["runs"][0]["files"].append({**block, "path": "RUN.json"})

    manifest(bundle, change)
    refused(lambda: look(bundle), "are one file on some systems")


# -- zip files


def make_zip(path: Path, *members: tuple[Any, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def test_a_zip_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    bomb = make_zip(tmp_path / "b.zip", ("bundle.json", b"{}"), ("runs/x.jsonl", b"0" * (64 << 20)))
    assert bomb.stat().st_size < 100_000
    refused(lambda: look(bomb), "grows more than")


def test_a_member_that_lies_about_its_size_is_cut_off(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "b.zip", ("bundle.json", b"0123456789" * 100), method=zipfile.ZIP_STORED)
    data = path.read_bytes()
    lied = data.replace(struct.pack("<L", 1000), struct.pack("<L", 10))
    assert lied != data
    path.write_bytes(lied)
    refused(lambda: look(path))


def test_too_many_files_and_too_many_bytes_are_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, message in (
        ("MAX_FILES", 3, "more than 3 files"),
        ("MAX_BYTES", 1000, "in all"),
        ("MAX_FILE_BYTES", 10, "larger"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(op, name, value)
            refused(lambda: look(bundle), message)


def linked(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../../evil.json", b"x")], "no plain relative path"),
        ([("/etc/cron.d/x", b"x")], "no plain relative path"),
        ([(linked("link"), b"/etc/passwd")], "a link"),
        ([("runs/", b"")], ""),
        ([("a.json", b"1"), ("A.json", b"2")], "stands twice"),
        ([("bundle.json", b"[]")], "bundle.json"),
        ([("x.json", b"{}")], "neither bundle.json nor run.json"),
    ],
)
def test_hostile_zip_members_are_refused(tmp_path: Path, members: list[Any], message: str) -> None:
    refused(lambda: look(make_zip(tmp_path / "b.zip", *members)), message)
    assert not (tmp_path.parent / "evil.json").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no zip at all", b"PK\x05\x06" + b"\0" * 18, b"\x1f\x8b\x08" + b"\0" * 99])
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(data)
    refused(lambda: look(path))


def test_an_encrypted_member_is_refused(bundle: Path, tmp_path: Path, finished: Path) -> None:
    submit([finished], tmp_path / "b.zip", Statement())
    data = bytearray((tmp_path / "b.zip").read_bytes())
    at = data.find(b"PK\x01\x02")
    data[at + 8] |= 1
    (tmp_path / "b.zip").write_bytes(data)
    refused(lambda: look(tmp_path / "b.zip"), "encrypted")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_zip_never_crashes_the_verifier(finished: Path, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "fuzz.zip"
    if not (tmp_path / "whole.zip").exists():
        submit([finished], tmp_path / "whole.zip", Statement())
    body = bytearray((tmp_path / "whole.zip").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    path.write_bytes(body[: data.draw(st.integers(0, len(body)))] if data.draw(st.booleans()) else body)
    try:
        verify(path, Options(level=1))
    except BenchError as error:
        assert error.exit_code in (3, 4) and "\n" not in str(error)


def test_a_zip_made_by_others_reads_as_ours(finished: Path, tmp_path: Path) -> None:
    """Negative control: what is not hostile passes, whoever packed it."""
    submit([finished], tmp_path / "b", Statement())
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for path in sorted((tmp_path / "b").rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(tmp_path / "b")))
    (tmp_path / "other.zip").write_bytes(sink.getvalue())
    assert verify(tmp_path / "other.zip", Options(level=1)).ok
