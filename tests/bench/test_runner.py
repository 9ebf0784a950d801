"""A run survives: kills, torn lines, flipped bytes, a second process; and repeating it changes no byte."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from proteus_bench.store import FolderLock, read_log

RUN = ("run", "--model", "titans+proteus", "--workers", "1")


def results(folder: Path) -> dict[str, bytes]:
    """Every result file; times are no results."""
    files = [folder / "run.json", folder / "manifest.json", folder / "items.parquet"]
    files += [path for path in (folder / "cells").iterdir() if not path.name.endswith(".seconds.jsonl")]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_zoo: Path, tiny_suite: str, environment) -> tuple[Path, dict]:
    """One uninterrupted run, with what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    code = "from proteus_bench.cli import main; main()"
    args = [*RUN, "--suite", tiny_suite, "--out", "run", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=folder, env=environment(tiny_zoo), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "run", json.loads(done.stdout)


def test_the_json_document_is_exactly_what_scripts_read(whole: tuple[Path, dict], tiny_suite: str) -> None:
    _, document = whole
    assert set(document) == {"cells", "comparisons"}
    assert len(document["cells"]) == 2 * 2 * 2
    for cell in document["cells"]:
        assert set(cell) == {
            "model", "schedule", "suite", "task", "length", "seed", "n", "score", "ci_low", "ci_high", "logprob",
        }  # fmt: skip
        assert cell["ci_low"] <= cell["score"] <= cell["ci_high"] and cell["logprob"] < 0
        assert cell["model"] == "titans" and cell["schedule"] in ("static", "proteus")
    for line in document["comparisons"]:
        assert set(line) == {
            "a",
            "b",
            "task",
            "length",
            "diff",
            "ci_low",
            "ci_high",
            "n_seeds",
            "verdict",
            "logprob_diff",
            "logprob_ci_low",
            "logprob_ci_high",
        }
        assert (line["a"], line["b"], line["n_seeds"]) == ("titans+proteus", "titans", 2)
        assert "2 seeds" in line["verdict"]
    assert [line["length"] for line in document["comparisons"]].count(None) == 1


def test_the_run_folder_holds_manifest_rows_run_file_and_table(whole: tuple[Path, dict]) -> None:
    folder, document = whole
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "complete" and len(run["records"]) == 4
    by_cell = {(r["schedule"], r["seed"], c["task"]): c for r in run["records"] for c in r["cells"]}
    for cell in document["cells"]:
        held = by_cell[cell["schedule"], cell["seed"], cell["task"]]
        assert (held["score"], held["logprob"], held["n"]) == (cell["score"], cell["logprob"], cell["n"])
        rows = read_log(folder / held["file"])
        assert len(rows) == held["rows"]
    table = pyarrow.parquet.read_table(folder / "items.parquet")
    assert table.num_rows == sum(c["rows"] for c in by_cell.values())
    assert not re.search(r"seconds|time|date", (folder / "run.json").read_text().replace('"train_length"', ""))


def test_a_run_names_its_kernels_and_another_kernel_is_another_run(whole, cli, tiny_suite: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = json.loads((whole[0] / "run.json").read_text())
    assert run["environment"]["kernels"]["cpu"]["titans_linear"] == "chunk"
    assert all("settings" not in record["identity"] for record in run["records"])
    args = (*RUN, "--suite", tiny_suite, "--limit", "1", "--seeds", "1", "--out", "run")
    done = cli(*args, PROTEUS_KERNELS="titans_linear--recurrent")
    assert done.returncode == 0, done.stderr
    other = json.loads((tmp_path / "run" / "run.json").read_text())
    assert other["environment"]["kernels"]["cpu"]["titans_linear"] == "recurrent"
    assert other["records"][0]["identity"]["settings"] == {"kernels": {"titans_linear": "recurrent"}}
    refused = cli(*args, PROTEUS_KERNELS="titan_linear--chunk")
    assert refused.returncode == 2
    assert refused.stderr.strip().endswith("no kernel 'titan_linear--chunk'; the nearest is titans_linear--chunk")


def test_repeating_the_command_changes_no_byte(whole: tuple[Path, dict], cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    folder, document = whole
    before = results(folder)
    again = cli(*RUN, "--suite", tiny_suite, "--out", str(folder), "--json")
    assert again.returncode == 0 and json.loads(again.stdout) == document
    assert results(folder) == before


def test_two_processes_give_the_bytes_of_one(whole, cli, tiny_suite: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = cli(*RUN[:3], "--suite", tiny_suite, "--workers", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "run") == results(whole[0])


def _start(tmp_path: Path, env: dict[str, str], suite: str, workers: str) -> "subprocess.Popen[bytes]":
    code = "from proteus_bench.cli import main; main()"
    args = [*RUN[:3], "--workers", workers, "--suite", suite, "--out", "run"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # a shell's background job ignores SIGINT, and so would its children: these tests may be one
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if sum(len(read_log(path)) for path in (tmp_path / "run" / "cells").glob("*[0-9a-f].jsonl")) >= 2:
            return process
        time.sleep(0.005)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_killed_in_the_middle_resumes_to_the_same_bytes(  # type: ignore[no-untyped-def]
    whole, cli, tiny_zoo: Path, tiny_suite: str, tmp_path: Path, workers: str, environment
) -> None:
    process = _start(tmp_path, environment(tiny_zoo), tiny_suite, workers)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "run" / "run.json").exists()
    done = cli(*RUN, "--suite", tiny_suite, "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stderr
    assert results(tmp_path / "run") == results(whole[0])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_exits_130_keeps_what_is_done_and_resumes(  # type: ignore[no-untyped-def]
    whole, cli, tiny_zoo: Path, tiny_suite: str, tmp_path: Path, workers: str, environment
) -> None:
    process = _start(tmp_path, environment(tiny_zoo), tiny_suite, workers)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does: the whole group gets it
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr and b"interrupted" in stderr
    assert sum(len(read_log(path)) for path in (tmp_path / "run" / "cells").glob("*[0-9a-f].jsonl")) >= 2
    assert cli(*RUN, "--suite", tiny_suite, "--out", "run").returncode == 0
    assert results(tmp_path / "run") == results(whole[0])


def test_a_torn_last_line_is_answered_again(whole, cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    folder, _ = whole
    before = results(folder)
    log = sorted((folder / "cells").glob("*[0-9a-f].jsonl"))[0]
    log.write_bytes(log.read_bytes()[:-7])
    assert cli(*RUN, "--suite", tiny_suite, "--out", str(folder)).returncode == 0
    assert results(folder) == before


def test_a_flipped_byte_ends_the_run_with_the_line(whole, cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    folder, _ = whole
    log = sorted((folder / "cells").glob("*[0-9a-f].jsonl"))[0]
    good = log.read_bytes()
    broken = bytearray(good)
    broken[good.index(b"\n") + 40] ^= 1
    log.write_bytes(bytes(broken))
    done = cli(*RUN, "--suite", tiny_suite, "--out", str(folder))
    log.write_bytes(good)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith("proteus-bench: ") and "line 2:" in done.stderr


def test_a_folder_in_use_and_a_folder_of_another_run_are_refused(whole, cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    folder, _ = whole
    with FolderLock(folder):
        used = cli(*RUN, "--suite", tiny_suite, "--out", str(folder))
    assert used.returncode == 4 and "in use by another run" in used.stderr
    other = cli(*RUN, "--suite", tiny_suite, "--out", str(folder), "--limit", "1")
    assert other.returncode == 2 and "limit" in other.stderr


def test_the_default_folder_is_printed_and_found_again(cli, tiny_suite: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = cli(*RUN, "--suite", tiny_suite, "--limit", "1", "--seeds", "1")
    assert first.returncode == 0, first.stderr
    (folder,) = (tmp_path / "runs-out").iterdir()
    assert f"run folder: runs-out/{folder.name}" in first.stdout
    assert json.loads((folder / "run.json").read_text())["status"] == "partial"
    for part in ("--limit 1", "--seeds 1", "one seed", "memory open along positions", "key_norm=before_mask"):
        assert part in first.stdout, part
    second = cli(*RUN, "--suite", tiny_suite, "--limit", "1", "--seeds", "1")
    assert "resuming" in second.stderr and len(list((tmp_path / "runs-out").iterdir())) == 1


def test_a_model_without_a_memory_is_not_drawn_as_one(cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    """Softmax attention keeps every token: there is nothing that opens, and no state of a size."""
    done = cli("run", "--model", "transformer++", "--suite", tiny_suite, "--limit", "1", "--workers", "1", zoo=None)
    assert done.returncode == 0, done.stderr
    assert "memory open" not in done.stdout and "state 0 bytes" not in done.stdout
    assert "transformer++: 758,656 parameters, trained on texts of 8,192 tokens" in done.stdout


def test_equivalent_gates_are_named_and_shown_once(cli, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    gates = "proteus(gate=write),proteus(gate=read)"
    done = cli(*RUN, "--suite", tiny_suite, "--limit", "1", "--seeds", "1", "--schedules", gates, "--json")
    assert done.returncode == 0, done.stderr
    assert {cell["schedule"] for cell in json.loads(done.stdout)["cells"]} == {
        "proteus",
        "proteus(gate=read)",
        "static",
    }


def test_a_plan_is_printed_and_nothing_is_written(cli, tiny_suite: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = cli(*RUN, "--suite", tiny_suite, "--dry-run")
    assert done.returncode == 0 and "8 cells" in done.stdout
    as_json = cli(*RUN, "--suite", tiny_suite, "--dry-run", "--json", "--schedules", "proteus(gate=write)")
    plan = json.loads(as_json.stdout)
    assert len(plan["cells"]) == 8
    assert not (tmp_path / "runs-out").exists()
