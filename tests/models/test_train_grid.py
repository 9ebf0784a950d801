"""train --grid: bad grids are refused by one line; a killed grid goes on and gives the bytes of an unbroken training."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import finish, start

from proteus_bench.cli import invoke
from proteus_bench.errors import EnvironmentFault
from proteus_bench.store import FolderLock
from proteus_models import grid
from proteus_models import zoo as zoo_module
from proteus_models.checkpoint import load_checkpoint, sha256_file
from proteus_models.grid import kept_trunk
from proteus_models.recipe import changed, load_recipe
from proteus_models.train_grid import load_grid
from proteus_models.train_state import read_progress
from proteus_models.zoo import available

ROOT = Path(__file__).parents[2]
RECIPE = """
name = "tiny"
backbone = "retnet"

[model]
train_length = 64
d_model = 16
n_layers = 1
n_heads = 2
head_k = 8
head_v = 8
mlp_hidden = 16

[capacity]
axis = "value"

[trunk]
data = { max_facts = 1 }
warmup_steps = 2
stages = [{ length = 64, tokens = 5_120, batch_tokens = 128 }]

[branch]
data = { max_facts = 1 }
warmup_steps = 2
stages = [{ length = 64, tokens = 5_120, batch_tokens = 128 }]

[[branches]]
name = "retnet"
schedule = "static"

[[branches]]
name = "retnet+proteus"
schedule = "proteus(blocks=4)"
"""
GRID = """
[[entries]]
recipe = "tiny.toml"
seeds = [0, 1]

[[entries]]
recipe = "tiny.toml"
seeds = [1]
set = { name = "tiny-late", branches = [{ name = "retnet+late", schedule = "late(blocks=4)" }], "trunk.stages" = [] }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path


def test_entries_become_one_training_per_recipe_and_seed(folder: Path) -> None:
    jobs = load_grid(folder / "grid.toml", folder / "zoo")
    assert [(j.recipe.name, j.seed, j.branches) for j in jobs] == [
        ("tiny", 0, ("retnet", "retnet+proteus")), ("tiny", 1, ("retnet", "retnet+proteus")), ("tiny-late", 1, ("retnet+late",)),
    ]  # fmt: skip
    assert jobs[0].recipe == load_recipe(folder / "tiny.toml"), "an entry without changes is the recipe, hash and all"
    assert jobs[2].recipe.sha256 != jobs[0].recipe.sha256 and jobs[2].recipe.trunk.tokens == 0
    assert [j.tokens_left() for j in jobs] == [3 * 5_120, 3 * 5_120, 5_120]


def test_changes_go_into_the_tables_they_name() -> None:
    raw: dict[str, Any] = {"name": "a", "capacity": {"axis": "value"}}
    assert changed(raw, {"name": "b", "capacity.axis": "key"}) == {"name": "b", "capacity": {"axis": "key"}}
    assert raw["capacity"]["axis"] == "value"
    with pytest.raises(ValueError, match="no table 'model'"):
        changed(raw, {"model.chunk": 3})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [0, 1]", "seeds = [0, -1]", "whole numbers"),
        ("seeds = [0, 1]", "seed = [0, 1]", "unknown key 'seed'"),
        ("seeds = [0, 1]\n", "", "'seeds' is missing"),
        ("seeds = [0, 1]", 'seeds = [0, 1]\nbranches = ["gdn"]', "no branch 'gdn'"),
        ('name = "tiny-late", ', "", "must set its name"),
        ('"retnet+late"', '"retnet"', "would both train retnet seed 1"),
        ('"trunk.stages" = []', '"trunks.stages" = []', "no table 'trunks'"),
        ('"trunk.stages" = []', "first_seed = -1", "first_seed is a whole number"),
        ('"trunk.stages" = []', 'weights = "fp16"', "weights is fp32 or bf16"),
        ("late(blocks=4)", "latest", "latest"),
        ("tiny.toml", "absent.toml", "absent.toml"),
        ("[[entries]]", "[[entry]]", "unknown key 'entry'"),
    ],
)
def test_a_wrong_grid_is_refused_before_anything_is_trained(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert old in GRID
    (folder / "grid.toml").write_text(GRID.replace(old, new))
    assert invoke(["train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo")]) in (2, 3)
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (folder / "zoo").exists()


def test_the_shipped_recipes_keep_their_work_folders() -> None:
    folders = {
        "gdn-micro": "gdn-micro-b5707391-seed0", "titans-micro": "titans-micro-24839491-seed0",
    }  # fmt: skip
    for name, expected in folders.items():
        assert grid.work_folder(load_recipe(ROOT / "runs" / f"{name}.toml"), 0, Path()).name == expected


