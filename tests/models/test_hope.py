"""Hope-Attention: a chain of MLPs with their own update periods, and a schedule that counts optimizer steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from proteus_bench.backends.weights import find_weights
from proteus_bench.errors import UsageError
from proteus_bench.grammar import parse_model
from proteus_bench.schedules import BUILTIN, Capacity, CapacityError, Uniform
from proteus_models import grid, hope
from proteus_models.check import check_model
from proteus_models.checkpoint import load_checkpoint
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.masked_optim import MaskedAdamW, definition
from proteus_models.recipe import Phase, Recipe, RecipeError, Stage, load_recipe
from proteus_models.train import PhaseTrainer, optimizers
from proteus_models.train_data import RowSource
from proteus_models.training_recipe import training_schedule
from proteus_models.training_schedule import LITERAL, MaskOptions, TrainingSchedule

SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "head_k": 8, "head_v": 8, "mlp_hidden": 16}
HIDDEN = Capacity.static(axis="hidden", span=64)


def config(mixer: str = "hope-attention", capacity: Capacity = HIDDEN, **more: Any) -> ModelConfig:
    chain = {"chain_hidden": (8, 9, 12), "chain_periods": (1, 2, 5)} if mixer == "hope-attention" else {}
    return ModelConfig(**{"mixer": mixer, "vocab_size": 40, "train_length": 64, "capacity": capacity} | SIZES | chain | more)


def model(mixer: str = "hope-attention", **more: Any) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(config(mixer, **more))


def schedule(blocks: int = 4, span: int = 8, **options: Any) -> TrainingSchedule:
    levels = options.pop("levels", ())
    return TrainingSchedule(schedule=Uniform(blocks=blocks, span=span), options=MaskOptions(**options), levels=levels)


def loss(m: DecoderLM, step: int) -> Tensor:
    ids = torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(step))
    return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def test_a_scheduled_and_a_static_model_pass_every_check_and_are_one_function() -> None:
    scheduled = model(capacity=replace(HIDDEN, schedule=Uniform(blocks=4, span=64)))
    static = model()
    for each in (scheduled, static):
        rows = check_model(each, length=24)
        assert [r for r in rows if not r.passed] == [] and len(rows) >= 7
    ids = torch.arange(30)[None]
    assert torch.equal(scheduled(ids), static(ids)), "positions must not see a schedule over training steps"


def test_the_chain_is_its_equation_and_one_level_is_transformer() -> None:
    m, x = model().double(), torch.randn(2, 5, 16, dtype=torch.float64)
    block = m.stack[0]

    def mlp(part: Any, norm: Any, x: Tensor) -> Tensor:
        h = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
        gate, value = (h @ part.up.weight.T).tensor_split(2, -1)
        return x + (gate * gate.sigmoid() * value) @ part.down.weight.T

    attended = x + block.mixer(block.norm_mixer(x), block.mixer.init_state(2), None)[0]
    y = mlp(block.mlp, block.norm_mlp, attended)
    for level in block.levels:
        y = mlp(level.mlp, level.norm, y)
    got = block(x, block.mixer.init_state(2), None, "chunk")[0]
    assert float((got - y).detach().abs().max()) <= 1e-13
    ids = torch.arange(20)[None]
    one = model(chain_hidden=(16,), chain_periods=(1,))
    assert torch.equal(one(ids), model("transformer++")(ids))


def test_levels_follow_the_equations_with_their_periods_and_the_forward_gate() -> None:
    """Ten steps of a whole model against the definition, fed with the gradients that the run saw; to 1e-12."""
    m, training = model().double(), schedule(per_block_step=True, levels=(1, 3))
    opt = hope.masked_adamw(m, training, weight_decay=0.1, lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    gate = hope.read_gate(m, training)
    start = {n: p.detach().clone() for n, p in m.named_parameters()}
    grads: dict[str, list[list[float]]] = {n: [] for n in start}
    for i in range(1, 11):
        gate.at(i)
        loss(m, i).backward()
        for name, p in m.named_parameters():
            assert p.grad is not None
            grads[name].append(p.grad.flatten().tolist())
        opt.step()
        opt.zero_grad()
    worst = 0.0
    for level, (size, period) in enumerate(zip(m.config.chain_hidden, m.config.chain_periods, strict=True), 1):
        stem = "blocks.0.mlp" if level == 1 else f"blocks.0.levels.{level - 2}.mlp"
        for kind in ("up", "down"):
            name = f"{stem}.{kind}.weight"
            unit = (torch.arange(size) // (size // 4)).clamp_max(3) if level != 2 else torch.zeros(size, dtype=torch.long)
            along = unit.repeat(2)[:, None] if kind == "up" else unit[None]
            expected = definition(
                start[name].flatten().tolist(), grads[name], block=along.expand(start[name].shape).flatten().tolist(),
                schedule=training.schedule, options=training.options, lrs=[0.01] * 10, betas=(0.9, 0.98), eps=1e-9,
                weight_decay=0.1, period=period,
            )  # fmt: skip
            got = m.get_parameter(name).detach().flatten()
            worst = max(worst, float((got - torch.tensor(expected, dtype=got.dtype)).abs().max()))
    assert worst <= 1e-12
    embedding = torch.tensor(grads["embed.weight"][0])
    assert float(embedding.abs().max()) > 0


def test_a_level_changes_only_at_its_period_and_a_locked_unit_is_neither_written_nor_read() -> None:
    m, training = model(), schedule(blocks=4, span=20)
    opt, gate = hope.masked_adamw(m, training, weight_decay=0.1, lr=0.01), hope.read_gate(m, training)
    downs = [m.stack[0].mlp.down.weight, *(level.mlp.down.weight for level in m.stack[0].levels)]  # type: ignore[union-attr]
    changed: list[list[int]] = [[], [], []]
    for i in range(1, 11):  # k = 1 to step 5, then 2
        gate.at(i)
        before = [d.detach().clone() for d in downs]
        loss(m, i).backward()
        locked_grads = [float(d.grad[:, (1 if i <= 5 else 2) * (d.shape[1] // 4) :].abs().max()) for d in downs]
        assert locked_grads == [0, 0, 0]
        opt.step()
        opt.zero_grad()
        for n, (old, new) in enumerate(zip(before, downs, strict=True)):
            if not torch.equal(old, new):
                changed[n].append(i)
            open_units = (1 if i <= 5 else 2) * (new.shape[1] // 4)
            assert torch.equal(old[:, open_units:], new[:, open_units:])
    assert changed == [list(range(1, 11)), [2, 4, 6, 8, 10], [5, 10]]


def test_the_schedule_works_on_the_mlps_of_any_backbone() -> None:
    m, training = model("gdn", capacity=Capacity.static(axis="value", span=64)), schedule(blocks=4, span=20)
    opt = hope.masked_adamw(m, training, weight_decay=0.1, lr=0.01)
    before = m.stack[0].mlp.down.weight.detach().clone()
    loss(m, 1).backward()
    opt.step()
    moved = (m.stack[0].mlp.down.weight != before).any(0)
    assert moved.tolist() == [True] * 4 + [False] * 12


def test_other_backbones_keep_torch_adamw() -> None:
    phase, other = Phase(stages=()), model("transformer++")
    assert [type(o) for o in optimizers(other, phase)] == [torch.optim.AdamW]
    assert [type(o) for o in optimizers(model(), phase)] == [MaskedAdamW]
    with pytest.raises(ValueError, match="muon_lr"):
        optimizers(model(), replace(phase, muon_lr=0.01))


# --- the trainer ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> RowSource:
    return grid._source("{}", 3)


def trainer(source: RowSource, folder: Path, training: TrainingSchedule | None, **more: Any) -> PhaseTrainer:
    phase = Phase(stages=(Stage(length=64, tokens=64 * 18, batch_tokens=128),), warmup_steps=2)
    m = model(vocab_size=source.tokenizer.vocab_size)
    return PhaseTrainer(m, phase, source, folder, label="t", training=training, **more)


@pytest.mark.parametrize("stop", [3, 4, 7])
@pytest.mark.parametrize("options", [MaskOptions(per_block_step=True), LITERAL], ids=["all", "literal"])
def test_a_killed_and_resumed_run_gives_the_same_bytes(
    source: RowSource, tmp_path: Path, options: MaskOptions, stop: int
) -> None:
    """Killed inside the periods of levels 2 and 3, before and after unlocks at steps 3, 5 and 7."""
    training = replace(schedule(), options=options)
    whole = trainer(source, tmp_path / "a", training)
    whole.run(lambda _: None)
    first = trainer(source, tmp_path / "b", training, save_every=0.0)

    class Killed(Exception):
        pass

    steps = first._step

    def die(stage: Stage) -> None:
        if first.progress.step == stop:
            raise Killed
        steps(stage)

    first._step = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        first.run(lambda _: None)
    second = trainer(source, tmp_path / "b", training)
    second.run(lambda _: None)
    assert second.progress.step == whole.progress.step == 9
    for (name, a), b in zip(whole.raw.state_dict().items(), second.raw.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    ids = torch.arange(30)[None]
    fresh = DecoderLM(whole.raw.config)
    fresh.load_state_dict(whole.raw.state_dict())
    assert torch.equal(whole.raw(ids), fresh(ids)), "a finished model is the plain model"


# --- recipes and names ---------------------------------------------------------------------------------------------------

RECIPE = """
name = "hope-tiny"
backbone = "hope-attention"

