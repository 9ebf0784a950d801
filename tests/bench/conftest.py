"""A small zoo of real, untrained models, and the command line as a separate process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
def suite_at() -> Callable[[Path, int], str]:
    """`suite_at(folder, length)`: see `suite_file`."""
    return suite_file


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


@dataclass(frozen=True)
class Made:
    """One method of a made run: scores ``[S, N]`` by (task, length), under a capacity, as a record of a run folder."""

    label: str
    scores: dict[tuple[str, int], Any]
    capacity: Any = None
    seeds: tuple[int, ...] | None = None
    model: str = "titans"
    trained: str | None = None
    weights: str = ""
    logprob: float | None = -1.0
    status: str = "complete"
    text: str = ""


def _record(folder: Path, made: Made, seed: int, row: int, suite: dict[str, str], scorer: dict[str, str]) -> Any:
    """One seed of a method: its logs are written, its record of run.json is returned."""
    from proteus_bench.schedules import Capacity
    from proteus_bench.store import CellKey, CellLog, RunFolder, digest

    capacity = (made.capacity or Capacity.static("value")).as_dict()
    schedule = made.label.partition("+")[2] or "static"
    cells = []
    for (task, length), matrix in made.scores.items():
        key = CellKey(made.label, task, length, seed)
        log = CellLog(RunFolder(folder).cell_path(key))
        rows = [
            {
                "index": index,
                "question": 0,
                "item": f"{task}/{length}/{index}",
                "item_sha256": digest([task, length, index, made.text]),
                "strict": float(score),
                "compat": float(score),
                "logprob": None if made.logprob is None else made.logprob + float(score) + seed / 100 + index / 1000,
            }
            for index, score in enumerate(matrix[row])
        ]
        log.append(rows)
        log.close()
        mean = sum(r["strict"] for r in rows) / len(rows)
        blank = dict.fromkeys(("ci_low", "ci_high", "ci_method", "compat", "logprob", "error", "items_sha256"))
        cells.append(
            {
                **blank, "task": task, "length": length, "status": made.status, "n": len(rows), "rows": len(rows),
                "score": mean, "file": str(RunFolder(folder).cell_path(key).relative_to(folder)),
                "sha256": RunFolder(folder).file_hash(key),
            }
        )  # fmt: skip
    trained = made.trained or schedule
    identity = {
        "suite": suite, "scorer": scorer, "model": made.model, "schedule": schedule, "size": "micro", "seed": seed,
        "trained_schedule": trained, "checkpoint_sha256": digest([made.model, trained, seed, made.weights]),
        "capacity": capacity, "dtype": "float32", "device": "cpu", "backend": "local", "batch_tokens": 4096,
        "tokenizer_sha256": "0" * 64, "items": [[t, n, len(m[row])] for (t, n), m in made.scores.items()],
    }  # fmt: skip
    recipe = {"capacity": capacity} if made.trained is None else {}
    return {
        "record_id": digest(identity), "identity": identity, "model": made.model, "schedule": schedule,
        "label": made.label, "seed": seed, "status": made.status, "backend": "local", "trained_schedule": trained,
        "n_params": 1000, "state_bytes": 64, "train_length": 8192, "capacity": capacity, "config": {},
        "recipe": recipe, "cells": cells,
    }  # fmt: skip


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run(name, *methods, suite=..., version=..., scorer=...)`: a finished run folder; `Made` by its fields."""
    from proteus_bench.store import digest, write_json
    from proteus_bench.store.run_file import SCHEMA, RunFile, run_id_of

    def call(name: str, *methods: dict[str, Any], suite: str = "made4k", version: str = "1", scorer: str = "1") -> Path:
        folder = tmp_path / name
        (folder / "cells").mkdir(parents=True)
        block = {"name": suite, "version": version, "sha256": digest([suite, version])}
        judge = {"id": "strict", "version": scorer}
        records = []
        for made in (Made(**method) for method in methods):
            rows = len(next(iter(made.scores.values())))
            for row, seed in enumerate(made.seeds or range(rows)):
                records.append(_record(folder, made, seed, row, block, judge))
        document = {
            "schema": SCHEMA, "run_id": run_id_of([r["record_id"] for r in records]), "status": "complete", "spec": {},
            "suite": block, "scorer": judge, "notes": [], "records": records, "comparisons": [],
            "environment": {"proteus_bench": "0"},
        }  # fmt: skip
        RunFile.model_validate(document)
        write_json(folder / "run.json", document)
        return folder

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_zoo: Path, tiny_suite: str) -> Path:
    """A whole run of `titans+proteus` and its twin on the tiny suite, two seeds each. Copy it before you change it."""
    from proteus_bench.cli import invoke

    out = tmp_path_factory.mktemp("finished") / "run"
    patch = pytest.MonkeyPatch()
    with patch.context() as p:
        p.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
        code = invoke(["run", "--model", "titans+proteus", "--suite", tiny_suite, "--out", str(out), "--workers", "1"])
    assert code == 0
    return out


@pytest.fixture
def forger(finished: Path, tmp_path: Path) -> Any:
    """A `leaderboard_help.Forger` over a copy of the finished run."""
    from tests.bench.leaderboard_help import Forger

    return Forger(Path(shutil.copytree(finished, tmp_path / "run")))


@pytest.fixture(scope="session")
def book(tiny_suite: str) -> Any:
    """Items of the tiny suite, made once for all tests."""
    from proteus_bench.leaderboard.items import Book

    return Book((Path(tiny_suite),))


@pytest.fixture
def check(book: Any, tiny_suite: str, tiny_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`check(path, level=2, items=8)`: verify with the tiny suite and zoo; a `Verification`."""
    from proteus_bench.leaderboard import Options, verify
    from proteus_bench.leaderboard.rerun import Sample

    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))

    def call(path: Path, level: int = 2, items: int = 8) -> Any:
        return verify(path, Options(level=level, suites=(Path(tiny_suite),), sample=Sample(items, 7)), book)

    return call
