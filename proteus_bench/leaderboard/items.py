"""V2: the items are made again from their suite and tokenizer, the raw outputs are scored again. No torch."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from proteus_bench.backends.encoding import continuation_ids
from proteus_bench.leaderboard.checks import Checked, close, place
from proteus_bench.leaderboard.forms import shown
from proteus_bench.runner.items import SuitePlan, draws_of, gold_text, make_item, plan_suite
from proteus_bench.score import SCORER_ID, SCORER_VERSION, score_answer
from proteus_bench.store.folder import TOKENIZERS
from proteus_bench.store.run_file import Record, SuiteBlock


@dataclass(frozen=True)
class Facts:
    """What is left of an item when its text is dropped: enough to check a row and to score it again.

    depths: by question, where its only gold stands (0 to 1); None for several golds or none in the text.
    """

    id: str
    sha256: str
    reached: int
    prompts: tuple[str, ...]
    gold_tokens: tuple[int, ...]
    depths: tuple[float | None, ...]
    needles: tuple[float, ...]
    scored: Any


class Book:
    """Suites that are installed (or were given by path) and items that were made already, for many runs."""

    def __init__(self, suites: Sequence[Path] = (), tokenizers: Sequence[Path] = ()) -> None:
        self._paths = [str(path) for path in suites]
        self._tokenizers: dict[str, tuple[Any, Path]] = {}
        self._files = list(tokenizers)
        self._suites: dict[tuple[str, str, str], SuitePlan | None] = {}
        self._facts: dict[tuple[str, str, str, int], list[Facts]] = {}

    def suite(self, block: SuiteBlock) -> SuitePlan | None:
        """The suite with this name and this hash, None when it is not here."""
        key = (block.name, block.version, block.sha256)
        if key not in self._suites:
            self._suites[key] = self._find_suite(block)
        return self._suites[key]

    def _find_suite(self, block: SuiteBlock) -> SuitePlan | None:
        for source in (block.name, *self._paths):
            try:
                plan = plan_suite(source)
            except Exception as error:  # a foreign suite's errors are its package's
                if getattr(error, "exit_code", None) is None:
                    raise
                continue
            if plan.block() == block.model_dump():
                return plan
        return None

    def tokenizer(self, fingerprint: str, files: Sequence[Path] = ()) -> Any:
        """The tokenizer of this fingerprint: bytes, of the zoo, given by path, or of the bundle. None when it is not here."""
        from proteus_tasks.tokenizers import ByteTokenizer

        if fingerprint == ByteTokenizer.fingerprint:
            return ByteTokenizer()
        held = self._tokenizer(fingerprint, files)
        return None if held is None else held[0]

    def tokenizer_file(self, fingerprint: str) -> Path | None:
        """The file of a tokenizer that was found."""
        held = self._tokenizer(fingerprint, ())
        return None if held is None else held[1]

    def _tokenizer(self, fingerprint: str, files: Sequence[Path]) -> tuple[Any, Path] | None:
        from proteus_tasks.errors import TaskError
        from proteus_tasks.tokenizers import FileTokenizer

        for path in (*self._files, *zoo_tokenizers(), *files):  # a stranger's own file only where ours are others
            if fingerprint in self._tokenizers:
                break
            try:
                made = FileTokenizer.from_path(path, special_tokens_of(fingerprint))
            except TaskError:
                continue
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # how the library's own code gives up; no Exception
                    raise
                continue
            self._tokenizers[made.fingerprint] = (made, path)
        return self._tokenizers.get(fingerprint)

    def facts(self, suite: SuitePlan, tokenizer: Any, task: str, length: int, count: int) -> list[Facts]:
        """The first `count` items of a cell, made once."""
        key = (suite.sha256, tokenizer.fingerprint, task, length)
        held = self._facts.setdefault(key, [])
        for index in range(len(held), count):
            held.append(_facts(make_item(suite, task, length, tokenizer, index), tokenizer))
        return held


def special_tokens_of(fingerprint: str) -> int:
    """How many tokens a fingerprint says that a model puts round a prompt."""
    count = fingerprint.partition("+")[2]
    return int(count) if re.fullmatch(r"[0-9]{1,4}", count) else 0


def needed_tokenizers(fingerprints: Sequence[str], runs: Sequence[Path] = ()) -> list[Path]:
    """The tokenizer files that runs were made with, for their bundle: of the zoo, which may have others one day, or of the run
    folders."""
    from proteus_tasks.tokenizers import FileTokenizer

    files = [*zoo_tokenizers(), *(path for run in runs for path in sorted((run / TOKENIZERS).glob("*.json")))]
    found: dict[str, Path] = {}
    for path in files:
        for fingerprint in fingerprints:
            made = FileTokenizer.from_path(path, special_tokens_of(fingerprint))
            if made.fingerprint == fingerprint:
                found.setdefault(fingerprint, path)
    return list(dict.fromkeys(found.values()))


def zoo_tokenizers() -> list[Path]:
    """Tokenizer files of the zoo in use and of the shipped one, by location: importing the models would load torch."""
    from proteus_bench.backends.weights import zoo_root
    from proteus_tasks.resources import micro_tokenizer_path

    root, shipped = zoo_root(), micro_tokenizer_path()
    paths = [None if root is None else root / "tokenizer.json", shipped]
    return [path for path in paths if path is not None and path.is_file()]


def _facts(item: Any, tokenizer: Any) -> Facts:
    prompts = []
    for question in item.questions:
        text = item.context + question.text + question.answer_prefix
        prompts.append(hashlib.sha256(text.encode("utf-8")).hexdigest())
    scored = SimpleNamespace(id=item.id, questions=item.questions, meta=item.meta)
    return Facts(
        id=item.id,
        sha256=item.sha256,
        reached=item.reached,
        prompts=tuple(prompts),
        gold_tokens=tuple(
            len(continuation_ids(tokenizer, *_scored(item, slot)))
            for slot in range(len(item.questions))
        ),
        depths=tuple(_depth(item, question) for question in item.questions),
        needles=tuple(round(float(needle.depth), 6) for needle in item.needles),
        scored=scored,
    )


def _scored(item: Any, slot: int) -> tuple[str, str]:
    """(prompt, gold) whose tokens are counted: of the right choice where there are choices."""
    if "options" in item.meta:
        text, continuation = item.meta["options"][item.meta["answer"]]
        return item.context + text, continuation
    return item.prompt(slot), gold_text(item, slot)


def _depth(item: Any, question: Any) -> float | None:
    if len(question.golds) != 1:
        return None
    found = [needle.depth for needle in item.needles if needle.value == question.golds[0]]
    return float(found[0]) if len(found) == 1 else None


def check_items(checked: Checked, book: Book, tokenizers: Sequence[Path] = ()) -> Iterator[str]:
    """V2 of one run: reasons why its rows are not what the suite's items and today's scorer give."""
    run = checked.run
    if (run.scorer.id, run.scorer.version) != (SCORER_ID, SCORER_VERSION):
        yield (
            f"scored by {shown(run.scorer.id)} version {shown(run.scorer.version)}, a stale scorer: this "
            f"program scores by {SCORER_ID} version {SCORER_VERSION}; run it again"
        )
        return
    suite = book.suite(run.suite)
    if suite is None:
        yield (
            f"suite {shown(run.suite.name)} version {shown(run.suite.version)} with hash "
            f"{run.suite.sha256[:12]} is not installed here, so its items cannot be made again"
        )
        return
    for number, record in enumerate(run.records):
        fingerprint = str(record.identity.get("tokenizer_sha256"))
        tokenizer = book.tokenizer(fingerprint, tokenizers)
        if tokenizer is None:
            yield f"{shown(record.label)}: no tokenizer with fingerprint {shown(fingerprint, 16)} is here"
            continue
        for cell in record.cells:
            rows = checked.rows[number, cell.task, cell.length]
            if cell.draws not in (None, draws_of(cell.task)):
                yield f"{place(record, cell)}: its items are drawn from {shown(draws_of(cell.task))}, not {shown(cell.draws)}"
                continue
            try:
                facts = book.facts(suite, tokenizer, cell.task, cell.length, len({row["index"] for row in rows}))
            except Exception as error:
                if getattr(error, "exit_code", None) is None:
                    raise
                yield f"{place(record, cell)}: its items cannot be made here: {shown(error, 200)}"
                continue
            yield from _first_wrong_row(place(record, cell), rows, facts, tokenizer, _is_chat(record))


def check_completeness(checked: Checked, book: Book) -> Iterator[str]:
    """With the suite at hand: a record that lacks items of it must say so, and whole cells have the frozen items."""
    suite = book.suite(checked.run.suite)
    if suite is None:
        return
    for number, record in enumerate(checked.run.records):
        where = shown(f"{record.label} seed {record.seed}")
        found = {(cell.task, cell.length): cell.n for cell in record.cells}
        foreign = sorted(found.keys() - suite.counts.keys())
        if foreign:
            yield f"{where}: {shown(foreign[0][0])} at {foreign[0][1]} is no cell of suite {suite.name}"
            continue
        short = {key: count for key, count in suite.counts.items() if found.get(key, 0) < count}
        if short and record.status != "partial":
            (task, length), count = next(iter(short.items()))
            got = found.get((task, length), 0)
            yield f"{where}: called {record.status} with {got} of {count} items of {task} at {length}"
        if any(count > suite.counts[key] for key, count in found.items()):
            yield f"{where}: more items than suite {suite.name} has"
        yield from _frozen(checked, number, suite)


def _frozen(checked: Checked, number: int, suite: SuitePlan) -> Iterator[str]:
    record = checked.run.records[number]
    for cell in record.cells:
        frozen = suite.frozen(str(record.identity.get("tokenizer_sha256")), cell.task, cell.length)
        if frozen is not None and cell.n == suite.counts[cell.task, cell.length] and cell.items_sha256 != frozen:
            yield f"{place(record, cell)}: its items are not those that suite {suite.name} froze"


def _is_chat(record: Record) -> bool:
    settings = record.identity.get("settings")
    return isinstance(settings, dict) and settings.get("prompting") == "chat"


def _first_wrong_row(
    where: str, rows: list[dict[str, Any]], facts: Sequence[Facts], tokenizer: Any, chat: bool
) -> Iterator[str]:
    for row in rows:
        item = facts[row["index"]]
        reason = _wrong(row, item, tokenizer, chat)
        if reason:
            yield f"{where}, item {row['index']}: {reason}"
            return


def _wrong(row: dict[str, Any], item: Facts, tokenizer: Any, chat: bool) -> str:
    """Why a row is not the item's. In a chat the gold stands behind a template that is not here: its tokens are not counted."""
    slot = row["question"]
    if slot >= len(item.prompts):
        return f"question {slot} of {len(item.prompts)}"
    question = item.scored.questions[slot]
    for what, mine, theirs in (
        ("item id", item.id, row["item"]),
        ("item's text", item.sha256, row["item_sha256"]),
        ("prompt", item.prompts[slot], row["prompt_sha256"]),
        ("gold answer", list(question.golds), row["golds"]),
        ("length", item.reached, row["reached"]),
        ("depth", list(item.needles), row["depths"]),
        ("number of gold tokens", row["gold_tokens"] if chat else item.gold_tokens[slot], row["gold_tokens"]),
    ):
        if mine != theirs:
            return f"its {what} is not the one that the suite makes"
    if len(row["output_ids"]) > question.max_new_tokens:
        return f"an output of {len(row['output_ids'])} tokens where {question.max_new_tokens} are allowed"
    if not _decodes(row, tokenizer):
        return "its output is not the text of its output_ids"
    try:
        logprob = math.nan if row["logprob"] is None else row["logprob"]
        choices = None if row.get("choices") is None else [math.nan if v is None else v for v in row["choices"]]
        facts = {"logprob": logprob, "gold_tokens": row["gold_tokens"], "choices": choices}
        scores = score_answer(item.scored, slot, row["output"], **facts)
    except (TypeError, ValueError) as error:
        return shown(error, 200)
    for name, mine in (("strict", scores.strict), ("compat", scores.compat)):
        if not close(mine, row[name]):
            return f"its {name} score is {row[name]}, scoring its output again gives {mine}"
    return ""


def _decodes(row: dict[str, Any], tokenizer: Any) -> bool:
    """Special tokens may be left out of the text or stand in it: back ends differ. One that answers in text has no ids."""
    ids = row["output_ids"]
    if not ids:
        return True
    try:
        if tokenizer.decode(ids) == row["output"]:
            return True
        inner = getattr(tokenizer, "_inner", None)
        return inner is not None and inner.decode(ids, skip_special_tokens=True) == row["output"]
    except (OverflowError, TypeError, ValueError):
        return False


def depths_of(rows: list[dict[str, Any]], facts: Sequence[Facts] | None) -> list[tuple[float, float]]:
    """(depth of the only gold, strict score) of every question that has one; from the rows alone where facts are None."""
    found = []
    for row in rows:
        if facts is not None:
            depth = facts[row["index"]].depths[row["question"]]
        else:
            depth = row["depths"][0] if len(row["depths"]) == 1 else None
        if depth is not None:
            found.append((depth, row["strict"]))
    return found