[model]
train_length = 64
d_model = 16
n_layers = 1
n_heads = 2
head_k = 8
head_v = 8
chain_hidden = [16, 18]
chain_periods = [1, 2]

[capacity]
axis = "hidden"

[training_schedule]
span = 8
per_block_step = true

[trunk]
stages = []

[branch]
warmup_steps = 2
stages = [{ length = 64, tokens = 1150, batch_tokens = 128 }]

[[branches]]
name = "hope-attention"
schedule = "static"

[[branches]]
name = "hope-attention+proteus"
schedule = "proteus(blocks=4)"
"""


def recipe(tmp_path: Path, *edits: tuple[str, str]) -> Recipe:
    text = RECIPE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "r.toml").write_text(text)
    return load_recipe(tmp_path / "r.toml")


def test_a_recipe_trains_both_twins_and_the_names_find_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = recipe(tmp_path)
    assert loaded.branch.steps == 9 and grid.dry_run(loaded)["trunk_tokens"] == 0
    folders = grid.train_recipe(loaded, 3, tmp_path / "work", zoo=tmp_path / "zoo", report=lambda _: None)
    assert [f.parent.name for f in folders] == ["hope-attention", "hope-attention+proteus"]
    static, scheduled = (json.loads((f / "card.json").read_text()) for f in folders)
    assert "training_schedule" not in static and static["status"] == scheduled["status"] == "complete"
    assert scheduled["training_schedule"] == {
        "schedule": "uniform", "params": {}, "blocks": 4, "span": 8, "levels": [],
        "mask_grad": True, "mask_decay": True, "mask_read": True, "per_block_step": True,
    }  # fmt: skip
    assert scheduled["branch"]["step"] == static["branch"]["step"] == 9
    first, second = (load_checkpoint(f)[0] for f in folders)
    assert first.config.chain_periods == (1, 2) and second.config.capacity.blocks == 4
    assert not torch.equal(first.stack[0].mlp.down.weight, second.stack[0].mlp.down.weight)

    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tmp_path / "zoo"))
    for text, trained in (("hope-attention+proteus(blocks=4)", "proteus"), ("hope-attention", "static")):
        found = find_weights(parse_model(text, models=["hope-attention"], schedules=BUILTIN))
        assert (found.trained, found.exact, found.capacity.is_static) == (trained, True, True), text
    refused = {"blocks=8": "acts while training", "axis=key": "no key axis; one of hidden"}
    for inside, message in refused.items():
        with pytest.raises(UsageError, match=message):
            find_weights(parse_model(f"hope-attention+proteus({inside})", models=["hope-attention"], schedules=BUILTIN))


def test_the_schedule_text_and_the_options_say_the_same_thing(tmp_path: Path) -> None:
    text = "proteus(blocks=4,gate=write,decay_locked=unmasked)"
    literal = recipe(tmp_path, ("proteus(blocks=4)", text), ("per_block_step = true", ""))
    made = training_schedule(literal, literal.branches[1])
    assert made is not None and made.options == LITERAL
    named = recipe(tmp_path, ("span = 8", "span = 8\nmask_read = true\nmask_grad = true\nmask_decay = true\nlevels = [2]"))
    made = training_schedule(named, named.branches[1])
    assert made is not None and made.options == MaskOptions(per_block_step=True) and made.levels == (2,)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("span = 8", "span = 8\nmask_read = false"), "mask_read = false contradicts gate=both"),
        (("span = 8", "span = 8\nmask_decay = false"), "contradicts decay_locked=masked"),
        (("span = 8", "span = 80"), "only 1 of 4 blocks are open after the last of 9 steps"),
        (("span = 8", "span = 0"), "at least 1"),
        (("span = 8", "span = 8\nlevels = [3]"), "level 3 of a chain of 2"),
        (("span = 8", "span = 8\nmask_gradient = true"), "unknown key 'mask_gradient'"),
        (("blocks=4", "blocks=4,axis=key"), "no key axis: its schedule opens hidden units over optimizer steps"),
        (("blocks=4", "blocks=4,span=9"), "says span=9"),
        (("proteus(blocks=4)", "surprise"), "function of the step"),
        (("blocks=4", "blocks=4,read=pre"), "no meaning"),
        (("blocks=4", "blocks=17"), "fewer than 17 blocks"),
        (("stages = []", "stages = [{ length = 64, tokens = 64 }]"), "stages = \\[\\]"),
        (("batch_tokens = 128 }", "batch_tokens = 128, until = 0.2 }"), "may end early"),
        (("warmup_steps = 2", "warmup_steps = 2\nmuon_lr = 0.01"), "no muon_lr"),
        (("chain_periods = [1, 2]", "chain_periods = [1]"), "chain_hidden has 2 levels, chain_periods 1"),
        (("[training_schedule]\nspan = 8\nper_block_step = true", ""), "needs a \\[training_schedule\\]"),
        (('backbone = "hope-attention"', 'backbone = "gdn"'), "not for gdn"),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_are_refused_in_one_line(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    with pytest.raises((RecipeError, UsageError), match=message) as caught:
        grid.dry_run(recipe(tmp_path, edit))
    assert "\n" not in str(caught.value)


def test_impossible_models_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="no key axis; one of hidden"):
        model(capacity=Capacity(schedule=Uniform(blocks=4, span=64), axis="key"))
    with pytest.raises(CapacityError, match="8 coordinates, fewer than 16 blocks"):
        model(capacity=replace(HIDDEN, schedule=Uniform(blocks=16, span=64)))
    with pytest.raises(ValueError, match="whole numbers"):
        model(chain_hidden=(8, 0, 9))


def test_the_default_chain_is_written_down_and_round_trips() -> None:
    c = config(chain_hidden=(), chain_periods=(), mlp_hidden=64)
    assert c.chain_hidden == (16, 16, 16, 16) and c.chain_periods == (1, 4, 16, 64)
    assert ModelConfig.from_dict(json.loads(json.dumps(c.as_dict()))) == c
    assert config("gdn", Capacity.static(axis="value")).chain_hidden == ()
