"""A small zoo of real, untrained models, and the command line as a separate process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
Cli = Callable[..., "Done"]


@pytest.fixture(scope="session")
def tiny_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`titans`, `titans+proteus`, `gdn`, `gdn+proteus` with two seeds each: our decoder at random weights, E=4."""
    import torch

    from proteus_bench.schedules import Capacity, Uniform
    from proteus_models.checkpoint import save_checkpoint
    from proteus_models.config import ModelConfig
    from proteus_models.decoder import DecoderLM
    from proteus_models.tokenizer import MicroTokenizer

    zoo = tmp_path_factory.mktemp("zoo")
    shutil.copy(ROOT / "models" / "zoo" / "tokenizer.json", zoo / "tokenizer.json")
    vocab = MicroTokenizer.from_file(zoo / "tokenizer.json").vocab_size
    for mixer in ("titans", "gdn"):
        for name in (mixer, f"{mixer}+proteus"):
            schedule = Uniform(blocks=16, span=256)
            capacity = Capacity(schedule=schedule, axis="value") if "+" in name else Capacity.static("value", 256)
            config = ModelConfig(
                mixer=mixer,
                vocab_size=vocab,
                train_length=256,
                capacity=capacity,
                d_model=32,
                n_layers=1,
                n_heads=1,
                head_k=16,
                head_v=16,
                mlp_hidden=32,
            )
            for seed in (0, 1):
                torch.manual_seed(seed)
                model = DecoderLM(config)
                card = {"name": name, "seed": seed, "status": "complete", "train_length": 256, "tokens": 0}
                save_checkpoint(zoo / name / f"seed{seed}", model, card)
    return zoo


def suite_file(folder: Path, length: int) -> str:
    """Path of a suite of two tasks, four items each, at ``length`` tokens."""
    path = folder / f"tiny{length}.toml"
    path.write_text(
        f'id = "tiny{length}"\nversion = "1"\ndescription = "for tests"\ndata_seed = 0\nsplit = "test"\n'
        f'length = {length}\nn = 4\ntasks = ["niah.single_1", "niah.multiquery"]\n'
    )
    return str(path)


@pytest.fixture(scope="session")
def tiny_suite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Twice the training length of the tiny zoo."""
    return suite_file(tmp_path_factory.mktemp("suite"), 512)


@pytest.fixture(scope="session")
def short_suite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Too short for its tasks."""
    return suite_file(tmp_path_factory.mktemp("suite"), 40)


def _environment(zoo: Path | None, **extra: str) -> dict[str, str]:
    """The variables of a command line that runs from this checkout."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PROTEUS_BENCH_")}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / part) for part in ("", "tasks", "models", "kernels"))
    if zoo is not None:
        env["PROTEUS_BENCH_ZOO"] = str(zoo)
    return {**env, **extra}


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    """`environment(zoo, **extra)`: see `_environment`."""
    return _environment


@dataclass(frozen=True)
class Done:
    """What a command left: exit code and output."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def cli(tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run `proteus-bench ARGS` in this process, in an empty folder, with the tiny zoo."""
    from proteus_bench.cli import invoke

    def call(*args: str, zoo: Path | None = tiny_zoo, **extra: str) -> Done:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            for name in [name for name in os.environ if name.startswith("PROTEUS_BENCH_")]:
                patch.delenv(name)
            for name, value in _environment(zoo, **extra).items():
                patch.setenv(name, value)
            code = invoke(args)
        return Done(code, *capfd.readouterr())

    return call
