"""Training: rows are pure functions of their identity and of the train split; resume is exact; checkpoints are not trusted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from proteus_bench.errors import InvalidFileError
from proteus_bench.schedules import Capacity, Uniform
from proteus_models import zoo
from proteus_models.checkpoint import load_checkpoint, save_checkpoint
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.recipe import Phase, RecipeError, Stage, load_recipe
from proteus_models.train import PhaseTrainer
from proteus_models.train_data import DataConfig, RowSource
from proteus_tasks import haystack, vocabulary

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source() -> RowSource:
    return RowSource(zoo.tokenizer(), DataConfig(), seed=3)


def tiny(source: RowSource) -> DecoderLM:
    torch.manual_seed(0)
    capacity = Capacity(schedule=Uniform(blocks=4, span=64), axis="value")
    return DecoderLM(
        ModelConfig(
            mixer="titans", vocab_size=source.tokenizer.vocab_size, train_length=64, capacity=capacity,
            d_model=16, n_layers=1, n_heads=2, head_k=8, head_v=8, mlp_hidden=16, inner=16,
        )
    )  # fmt: skip


def test_rows_are_full_reproducible_and_labelled_on_answers(source: RowSource) -> None:
    for length in (128, 700, 2048):
        ids, labels, kinds = source.batch("x", 5, 2, length)
        again = source.batch("x", 5, 2, length)
        assert ids.shape == labels.shape == kinds.shape == (2, length)
        assert all(np.array_equal(a, b) for a, b in zip((ids, labels, kinds), again, strict=True))
        assert np.array_equal(ids[:, 1:], labels[:, :-1])
        assert (kinds == 1).any() and (kinds == 2).any()
    assert not np.array_equal(source.batch("x", 6, 2, 128)[0], source.batch("x", 5, 2, 128)[0])


def test_every_answer_stands_before_its_question_and_is_of_the_train_split(source: RowSource) -> None:
    ids, _, _ = source.batch("y", 0, 4, 2048)
    test_words = set(vocabulary.words("test")) | set(vocabulary.words("tune"))
    checked = 0
    for row in ids:
        text = source.tokenizer.decode(row.tolist())
        for part in text.split("?\nAnswer: The access code of ")[1:]:
            key, _, rest = part.partition(" is ")
            value = rest.split(".")[0].split(",")[0]
            if len(value) != 7 or not value.isdigit():
                continue
            assert f"The access code of {key} is {value}." in text.split(f"?\nAnswer: The access code of {key}")[0]
            assert vocabulary.value_split(value) == "train"
            assert not set(key.split("-")) & test_words
            checked += 1
    assert checked > 10


def test_training_prose_shares_no_document_with_the_test_prose() -> None:
    train, test = ({d.year for d in haystack.documents(s)} for s in ("train", "test"))
    assert train and test and not train & test


def phase() -> Phase:
    return Phase(stages=(Stage(length=64, tokens=64 * 12, batch_tokens=128),), warmup_steps=2, muon_lr=0.01)


def test_a_killed_and_resumed_phase_gives_the_same_bytes(source: RowSource, tmp_path: Path) -> None:
    whole = PhaseTrainer(tiny(source), phase(), source, tmp_path / "a", label="t")
    whole.run(lambda _: None)
    first = PhaseTrainer(tiny(source), phase(), source, tmp_path / "b", label="t", save_every=0.0)

    class Killed(Exception):
        pass

    steps = first._step

    def die(stage: Stage) -> None:
        if first.progress.step == 3:
            raise Killed
        steps(stage)

    first._step = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        first.run(lambda _: None)
    second = PhaseTrainer(tiny(source), phase(), source, tmp_path / "b", label="t")
    second.run(lambda _: None)
    assert second.progress.step == whole.progress.step == 6
    for (name, a), b in zip(whole.raw.state_dict().items(), second.raw.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_training_lowers_the_loss_and_divergence_is_a_status(source: RowSource, tmp_path: Path) -> None:
    model = tiny(source)
    long = replace(phase(), stages=(Stage(length=64, tokens=64 * 60, batch_tokens=256),))
    progress = PhaseTrainer(model, long, source, tmp_path / "a", label="t").run(lambda _: None)
    assert progress.status == "complete" and progress.answer_loss < 8.0
    with torch.no_grad():
        model.embed.weight[0, 0] = float("nan")
    broken = PhaseTrainer(model, long, source, tmp_path / "b", label="t").run(lambda _: None)
    assert broken.status == "diverged"


def test_a_checkpoint_round_trips_and_damage_is_refused(source: RowSource, tmp_path: Path) -> None:
    model = tiny(source)
    save_checkpoint(tmp_path / "m", model, {"name": "x"})
    loaded, card, sha = load_checkpoint(tmp_path / "m")
    ids = torch.arange(20)[None]
    assert torch.equal(model(ids), loaded(ids)) and card == {"name": "x"} and len(sha) == 64
    weights = tmp_path / "m" / "model.safetensors"
    good = weights.read_bytes()
    for bad in (b"", good[: len(good) // 2], b"\xff" * 64, good[:100] + b"x" * 100 + good[200:]):
        weights.write_bytes(bad)
        with pytest.raises(InvalidFileError):
            load_checkpoint(tmp_path / "m")
    weights.unlink()
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(InvalidFileError, match="pickled"):
        load_checkpoint(tmp_path / "m")


def test_weights_of_another_shape_are_refused_by_tensor_name(source: RowSource, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "m", tiny(source), {})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"mlp_hidden": 17}))
    with pytest.raises(InvalidFileError, match="mlp"):
        load_checkpoint(tmp_path / "m")


def test_the_shipped_recipes_load_and_a_typo_is_refused(tmp_path: Path) -> None:
    recipes = sorted((ROOT / "runs").glob("*.toml"))
    assert {load_recipe(p).name for p in recipes} >= {"gdn-micro", "titans-micro"}
    bad = tmp_path / "bad.toml"
    bad.write_text(recipes[0].read_text().replace("warmup_steps", "warmup_step"))
    with pytest.raises(RecipeError, match="warmup_step"):
        load_recipe(bad)


def test_every_key_word_is_one_token() -> None:
    tokenizer = zoo.tokenizer()
    for split in ("train", "tune", "test"):
        assert all(len(tokenizer.encode(" " + w)) == 1 for w in vocabulary.words(split))
    text = " The access code of river is 1234567."
    assert tokenizer.decode(tokenizer.encode(text)) == text
