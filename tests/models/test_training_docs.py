"""Every command of docs/training.md: dry runs and shards are executed, launches are parsed and executed as dry runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from proteus_bench.cli import invoke
from proteus_models.recipe import load_recipe
from proteus_models.sizes import TARGETS
from proteus_models.train_grid import load_grid
from proteus_models.train_lm import load_lm

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "training.md").read_text()
COMMANDS = [line for block in TEXT.split("```sh\n")[1:] for line in block.split("```")[0].splitlines()]
LAUNCHES = [c for c in COMMANDS if c.startswith("accelerate launch")]
DRY = [c for c in COMMANDS if "--dry-run" in c]
TRAININGS = [c for c in COMMANDS if c.startswith("proteus-bench train") and c not in DRY]
RUNS = [c for c in COMMANDS if " run " in c]  # tests/bench/test_docs.py runs them dry
SHARDS = [c for c in COMMANDS if c.startswith("proteus-bench shards")]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_document_has_commands_and_no_kind_is_left_out() -> None:
    assert len(COMMANDS) == len(LAUNCHES) + len(DRY) + len(TRAININGS) + len(SHARDS) + len(RUNS) >= 12
    assert all((LAUNCHES, DRY, TRAININGS, SHARDS))


@pytest.mark.parametrize("command", DRY)
def test_dry_runs_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*shlex.split(command)[1:], "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    if "760m" in command:
        assert abs(plan["parameters"] / TARGETS["760M"] - 1) <= 0.03 and plan["steps"] == 95_368
        assert plan["bytes_a_process"] < 80e9
    if "--rate" in command:
        assert plan["hours"] > 0


@pytest.mark.parametrize("command", LAUNCHES)
def test_launches_name_a_configuration_that_accelerate_reads_and_a_training_that_their_processes_share(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    asked = launch_command_parser().parse_args(shlex.split(command)[2:])
    config = load_config_from_file(asked.config_file)
    assert asked.module and asked.training_script == "proteus_bench"
    assert config.mixed_precision == "no" and config.fsdp_config["fsdp_version"] == 2
    assert (config.num_machines > 1) == (asked.main_process_ip is not None)
    arguments = [*asked.training_script_args, "--dry-run", "--processes", str(config.num_processes), "--json"]
    assert invoke(arguments) == 0
    assert json.loads(capsys.readouterr().out)["processes"] == config.num_processes


@pytest.mark.parametrize("command", TRAININGS)
def test_trainings_are_complete_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*shlex.split(command)[1:], "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_shards_are_written_and_verified_and_the_hub_is_named_when_it_is_out_of_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local, verify, fineweb = (shlex.split(c)[1:] for c in SHARDS)
    local[1] = verify[1] = fineweb[1] = str(tmp_path / "shards")
    assert invoke([*local, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["shards"] > 1 and written["documents"] == 3
    assert invoke([*verify, "--json"]) == 0 and json.loads(capsys.readouterr().out) == written
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    fineweb[1] = str(tmp_path / "fineweb")
    fineweb[fineweb.index("--tokenizer") + 1] = str(ROOT / "models" / "zoo" / "tokenizer.json")
    fineweb[fineweb.index("--end-token") + 1] = "<eos>"
    assert invoke(fineweb) == 4
    said = capsys.readouterr().err
    assert "HuggingFaceFW/fineweb" in said and said.count("\n") == 1


def test_every_shipped_recipe_grid_and_configuration_loads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    sizes = {load_lm(path).size for path in sorted((ROOT / "runs" / "lm").glob("*.toml"))}
    assert sizes == {"micro", *TARGETS}
    for path in sorted((ROOT / "runs" / "grids").glob("*.toml")):
        assert load_grid(path, Path("zoo"))
    plans = [load_config_from_file(str(path)) for path in sorted((ROOT / "runs" / "accelerate").glob("*.yaml"))]
    assert len(plans) == 3
    assert load_recipe(ROOT / "runs" / "gdn-micro.toml").name == "gdn-micro"
