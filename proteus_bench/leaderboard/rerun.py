"""V3 and V4: the checkpoint answers some items again, and one seed is trained again. Only here is torch loaded, lazily."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proteus_bench.backends.tokens import TokenBackend
from proteus_bench.errors import BenchError, EnvironmentFault, InvalidFileError, UsageError
from proteus_bench.leaderboard.checks import Checked
from proteus_bench.leaderboard.forms import shown
from proteus_bench.leaderboard.items import Book
from proteus_bench.store.canonical import digest, file_digest
from proteus_bench.store.run_file import Record

NEAR_NATS = 0.02
"""Log-probabilities of float32 models differ by less from one processor to the next."""
ODD_SHARE = 0.05
"""Outputs that may differ: where two tokens are all but tied, rounding decides."""
V4_LEVEL = 0.01
Say = Callable[[str], None]


@dataclass(frozen=True)
class Sample:
    """Which items V3 asks again: ``items`` a record, drawn by ``seed``, which the submitter must not know beforehand."""

    items: int
    seed: int


def check_checkpoints(
    checked: Checked, book: Book, held: Mapping[str, Path], sample: Sample, say: Say
) -> Iterator[str]:
    """V3 of one run: reasons why its rows are not what its checkpoints answer.

    held: checkpoint folders by the sha256 that is claimed for them; the zoo is looked through for the others.
    """
    for number, record in enumerate(checked.run.records):
        where = shown(f"{record.label} seed {record.seed}")
        say(f"{where}: {sample.items} items again")
        try:
            folder = _find(record, held)
            yield from (f"{where}: {reason}" for reason in _ask_again(checked, number, folder, book, sample))
        except (InvalidFileError, UsageError, ValueError) as error:
            yield f"{where}: {shown(error)}"


def _find(record: Record, held: Mapping[str, Path]) -> Path:
    """The folder with the weights of a record. InvalidFileError when it is not here, or holds other weights."""
    from proteus_bench.backends.weights import zoo_root
    from proteus_models import zoo

    if record.backend != "local":
        raise InvalidFileError(f"a {shown(record.backend)} back end cannot be run again here")
    wanted = str(record.identity.get("checkpoint_sha256"))
    if wanted in held:
        found = file_digest(held[wanted] / "model.safetensors")
        if found != wanted:
            raise InvalidFileError(f"the bundle's checkpoint has sha256 {found[:12]}, not the claimed {wanted[:12]}")
        return held[wanted]
    for entry in zoo.available(zoo_root()):
        for seed in entry.seeds:
            weights = entry.path / f"seed{seed}" / "model.safetensors"
            if weights.is_file() and file_digest(weights) == wanted:
                return weights.parent
    raise InvalidFileError(f"no checkpoint with sha256 {wanted[:12]} in the bundle or the zoo")


class _Loaded(TokenBackend):
    """What answers, as the runner's cells see it."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def answer(self, contexts: Sequence[Any], questions: Sequence[Sequence[Any]]) -> Any:
        from proteus_bench.backends.recurrent import answer_recurrent

        return answer_recurrent(self.model, contexts, questions)


def _load(record: Record, folder: Path, book: Book) -> _Loaded:
    from proteus_bench.registry import stored_capacity
    from proteus_models.checkpoint import load_checkpoint
    from proteus_models.tokenizer import MicroTokenizer

    model, _, _ = load_checkpoint(folder, stored_capacity(record.capacity))
    config = model.config.as_dict()
    for key, value in record.config.items():  # V1 has held it to the identity; a newer program may know more settings
        if config.get(key) != value:
            raise InvalidFileError(f"the checkpoint's configuration is not the one of its identity ({shown(key, 60)})")
    size = sum(parameter.numel() for parameter in model.parameters())
    state = int(model.init_state(1).nbytes)
    if (size, state) != (record.n_params, record.state_bytes):
        raise InvalidFileError(
            f"{record.n_params:,} parameters and {record.state_bytes:,} bytes of state are claimed, the checkpoint has "
            f"{size:,} and {state:,}"
        )
    file = book.tokenizer_file(str(record.identity.get("tokenizer_sha256")))
    if file is None:
        raise InvalidFileError("its tokenizer is not here")
    return _Loaded(model, MicroTokenizer.from_file(file))


def _ask_again(checked: Checked, number: int, folder: Path, book: Book, sample: Sample) -> Iterator[str]:
    from proteus_bench.runner.cell import _answer
    from proteus_bench.runner.items import make_item

    record = checked.run.records[number]
    backend = _load(record, folder, book)
    suite = book.suite(checked.run.suite)
    assert suite is not None  # V2 has passed
    cells = checked.of(number)
    every = [(task, length, index) for (task, length), rows in cells.items() for index in sorted({r["index"] for r in rows})]
    rng = np.random.Generator(np.random.PCG64([sample.seed, record.seed, int(digest([record.label])[:8], 16)]))
    picks = rng.choice(len(every), size=min(sample.items, len(every)), replace=False)
    asked, odd = 0, []
    for task, length, index in (every[i] for i in sorted(picks)):
        held = {row["question"]: row for row in cells[task, length] if row["index"] == index}
        item = make_item(suite, task, length, backend.tokenizer, index)
        for row in _answer(backend, [item], index)[0]:  # type: ignore[arg-type]
            asked += 1
            mine = held[row["question"]]
            at = f"{task} at {length}, item {index}"
            if not near(row["logprob"], mine["logprob"]):
                yield (
                    f"{at}: the log-probability of the gold answer is {mine['logprob']}, the checkpoint gives "
                    f"{row['logprob']}: these are not its predictions"
                )
                return
            if row["output_ids"] != mine["output_ids"]:
                odd.append(f"{at}: the output is {shown(mine['output'], 60)!r}, the checkpoint says {shown(row['output'], 60)!r}")
    if len(odd) > ODD_SHARE * asked:
        yield f"{odd[0]} ({len(odd)} of {asked} outputs differ)"


