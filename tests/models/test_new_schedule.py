"""The example schedule of the docs, installed as a stranger's distribution: trained from a kept trunk, scored beside its twin."""

import json

import pytest

from proteus_bench.cli import invoke
from proteus_bench.schedules import Capacity
from proteus_models import grid, zoo
from proteus_models.checkpoint import load_checkpoint, sha256_file
from proteus_models.recipe import load_recipe

PHASE = "warmup_steps = 2\nstages = [{ length = 64, tokens = 512, batch_tokens = 128 }]\n"
RECIPE = (
    'name = "tiny"\nbackbone = "gdn"\n[model]\ntrain_length = 4096\nd_model = 16\nn_layers = 1\nn_heads = 2\nhead_k = 8\n'
    f'head_v = 16\nmlp_hidden = 16\n[capacity]\naxis = "value"\n[trunk]\n{PHASE}[branch]\n{PHASE}'
    '[[branches]]\nname = "gdn"\nschedule = "static"\n'
)


@pytest.fixture
def installed(tmp_path, halfway):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return tmp_path


def test_it_is_ten_lines(halfway):
    lines = halfway.read_text("utf-8").split('"""', 2)[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 10


def test_it_trains_from_our_trunk_and_is_scored_beside_our_twin(installed, monkeypatch, capsys):
    """Trunk and static twin come from the shipped zoo, only the new branch is trained, and the folder is a zoo of its own."""
    shipped, own = installed / "shipped", installed / "own"
    grid.train_recipe(load_recipe(installed / "tiny.toml"), 3, shipped / ".work", zoo=shipped, report=lambda row: None)
    monkeypatch.setattr(zoo, "zoo_root", lambda: shipped)
    monkeypatch.setattr(grid, "zoo_root", lambda: shipped)
    train = ["train", str(installed / "tiny.toml"), "--schedule", "halfway", "--seed", "3", "--out", str(own)]
    assert invoke(train) == 0
    assert [p.name for p in (own / ".work").glob("*/*/")] == ["gdn+halfway"], "trunk and twin are not trained again"
    model, card, _ = load_checkpoint(own / "gdn+halfway/seed3")
    schedule = model.config.capacity.schedule
    assert (schedule.name, schedule.active_blocks(2048), schedule.active_blocks(2049)) == ("halfway", 8, 16)
    static, mine = (json.loads((own / name / "seed3/card.json").read_text()) for name in ("gdn", "gdn+halfway"))
    assert static["trunk_sha256"] == mine["trunk_sha256"] and static["branch_key"] != mine["branch_key"]
    assert sha256_file(own / "gdn/seed3/model.safetensors") == sha256_file(shipped / "gdn/seed3/model.safetensors")
    assert card["capacity"] == Capacity(schedule=schedule, axis="value").as_dict()

    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(own))
    capsys.readouterr()
    run = ["run", "--model", "gdn+halfway", "--suite", "niah4k", "--limit", "1", "--workers", "1", "--json"]
    assert invoke([*run, "--out", str(own / "run")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {(cell["schedule"], cell["seed"]) for cell in said["cells"]} == {("halfway", 3), ("static", 3)}
    assert all("halfway" in str(row) for row in said["comparisons"]) and said["comparisons"]


def test_a_schedule_that_is_not_installed_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    assert invoke(["train", str(tmp_path / "tiny.toml"), "--schedule", "halfwy", "--out", str(tmp_path / "zoo")]) == 2
    said = capsys.readouterr().err
    assert "unknown schedule 'halfwy'" in said and said.count("\n") == 1 and not (tmp_path / "zoo" / "gdn").exists()