def test_a_dry_run_counts_what_is_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo"), "--dry-run", "--json"]
    assert invoke([*ask, "--rate", "1000", "--workers", "2"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["tokens_left"] == 7 * 5_120 and plan["hours"] == round(7 * 5_120 / 2000 / 3600, 2)
    done = folder / "zoo" / "retnet" / "seed0"
    done.mkdir(parents=True)
    (done / "card.json").write_text("{}")
    assert invoke(ask) == 0
    assert json.loads(capsys.readouterr().out)["trainings"][0]["missing"] == ["retnet+proteus"]
    shared = GRID.replace(', "trunk.stages" = []', "")
    (folder / "grid.toml").write_text(shared)
    assert invoke(ask) == 0
    left = [job["tokens_left"] for job in json.loads(capsys.readouterr().out)["trainings"]]
    assert left == [2 * 5_120, 3 * 5_120, 5_120], "a trunk that an earlier training will keep is not counted again"


def trainings(folder: Path) -> int:
    """How many are running: each holds the lock of its work folder for as long as its process lives."""
    held = 0
    for job in load_grid(folder / "grid.toml", folder / "zoo"):
        if not job.work.exists():
            continue
        try:
            with FolderLock(job.work):
                pass
        except EnvironmentFault:
            held += 1
    return held


@contextlib.contextmanager
def begun(folder: Path, step: int) -> Any:
    """A running grid command with two trainings, whose first has saved a state at `step` or later."""
    command = ["-m", "proteus_bench", "train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo"), "--workers", "2"]
    (process,) = start([*command, "--save-every", "0"], 1)
    job = load_grid(folder / "grid.toml", folder / "zoo")[0]
    try:
        deadline = time.monotonic() + 240
        while (p := read_progress(job.work / "trunk")) is None or p.step < step or trainings(folder) < 2:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_grid_leaves_no_training_behind_and_goes_on_to_the_same_bytes(folder: Path) -> None:
    (folder / "grid.toml").write_text(GRID[: GRID.index("[[entries]]", 12)])
    with begun(folder, 8) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        stop = time.monotonic() + 60
        while trainings(folder):
            assert time.monotonic() < stop, "a worker outlived the command"
            time.sleep(0.05)
        job = load_grid(folder / "grid.toml", folder / "zoo")[0]
        stopped = read_progress(job.work / "trunk")
        assert stopped is not None and stopped.step >= 8 and job.missing
        assert 0 < job.tokens_left() < 3 * 5_120
    (again,) = start(
        ["-m", "proteus_bench", "train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo"), "--workers", "2"], 1
    )
    (said,) = finish([again])
    assert "2 of 2 trainings are in" in said and "[2/2]" in said
    assert all(not job.missing for job in load_grid(folder / "grid.toml", folder / "zoo"))
    grid.train_recipe(load_recipe(folder / "tiny.toml"), 0, folder / "work", zoo=folder / "whole", report=lambda _: None)
    for branch in ("retnet", "retnet+proteus"):
        one, two = (folder / zoo / branch / "seed0" / "model.safetensors" for zoo in ("whole", "zoo"))
        assert one.read_bytes() == two.read_bytes(), branch


