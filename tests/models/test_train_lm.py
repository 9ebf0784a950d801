"""Language models on token shards: recipes, sizes, dry runs, and whole trainings through the command line."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from corpus import write_corpus, write_texts
from processes import finish, free_port, start
from safetensors.torch import load_file

from proteus_bench.cli import invoke
from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.schedules import Capacity
from proteus_models import zoo
from proteus_models.decoder import MIXERS
from proteus_models.recipe import RecipeError
from proteus_models.sizes import SHAPES, TARGETS, count, sized
from proteus_models.train_estimate import block_cost, estimate
from proteus_models.train_lm import PAPER, load_lm, train_lm
from proteus_models.train_objective import Objective
from proteus_models.train_optim import factor, optimizers
from proteus_models.train_state import read_progress

ROOT = Path(__file__).parents[2]
RECIPE = """
kind = "lm"
name = "tiny-lm"
backbone = "gdn"
size = "micro"
schedule = "proteus(blocks=4)"
vocab_size = 3072

[model]
d_model = 25
n_layers = 2
n_heads = 3
head_k = 8
head_v = 8
mlp_hidden = 13
chunk = 16

[capacity]
axis = "key"
m0 = "learned"
origin = "document"

[training]
tokens = 15360
length = 64
batch_tokens = 512
micro_rows = 2
warmup_steps = 3
lr = 6e-4
eps = 1e-5
precision = "fp32"
save_minutes = 0
"""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def shards(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(texts, tmp_path_factory.mktemp("shards") / "s")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "tiny-lm.toml").write_text(RECIPE)
    return tmp_path / "tiny-lm.toml"


# --- recipes, sizes, dry runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixer", MIXERS)
def test_sizes_are_within_three_percent_of_their_names(mixer: str) -> None:
    axis = "hidden" if mixer in ("titans-mlp", "hope-attention") else "value"
    capacity = Capacity.static(axis=axis, span=8192, m0="learned" if mixer == "titans-mlp" else "zero")
    for size, target in TARGETS.items():
        config = sized(mixer, size, capacity=capacity, train_length=8192)
        assert abs(count(config) / target - 1) <= 0.03, size
        assert config.head_k % 16 == config.head_v % 16 == 0, "16 blocks of whole columns"
    assert SHAPES.keys() - TARGETS.keys() == {"micro"}


def test_the_paper_is_the_default_and_decay_spares_norms_gates_and_rates(recipe: Path) -> None:
    phase = load_lm(recipe).phase
    assert (PAPER["lr"], PAPER["weight_decay"], PAPER["shape"]) == (4e-4, 0.1, "cosine")
    assert phase.weight_decay == 0.1 and phase.decayed == "linear" and phase.shape == "cosine"
    steps = [factor(phase, step, step / 1000) for step in range(1000)]
    assert [steps[i] for i in (0, 3, 500, 999)] == pytest.approx([1 / 3, 1.0, 0.55, 0.1], abs=1e-4)
    for mixer in MIXERS:
        from test_packing import model

        made = model(mixer)
        names = {id(p): n for n, p in made.named_parameters()}
        (optimizer,) = optimizers(made, phase)
        decayed = {names[id(p)] for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
        assert "embed.weight" in decayed and {n for n in decayed if "mlp" in n}
        for part in ("norm", "gates", "rate", "m0", "w1", "conv", "bias", "persistent"):
            assert not {n for n in decayed if part in n}, (mixer, part)


def test_only_what_follows_the_machines_leaves_the_hash_alone(recipe: Path) -> None:
    own = load_lm(recipe).recipe.sha256
    for change in ({"training.micro_rows": 1}, {"training.recompute": True}, {"training.save_minutes": 5}):
        assert load_lm(recipe, change).recipe.sha256 == own
    for change in ({"training.lr": 1e-3}, {"schedule": "static"}, {"model.d_model": 27}, {"training.precision": "bf16"}):
        assert load_lm(recipe, change).recipe.sha256 != own


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('size = "micro"', 'size = "760m"', "760M"),
        ("lr = 6e-4", "learning_rate = 1", "unknown key 'learning_rate'"),
        ("tokens = 15360\n", "", "'tokens' is missing"),
        ("batch_tokens = 512", "batch_tokens = 500", "whole number of rows"),
        ('precision = "fp32"', 'precision = "fp16"', "bf16 or fp32"),
        ('"proteus(blocks=4)"', '"proteus(blocks=5)"', "5"),
        ('backbone = "gdn"', 'backbone = "transformer++"', "no fixed state"),
        ("n_heads", "heads", "heads"),
        ('axis = "key"', 'axis = "hidden"', "hidden"),
    ],
)
def test_a_wrong_recipe_is_refused_by_one_line(
    recipe: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert old in RECIPE
    recipe.write_text(RECIPE.replace(old, new))
    with pytest.raises(RecipeError, match=message):
        load_lm(recipe)
    assert invoke(["train", str(recipe), "--dry-run"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("size", TARGETS)
def test_a_dry_run_of_each_size(size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Static and short, so that it is quick; the shipped recipes run in the test of the documentation's commands."""
    path = tmp_path / "r.toml"
    path.write_text(
        f'kind = "lm"\nname = "r"\nbackbone = "retnet"\nsize = "{size}"\n[training]\ntokens = 1_000_000_000\nlength = 1024\n'
    )
    assert invoke(["train", str(path), "--dry-run", "--processes", "8", "--rate", "10000", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    n = plan["parameters"]
    assert abs(n / TARGETS[size] - 1) <= 0.03
    assert plan["steps"] == -(-1_000_000_000 // 2**19) and plan["tokens"] == plan["steps"] * 2**19
    assert plan["flops_a_token_6n"] == 6 * n and 0.95 < plan["flops_a_token"] / plan["flops_a_token_6n"] < 1.5
    assert plan["bytes_weights_gradients_adam"] == 16 * n // 8 < plan["bytes_a_process"]
    assert plan["hours"] == round(plan["tokens"] / 80_000 / 3600, 2)


def test_counted_flops_are_six_a_weight_and_recomputing_adds_a_forward(recipe: Path) -> None:
    config = sized("retnet", "30M", capacity=Capacity.static(axis="value", span=512), train_length=512, chunk=8)
    block = block_cost(config, 512)
    inside = (count(config) - config.vocab_size * config.d_model) / config.n_layers
    assert 1.0 < block.flops / 512 / (6 * inside) < 1.1 and block.flops == pytest.approx(3 * block.forward, rel=0.02)
    plain = estimate(load_lm(recipe))
    recipe.write_text(RECIPE.replace("save_minutes = 0", "recompute = true"))
    again = estimate(load_lm(recipe))
    assert again["flops_a_token"] > plain["flops_a_token"] and again["bytes_activations_fp32"] < plain["bytes_activations_fp32"]
    with pytest.raises(UsageError, match="shared by 3 processes"):
        estimate(load_lm(recipe), processes=3)


@pytest.mark.parametrize("mixer", MIXERS)
def test_bf16_computes_nearly_the_same_loss_with_32_bit_gradients(mixer: str) -> None:
    from test_packing import model

    made = model(mixer).float()
    ids = torch.randint(0, 30, (3, 40), generator=torch.Generator().manual_seed(0))
    kinds = torch.ones_like(ids)
    losses = []
    for precision in ("fp32", "bf16"):
        loss, _ = Objective(made, precision)(ids, ids, kinds, (ids.numel(), 0), None)
        losses.append(float(loss.detach()))
        made.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in made.parameters())
    assert losses[0] != losses[1] and abs(losses[0] - losses[1]) < 0.02


# --- whole trainings -----------------------------------------------------------------------------------------------------


def test_two_launched_processes_train_and_export_what_one_does_and_a_kill_changes_nothing(
    recipe: Path, shards: Path, tmp_path: Path
) -> None:
    """One process; one that is killed and resumed, bit for bit; two, launched under FSDP2 by the shipped plan, to 1e-5."""
    entry = Path("gdn+proteus(blocks=4)@micro") / "seed0"

    def command(out: str) -> list[str]:
        return ["-m", "proteus_bench", "train", str(recipe), "--data", str(shards), "--out", str(tmp_path / out)]

    (killed,) = start(command("killed"), 1)
    plan = str(ROOT / "runs" / "accelerate" / "fsdp2-8.yaml")
    launcher = ["-m", "accelerate.commands.launch", "--config_file", plan, "--main_process_port", free_port()]
    two = start([*launcher, "--num_processes", "2", *command("two")], 1)
    lm = load_lm(recipe)
    work = tmp_path / "killed" / ".work" / f"tiny-lm-{lm.recipe.sha256[:8]}-seed0"
    deadline = time.monotonic() + 240
    while (p := read_progress(work)) is None or p.step < 5:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    stopped = read_progress(work)
    assert stopped is not None and 5 <= stopped.step < 30
    whole = train_lm(lm, shards, 0, tmp_path / "one", report=lambda _: None)
    assert whole == tmp_path / "one" / entry
    resumed = train_lm(lm, shards, 0, tmp_path / "killed", report=lambda _: None)
    assert resumed is not None and whole is not None
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    said = finish(two)
    assert said[0].count("trained") == 1, "one of the two writes"
    a, b = (load_file(tmp_path / out / entry / "model.safetensors") for out in ("one", "two"))
    assert max(float((a[name] - b[name]).abs().max()) for name in a) <= 1e-5

    card = json.loads((whole / "card.json").read_text())
    assert card["status"] == "complete" and card["tokens"] == 15360 and card["protocol"] == "language model"
    assert "delta--chunk" in card["machine"]["kernels"]
    loaded = zoo.load("gdn", "proteus(blocks=4)", "micro", 0, root=tmp_path / "one")
    ids = torch.tensor([loaded.tokenizer.encode("the law of the river")])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported, tokenizer = AutoModelForCausalLM.from_pretrained(whole / "hf"), AutoTokenizer.from_pretrained(whole / "hf")
    assert tokenizer("the law of the river")["input_ids"] == ids[0].tolist() and tokenizer.eos_token == "<eos>"
    with torch.no_grad():
        assert torch.allclose(exported(ids).logits, loaded.model(ids), atol=1e-5)


def test_other_shards_do_not_continue_a_training(recipe: Path, shards: Path, texts: Path, tmp_path: Path) -> None:
    lm = load_lm(recipe)
    train_lm(lm, shards, 0, tmp_path / "out", report=lambda _: None)
    card = tmp_path / "out" / lm.entry / "seed0" / "card.json"
    card.unlink()
    write_corpus(texts, tmp_path / "other", shard_tokens=5000)
    with pytest.raises(InvalidFileError, match="another recipe or from other data"):
        train_lm(lm, tmp_path / "other", 0, tmp_path / "out", report=lambda _: None)


def test_the_command_refuses_what_it_cannot_train(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    micro = str(ROOT / "runs" / "gdn-micro.toml")
    for arguments, code, message in (
        (["train", str(recipe)], 2, "needs --data"),
        (["train"], 2, "a recipe, or --grid"),
        (["train", micro, "--grid", micro], 2, "a recipe, or --grid"),
        (["train", micro, "--data", str(tmp_path)], 2, "are for a language model"),
        (["train", str(recipe), "--dry-run", "--set", "schedule"], 2, "KEY=VALUE"),
        (["train", str(recipe), "--dry-run", "--set", "modell.d_model=3"], 3, "no table 'modell'"),
        (["train", str(recipe), "--data", str(tmp_path), "--out", str(tmp_path / "o")], 3, "shards.json"),
        (["train", str(recipe), "--dry-run", "--rate", "0"], 2, "positive"),
        (["shards", str(tmp_path)], 2, "--file FILE or --dataset NAME"),
        (["shards", str(tmp_path), "--verify"], 3, "shards.json"),
    ):
        assert invoke(arguments) == code, arguments
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1, said
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert invoke(["train", micro]) == 2 and "one process" in capsys.readouterr().err
