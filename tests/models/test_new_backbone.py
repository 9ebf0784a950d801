"""The example backbone of the docs, installed as a stranger's distribution: one file and one registry line are enough."""

from pathlib import Path

import pytest
import torch

from proteus_bench.errors import UsageError
from proteus_bench.registry import Registry
from proteus_bench.schedules import Capacity, Surprise, Uniform
from proteus_models.check import check_model
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "new_backbone.py"


@pytest.fixture
def installed(stranger):
    points = "hebb = new_backbone:backbone\nbare = json:dumps\nbroken = no_such_module:x\n"
    stranger(EXAMPLE, f"[proteus_bench.models]\n{points}")


def config(capacity: Capacity, mixer: str = "hebb") -> ModelConfig:
    return ModelConfig(
        mixer=mixer, vocab_size=50, train_length=32, capacity=capacity, d_model=16, n_heads=2, head_k=8, head_v=8,
        mlp_hidden=16, chunk=8,
    )  # fmt: skip


@pytest.mark.parametrize("gate", ["both", "write", "read"])
@pytest.mark.parametrize("schedule", [Uniform(blocks=4, span=32), Surprise(blocks=4, span=32, every=4)])
def test_it_passes_every_check(installed, gate, schedule):
    torch.manual_seed(0)
    rows = check_model(DecoderLM(config(Capacity(schedule=schedule, axis="value", gate=gate))))
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]


def test_one_block_is_the_base_model_bit_for_bit(installed):
    twins = []
    for capacity in (Capacity.static(axis="value", span=32), Capacity(schedule=Uniform(blocks=1, span=32), axis="value")):
        torch.manual_seed(0)
        twins.append(DecoderLM(config(capacity)))
    ids = torch.arange(40)[None]
    assert torch.equal(twins[0](ids), twins[1](ids))


def test_it_is_short_and_listed_beside_ours(installed):
    code = EXAMPLE.read_text("utf-8").split('"""', 2)[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 60
    assert {"hebb", "gdn", "titans"} <= set(Registry("models").names())


def test_a_recipe_trains_it_and_the_zoo_serves_it(installed, tmp_path, monkeypatch, capsys):
    from proteus_bench.cli.check import check_command
    from proteus_models.grid import train_recipe
    from proteus_models.recipe import load_recipe
    from proteus_models.zoo import zoo_root

    recipe = tmp_path / "hebb.toml"
    phase = "lr = 1e-3\nstages = [{ length = 64, tokens = 256, batch_tokens = 128 }]\n"
    recipe.write_text(
        'name = "hebb-tiny"\nbackbone = "hebb"\n[model]\ntrain_length = 64\nd_model = 16\nn_heads = 2\nhead_k = 8\nhead_v = 16\n'
        f'mlp_hidden = 16\n[capacity]\naxis = "value"\n[trunk]\n{phase}[branch]\n{phase}'
        '[[branches]]\nname = "hebb"\nschedule = "static"\n[[branches]]\nname = "hebb+proteus"\nschedule = "proteus"\n'
    )
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "tokenizer.json").write_bytes((zoo_root() / "tokenizer.json").read_bytes())
    written = train_recipe(load_recipe(recipe), 0, tmp_path / "work", zoo=zoo, report=lambda row: None)
    assert [path.parent.name for path in written] == ["hebb", "hebb+proteus"]
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(zoo))
    assert check_command("hebb+proteus", as_json=False) == 0
    assert "all checks passed" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "message"), [("bare", "brings no mixer"), ("heb", "did you mean 'hebb'")])
def test_what_is_no_backbone_is_refused_in_one_line(installed, name, message):
    with pytest.raises(UsageError, match=message):
        DecoderLM(config(Capacity.static(axis="value", span=32), mixer=name))