def test_an_interrupted_grid_says_so_and_a_running_one_refuses_a_second(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with begun(folder, 1) as process:
        assert invoke(["train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo")]) == 4
        assert "in use by another run" in capsys.readouterr().err
        os.kill(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 130 and "interrupted; what was done is kept" in said
        assert not trainings(folder)


def test_a_finished_trunk_is_kept_and_branched_from_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A later recipe with the same trunk trains its branch only, to the bytes that it would have beside the first one."""
    more = '[[entries]]\nrecipe = "tiny.toml"\nseeds = [0]\nset = { name = "b", branches = [{ name = "x", schedule = "%s" }]%s }\n'
    (folder / "grid.toml").write_text(more % ("late(blocks=4)", ""))
    (folder / "other.toml").write_text(more % ("late(blocks=4)", ', "trunk.lr" = 1e-3'))
    zoo, own, stranger = folder / "shipped", folder / "own", folder / "stranger"
    grid.train_recipe(load_recipe(folder / "tiny.toml"), 0, zoo / ".work", zoo=zoo, only=("retnet",), report=lambda _: None)
    (kept,) = (zoo / "trunks").glob("retnet-*/seed0/model.safetensors")
    assert [e.path.name for e in available(zoo)] == ["retnet"], "a trunk is not listed as a model"

    def trained(file: str, out: Path, trunks: tuple[Path, ...]) -> tuple[list[str], dict[str, Any]]:
        (job,) = load_grid(folder / file, out, trunks)
        rows: list[dict[str, Any]] = []
        assert job.tokens_left() == (5_120 if kept_trunk(job.recipe, 0, trunks) else 2 * 5_120)
        grid.train_recipe(job.recipe, 0, out / ".work", zoo=out, report=rows.append, trunks=job.trunks)
        return [row["model"] for row in rows], json.loads((out / "x/seed0/card.json").read_text())

    phases, card = trained("grid.toml", own, (zoo,))
    assert "trunk" not in phases and card["trunk_sha256"] == sha256_file(kept) and card["trunk"]["tokens"] == 5_120
    phases, again = trained("grid.toml", folder / "anew", ())
    assert "trunk" in phases and again["trunk_sha256"] == card["trunk_sha256"]
    assert sha256_file(own / "x/seed0/model.safetensors") == sha256_file(folder / "anew/x/seed0/model.safetensors")
    phases, card = trained("other.toml", stranger, (zoo,))
    assert "trunk" in phases and card["trunk_sha256"] != sha256_file(kept), "another trunk is another training"

    (kept.parent / "card.json").write_text("{}")
    ask = ["train", str(folder / "tiny.toml"), "--out", str(zoo)]
    assert invoke(ask) == 3
    said = capsys.readouterr().err
    assert "not the card of a trunk" in said and said.count("\n") == 1


def test_replicates_of_a_recipe_with_a_first_seed_are_those_seeds_of_the_other(folder: Path) -> None:
    """Seed 0 of a recipe with first_seed = 1 is drawn as seed 1 is, and may branch from the same kept trunk."""
    (folder / "later.toml").write_text(RECIPE.replace('"tiny"', '"later"\nfirst_seed = 1').replace('"retnet', '"retnet@b').replace(
        'backbone = "retnet@b"', 'backbone = "retnet"').replace('"retnet@b+proteus"', '"retnet+proteus@b"'))
    zoo = folder / "zoo"
    for name, seed, branch in (("tiny", 1, "retnet"), ("later", 0, "retnet@b")):
        recipe = load_recipe(folder / f"{name}.toml")
        grid.train_recipe(recipe, seed, zoo / ".work", zoo=zoo, only=(branch,), report=lambda _: None)
    assert len(list((zoo / "trunks").glob("*/seed*"))) == 1
    assert sha256_file(zoo / "retnet/seed1/model.safetensors") == sha256_file(zoo / "retnet@b/seed0/model.safetensors")
    cards = [json.loads((zoo / name / "card.json").read_text()) for name in ("retnet/seed1", "retnet@b/seed0")]
    assert [(card["seed"], card["drawn_with"]) for card in cards] == [(1, 1), (0, 1)]


def test_weights_in_bf16_are_the_rounded_ones_of_the_same_training(folder: Path) -> None:
    """Half of the file; the model that is loaded has the rounded matrices, its vectors and its trunk are whole."""
    (folder / "half.toml").write_text(RECIPE.replace('"tiny"', '"tiny"\nweights = "bf16"'))
    for name, zoo in (("tiny", folder / "whole"), ("half", folder / "half")):
        grid.train_recipe(load_recipe(folder / f"{name}.toml"), 0, zoo / ".work", zoo=zoo, report=lambda _: None)
    (whole, card, _), (half, half_card, _) = (load_checkpoint(folder / name / "retnet" / "seed0") for name in ("whole", "half"))
    assert ("weights" in card, half_card["weights"]) == (False, "bf16") and card["trunk_sha256"] == half_card["trunk_sha256"]
    rounded = 0
    for (name, one), other in zip(whole.state_dict().items(), half.state_dict().values(), strict=True):
        assert other.dtype == torch.float32
        assert torch.equal(one.bfloat16().float() if one.ndim > 1 else one, other), name
        rounded += not torch.equal(one, other)
    assert rounded
    sizes = [(folder / name / "retnet" / "seed0" / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    # a model in fp32 is not the model that the other recipe asks for
    again = folder / "again"
    grid.train_recipe(
        load_recipe(folder / "half.toml"), 0, again / ".work", zoo=again, trunks=(folder / "whole",), report=lambda _: None
    )
    assert (again / "retnet/seed0/model.safetensors").read_bytes() == (folder / "half/retnet/seed0/model.safetensors").read_bytes()


def test_own_trunks_are_trained_though_the_shipped_zoo_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, recipe = folder / "shipped", str(folder / "tiny.toml")
    grid.train_recipe(load_recipe(folder / "tiny.toml"), 0, shipped / ".work", zoo=shipped, only=("retnet",), report=lambda _: None)
    monkeypatch.setattr(zoo_module, "zoo_root", lambda: shipped)
    monkeypatch.setattr(grid, "zoo_root", lambda: shipped)
    assert invoke(["train", recipe, "--out", str(folder / "taken")]) == 0
    assert invoke(["train", recipe, "--out", str(folder / "own"), "--own-trunks"]) == 0
    assert not (folder / "taken" / "trunks").exists() and list((folder / "own" / "trunks").iterdir())
    one, two = (folder / out / "retnet" / "seed0" / "model.safetensors" for out in ("taken", "own"))
    assert one.read_bytes() == two.read_bytes()


def test_a_training_that_cannot_start_fails_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = load_grid(folder / "grid.toml", folder / "zoo")[0].work
    (work / "trunk").mkdir(parents=True)
    (work / "trunk" / "state.safetensors").write_bytes(b"\xff" * 64)
    (folder / "grid.toml").write_text(GRID.replace("seeds = [0, 1]", "seeds = [0]"))
    assert invoke(["train", "--grid", str(folder / "grid.toml"), "--out", str(folder / "zoo"), "--workers", "1", "--json"]) == 1
    out = capsys.readouterr()
    assert list(json.loads(out.out)["failed"]) == ["tiny seed 0"] and "not a training state" in out.err
    assert (folder / "zoo" / "retnet+late" / "seed1" / "card.json").exists()
