"""Bad input: one clear line and the right exit code. Good input: fast help, one JSON document."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def _one_line(done: Any, code: int, *parts: str) -> None:
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("proteus-bench: ")]
    assert len(lines) == 1, done.stderr
    for part in parts:
        assert part in lines[0], lines[0]


def test_help_is_fast_and_loads_nothing_heavy(environment) -> None:  # type: ignore[no-untyped-def]
    code = (
        "import sys; from proteus_bench.cli import invoke; invoke(['--help']);"
        "sys.exit(bool({'torch', 'numpy', 'pydantic', 'scipy', 'proteus_tasks'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(None), capture_output=True).returncode == 0
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        code = "from proteus_bench.cli import main; main()"
        subprocess.run([sys.executable, "-c", code, "--help"], env=environment(None), capture_output=True, check=True)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.3, seconds


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["--model", "titens+proteus"], 2, ["unknown model 'titens'", "did you mean 'titans'"]),
        (["--model", "titans+proteous"], 2, ["unknown schedule 'proteous'", "did you mean 'proteus'"]),
        (["--model", "titans+proteus(bloks=4)"], 2, ["bloks", "blocks"]),
        (["--model", "titans@micor"], 2, ["size", "micro"]),
        (["--model", "titans", "--schedules", "lat"], 2, ["late"]),
        (["--model", "titans+proteus(blocks=5)"], 2, ["5 blocks do not divide", "16"]),
        (["--model", "titans+proteus(axis=hidden)"], 2, ["hidden"]),
        (["--model", "titans@760m"], 2, ["no trained weights", "titans@micro"]),
        (["--model", "titans", "--seeds", "9"], 2, ["--seeds 9", "2 seed"]),
        (["--model", "titans", "--limit", "0"], 2, ["limit"]),
        (["--model", "titans", "--limti", "3"], 2, ["--limit"]),
        (["--model", "titans", "--executor", "slurm"], 2, ["executor", "local"]),
        (["--model", "hf:./ckpt"], 2, ["no folder with a config.json"]),
        (["--model", "titans", "--chat"], 2, ["without a chat template"]),
        (["--model", "titans", "--dtype", "bfloat16"], 2, ["float32"]),
    ],
)
def test_a_bad_request_is_one_line_with_its_code(cli, tiny_suite: str, args, code: int, parts) -> None:  # type: ignore[no-untyped-def]
    _one_line(cli("run", "--suite", tiny_suite, *args), code, *parts)


def test_an_unknown_suite_names_the_nearest(cli) -> None:  # type: ignore[no-untyped-def]
    _one_line(cli("run", "--model", "titans", "--suite", "niah16"), 2, "niah16", "niah16k")


def test_a_length_that_cannot_hold_the_task_says_which_can(cli, short_suite: str) -> None:  # type: ignore[no-untyped-def]
    _one_line(cli("run", "--model", "titans", "--suite", short_suite), 2, "the smallest length that can is")


@pytest.mark.parametrize("folder", ["file/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_refused_before_work(
    cli, tiny_suite: str, tmp_path: Path, folder: str
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("x")
    _one_line(cli("run", "--model", "titans", "--suite", tiny_suite, "--out", folder), 4, "cannot write to")


@pytest.fixture
def broken_zoo(tiny_zoo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_zoo, tmp_path / "zoo"))


@pytest.mark.parametrize("damage", ["cut", "header", "text", "nan"])
def test_a_corrupt_checkpoint_is_an_invalid_file(cli, tiny_suite: str, broken_zoo: Path, damage: str) -> None:  # type: ignore[no-untyped-def]
    path = broken_zoo / "titans" / "seed1" / "model.safetensors"
    data = path.read_bytes()
    changed = {
        "cut": data[:-100],
        "header": b"\xff" * 8 + data[8:],
        "text": b"not a checkpoint",
        "nan": data[:-4] + b"\x00\x00\xc0\x7f",
    }
    path.write_bytes(changed[damage])
    _one_line(cli("run", "--model", "titans", "--suite", tiny_suite, zoo=broken_zoo), 3, "model.safetensors")


def test_a_pickle_is_refused_and_never_loaded(cli, tiny_suite: str, broken_zoo: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    seed = broken_zoo / "titans" / "seed0"
    (seed / "model.safetensors").unlink()
    trap = tmp_path / "ran"
    (seed / "model.pt").write_bytes(f"cos\nsystem\n(S'touch {trap}'\ntR.".encode())
    _one_line(cli("run", "--model", "titans", "--suite", tiny_suite, zoo=broken_zoo), 3, "pickle", "safetensors")
    shutil.copy(seed / "model.pt", seed / "model.safetensors")
    _one_line(cli("run", "--model", "titans", "--suite", tiny_suite, zoo=broken_zoo), 3, "model.safetensors")
    assert not trap.exists()


def test_a_bad_settings_file_or_variable_is_refused(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "run.toml").write_text('model = "titans"\nsuite = "niah4k"\nlimits = 3\n')
    _one_line(cli("run", "--config", "run.toml"), 2, "unknown setting 'limits'", "did you mean 'limit'")
    _one_line(cli("run", "--config", "none.toml"), 3, "none.toml")
    _one_line(cli("run", PROTEUS_BENCH_MODLE="titans"), 2, "PROTEUS_BENCH_MODLE", "model")
    _one_line(cli("run"), 2, "--model")


@pytest.mark.parametrize("args", [["rnu"], ["list", "model"], ["check", "titens"], ["leaderboard", "ad", "x"]])
def test_unknown_words_are_usage_errors(cli, args: list[str]) -> None:  # type: ignore[no-untyped-def]
    _one_line(cli(*args), 2)


def test_a_run_folder_that_is_none_is_an_invalid_file(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _one_line(cli("leaderboard", "add", str(tmp_path)), 3, "run.json does not exist")
    assert not (tmp_path / "leaderboards").exists()


@pytest.mark.parametrize("what", ["models", "suites", "schedules", "tasks"])
def test_lists_are_one_document(cli, what: str) -> None:  # type: ignore[no-untyped-def]
    done = cli("list", what, "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)[what]
    assert len(rows) >= 4
    shown = cli("list", what)
    assert shown.returncode == 0
    if what == "suites":
        assert "niah (8)" in shown.stdout and "niah.single_1" not in shown.stdout
        assert {"niah.single_1", "niah.multikey_1"} <= set(next(row for row in rows if row["suite"] == "niah8k")["tasks"])


def test_the_doctor_finds_kernels_equal_to_their_definitions(cli) -> None:  # type: ignore[no-untyped-def]
    done = cli("doctor", "--json")
    checks = {row["check"]: row for row in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stdout
    assert checks["kernel gdn"]["state"] == checks["kernel titans"]["state"] == "ok"
    assert "delta--chunk" in checks["kernels on cpu"]["detail"]


def test_a_model_is_checked_and_a_plugin_list_is_printed(cli) -> None:  # type: ignore[no-untyped-def]
    done = cli("check", "titans+proteus", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] and {"lock invariant", "causality"} <= {row["name"] for row in document["checks"]}
    assert "proteus-bench" in cli("plugins").stdout


def test_generate_has_the_commands_of_the_task_plugins(cli) -> None:  # type: ignore[no-untyped-def]
    done = cli("generate", "--help")
    assert done.returncode == 0 and "niah" in done.stdout