def near(a: float | None, b: float | None) -> bool:
    """Equal log-probabilities, up to the arithmetic of another processor."""
    if a is None or b is None:
        return a is b
    return abs(a - b) <= NEAR_NATS + 1e-3 * abs(a)


@dataclass(frozen=True)
class Retraining:
    """V4: ``recipe`` is trained for ``seed`` under ``work`` (resumed when it was begun)."""

    recipe: Path
    work: Path
    seed: int = 0


def check_training(checked: Checked, book: Book, again: Retraining, say: Say) -> Iterator[str]:
    """V4 of one run: each method that was trained by the recipe is trained again for one seed and scored on the run's items.

    Equal bytes of weights settle it. Otherwise the method is refused when the submitted seeds score higher than the new
    one beyond chance: one-sided prediction interval of one more seed, 1% level.
    """
    from proteus_models import grid
    from proteus_models.recipe import load_recipe

    recipe = load_recipe(again.recipe)
    names = {branch.name for branch in recipe.branches}
    mine = [label for label in dict.fromkeys(r.label for r in checked.run.records) if _trained(checked, label) in names]
    if not mine:
        yield f"none of its models is one of recipe {recipe.name}: {', '.join(sorted(names))}"
        return
    wanted = tuple(sorted({_trained(checked, label) for label in mine}))
    say(f"training seed {again.seed} of {', '.join(wanted)}")
    grid.train_recipe(
        recipe, again.seed, again.work / ".work", zoo=again.work, only=wanted, report=lambda row: say(str(row))
    )
    for label in mine:
        held = {str(r.recipe.get("recipe_sha256")) for r in checked.run.records if r.label == label}
        if held != {recipe.sha256}:
            yield f"{shown(label)}: its cards name another recipe than {recipe.name} with hash {recipe.sha256[:12]}"
            continue
        yield from _judge(checked, label, again, book, say)


def _trained(checked: Checked, label: str) -> str:
    record = next(r for r in checked.run.records if r.label == label)
    return str(record.recipe.get("name"))


def _judge(checked: Checked, label: str, again: Retraining, book: Book, say: Say) -> Iterator[str]:
    numbers = [i for i, record in enumerate(checked.run.records) if record.label == label]
    folder = again.work / _trained(checked, label) / f"seed{again.seed}"
    sha = file_digest(folder / "model.safetensors")
    for i in numbers:
        record = checked.run.records[i]
        if record.seed == again.seed and record.identity.get("checkpoint_sha256") == sha:
            say(f"{label} seed {record.seed}: trained again to the same bytes")
            return
    try:
        fresh = _score(checked, numbers[0], folder, book)
    except BenchError as error:
        raise EnvironmentFault(f"{label}: the model that was trained again cannot be scored: {error}") from error
    others = [i for i in numbers if checked.run.records[i].seed != again.seed]
    scores = [float(np.mean([np.mean([r["strict"] for r in rows]) for rows in checked.of(i).values()])) for i in others]
    count = len(next(iter(checked.of(numbers[0]).values())))
    p = excess(scores, fresh, count * len(checked.of(numbers[0])))
    say(f"{label}: {fresh:.4f} when trained again, {', '.join(f'{s:.4f}' for s in scores)} submitted, p = {p}")
    if p is None:
        yield f"{shown(label)}: one other seed is too few to compare with a new training"
    elif p < V4_LEVEL:
        yield (
            f"{shown(label)}: the submitted seeds score {100 * statistics.fmean(scores):.1f}, trained again it scores "
            f"{100 * fresh:.1f} (p = {p:.2g}): the submitted seeds are not what the recipe gives"
        )


def excess(scores: Sequence[float], fresh: float, answers: int) -> float | None:
    """One-sided p that ``scores`` of S seeds are no higher than one more seed's; None for less than two.

    t = (mean - fresh) / (s sqrt(1 + 1/S)) with S - 1 degrees of freedom. s is at least the error of a share of ``answers``
    answers: seeds that agree by luck must not refuse an honest one.
    """
    from scipy.special import stdtr

    if len(scores) < 2:
        return None
    mean = statistics.fmean(scores)
    least = math.sqrt(max(mean * (1 - mean), 1 / answers) / answers)
    spread = max(statistics.stdev(scores), least)
    return float(stdtr(len(scores) - 1, -(mean - fresh) / (spread * math.sqrt(1 + 1 / len(scores)))))


def _score(checked: Checked, number: int, folder: Path, book: Book) -> float:
    """Mean strict score of a checkpoint over the cells and items of one record."""
    from proteus_bench.runner.cell import _answer
    from proteus_bench.runner.items import make_item

    record = checked.run.records[number]
    backend = _load(record, folder, book)
    suite = book.suite(checked.run.suite)
    assert suite is not None  # V2 has passed
    means = []
    for (task, length), rows in checked.of(number).items():
        strict = []
        for index in sorted({row["index"] for row in rows}):
            item = make_item(suite, task, length, backend.tokenizer, index)
            strict += [row["strict"] for row in _answer(backend, [item], index)[0]]  # type: ignore[arg-type]
        means.append(float(np.mean(strict)))
    return float(np.mean(means))
