"""`verify`: how far a bundle, a run folder, an entry or a whole leaderboard can be trusted. V0 to V2 need no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.leaderboard.checks import (
    Checked,
    Prediction,
    Refused,
    check_run,
    predictions,
    read_run,
    twin_predictions,
)
from proteus_bench.leaderboard.comparisons import check_comparisons
from proteus_bench.leaderboard.entry import entries_of
from proteus_bench.leaderboard.forms import shown
from proteus_bench.leaderboard.items import Book, check_completeness, check_items
from proteus_bench.leaderboard.opening import Opened, opened
from proteus_bench.leaderboard.rerun import Retraining, Sample, check_checkpoints, check_training
from proteus_bench.leaderboard.schema import Entry

MAX_REASONS = 50
LEVELS = (
    "V0 form: schemas, names, paths, sizes",
    "V1 sums: hashes, completeness, seeds, metrics and intervals",
    "V2 scores: items made again, raw outputs scored again, comparisons",
    "V3 answers: the checkpoint asked again",
    "V4 training: one seed trained again",
)


@dataclass(frozen=True)
class Options:
    """How to verify. suites, tokenizers: files beside the installed ones. sample: for V3. retraining: for V4."""

    level: int = 2
    suites: tuple[Path, ...] = ()
    tokenizers: tuple[Path, ...] = ()
    sample: Sample | None = None
    retraining: Retraining | None = None
    say: Callable[[str], None] = lambda text: None


@dataclass
class Verification:
    """What was found. ``reached``: the highest level that everything passed, -1 for none. refused: (level, reason)."""

    path: Path
    asked: int
    reached: int = -1
    refused: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    rows: int = 0
    bundle: str | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the level that was asked for was reached."""
        return self.reached >= self.asked

    def refuse(self, level: int, reasons: Sequence[str]) -> None:
        """Note reasons, not more than a screen of them."""
        room = MAX_REASONS - len(self.refused)
        self.refused += [(level, reason[:600]) for reason in list(reasons)[: max(0, room)]]


def verify(path: Path, options: Options | None = None, book: Book | None = None) -> Verification:
    """Verify a bundle (folder or zip), a run folder, an entry file or a leaderboard's folder.

    What is malformed raises InvalidFileError (exit 3); what is well-formed and not true is listed in ``refused``.
    """
    options = options or Options()
    if not 0 <= options.level < len(LEVELS):
        raise UsageError(f"--level is 0 to {len(LEVELS) - 1}, not {options.level}")
    book = book or Book(options.suites, options.tokenizers)
    if (path / "entries").is_dir() or (path.suffix == ".json" and path.is_file()):
        from proteus_bench.leaderboard.standing import verify_entry, verify_leaderboard

        return (verify_leaderboard if path.is_dir() else verify_entry)(path, options, book)
    with opened(path) as bundle:
        return verify_bundle(path, bundle, options, book)


def verify_bundle(path: Path, bundle: Opened, options: Options, book: Book) -> Verification:
    """Every level in turn, run by run; a run that fails a level is not looked at further."""
    found = Verification(path, options.level, bundle=bundle.id)
    wrong = bundle.wrong_hashes() if options.level >= 1 else []
    if wrong:
        found.reached = 0
        found.refuse(1, [f"{shown(name)} does not match its sha256" for name in wrong])
        return found
    levels: list[int] = []
    seen: list[Prediction] = []
    for folder, run in bundle.runs():
        options.say(f"{folder.name}: {len(run.records)} records")
        found.runs += 1
        try:
            checked = read_run(folder, run)
        except Refused as refused:
            if refused.level == 0:
                raise
            found.refuse(refused.level, [refused.reason])
            levels.append(refused.level - 1)
            continue
        found.rows += sum(map(len, checked.rows.values()))
        reached = _levels(checked, bundle, options, book, found)
        levels.append(reached)
        if reached >= 1:  # what does not add up has no entry
            seen += predictions(checked)
            found.entries += entries_of(checked, book, reached, bundle.statement)
    twins = list(twin_predictions(seen))
    if twins and options.level >= 1:
        found.refuse(1, twins)
        levels.append(0)
    found.reached = min(levels, default=-1)
    return found


def _levels(checked: Checked, bundle: Opened, options: Options, book: Book, found: Verification) -> int:
    """The highest level that this run passes, not above the one that was asked for."""
    reached = 0
    for level in range(1, options.level + 1):
        if level in (2, 3):
            options.say(LEVELS[level])
        reasons = []
        for reason in _reasons(level, checked, bundle, options, book):
            reasons.append(reason)
            if len(reasons) >= MAX_REASONS:
                break
        found.refuse(level, reasons)
        if reasons:
            break
        reached = level
    return reached


def _reasons(level: int, checked: Checked, bundle: Opened, options: Options, book: Book) -> Iterator[str]:
    if level == 1:
        yield from check_run(checked)
        yield from check_completeness(checked, book)
    elif level == 2:
        yield from check_items(checked, book, bundle.tokenizers())
        yield from check_comparisons(checked)
    elif level == 3:
        if options.sample is None:
            raise UsageError("V3 needs a sample of items")
        yield from check_checkpoints(checked, book, bundle.checkpoints(), options.sample, options.say)
    else:
        if options.retraining is None:
            raise UsageError("V4 trains one seed again: it needs --recipe")
        yield from check_training(checked, book, options.retraining, options.say)


def accept(path: Path, bundle: Opened, options: Options, book: Book) -> Verification:
    """`verify_bundle`, where a refusal is an error: InvalidFileError (exit 3) with the first reason and their number."""
    found = verify_bundle(path, bundle, options, book)
    if not found.ok:
        level, reason = found.refused[0]
        more = f" (and {len(found.refused) - 1} more)" if len(found.refused) > 1 else ""
        raise InvalidFileError(f"{path}: refused at V{level}: {reason}{more}")
    return found
