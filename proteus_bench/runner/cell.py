"""One cell: its items through one back end, one row a question, a batch at a time into the cell's log."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from proteus_bench.backends import Ask, Backend, Reply, Settings, opened
from proteus_bench.backends.base import DEFAULT
from proteus_bench.errors import UsageError
from proteus_bench.runner.items import gold_text, make_item, plan_suite
from proteus_bench.runner.models import parse
from proteus_bench.score import picked, score_answer, scorers_of
from proteus_bench.store import CellKey, CellLog, RunFolder


@dataclass(frozen=True)
class CellJob:
    """Everything a worker needs, as plain values. ``suite``: name or path; ``count`` items of ``questions`` each."""

    folder: str
    suite: str
    key: CellKey
    count: int
    questions: int
    batch_tokens: int
    settings: Settings = DEFAULT


def run_cell(job: CellJob) -> None:
    """Answer what the cell's log does not hold yet. Batches are cut by item index alone, so that a resumed cell repeats
    the arithmetic of an uninterrupted one to the last bit; rows that stand are computed again and not written again."""
    folder = RunFolder(Path(job.folder))
    log = CellLog(folder.cell_path(job.key))
    times = CellLog(folder.time_path(job.key))
    try:
        suite = plan_suite(job.suite)
        backend = opened(parse(job.key.model), job.key.seed, job.settings)
        held = {(row["index"], row["question"]) for row in log.rows}
        size = max(job.batch_tokens // job.key.length, getattr(backend, "batch_items", 1))
        for start in range(0, job.count, size):
            end = min(start + size, job.count)
            if all((index, question) in held for index in range(start, end) for question in range(job.questions)):
                continue
            key = job.key
            items = [make_item(suite, key.task, key.length, backend.tokenizer, index) for index in range(start, end)]
            rows, seconds = _answer(backend, items, start)
            fresh = [(r, s) for r, s in zip(rows, seconds, strict=True) if (r["index"], r["question"]) not in held]
            log.append(row for row, _ in fresh)
            times.append({"index": r["index"], "question": r["question"], "seconds": s} for r, s in fresh)
            _end_with_parent()
    finally:
        log.close()
        times.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)


def _answer(backend: Backend, items: Sequence[Any], start: int) -> tuple[list[dict[str, Any]], list[float]]:
    replies = backend.reply([item.context for item in items], [asks_of(item) for item in items])
    rows, seconds = [], []
    for offset, slot, row, reply in _rows(items, replies):
        rows.append({"index": start + offset, "question": slot, **row})
        seconds.append(reply.seconds)
    return rows, seconds


def asks_of(item: Any) -> list[Ask]:
    """What a back end is asked about an item's context: its questions, or every choice of its one question."""
    stop = item.meta.get("stop", "sentence")
    if "options" in item.meta:
        return [Ask(text, "", continuation, 0, stop) for text, continuation in item.meta["options"]]
    return [
        Ask(question.text, question.answer_prefix, gold_text(item, slot), question.max_new_tokens, stop)
        for slot, question in enumerate(item.questions)
    ]


def settled(item: Any, replies: Sequence[Reply]) -> tuple[Sequence[Reply], list[float] | None]:
    """One reply a question, and the log-probabilities of its choices where it has some: the choice taken is the output.

    UsageError (exit 2) for a model that gives no log-probabilities.
    """
    if "options" not in item.meta:
        return replies, None
    nats = [math.nan if reply.gold_logprob is None else reply.gold_logprob for reply in replies]
    if any(reply.gold_logprob is None for reply in replies):
        raise UsageError(f"{item.task} compares log-probabilities, which this model does not give")
    taken = picked(item, scorers_of(item)["strict"], nats)
    output = "" if taken is None else item.meta["choices"][taken]
    right = replies[item.meta["answer"]]
    seconds = sum(reply.seconds for reply in replies)
    return [replace(right, output=output, output_ids=[], seconds=seconds)], nats


def _named_scorers(item: Any) -> dict[str, Any]:
    """The names of the item's two rules, where it names them: [strict, compat]."""
    named = scorers_of(item)
    return {"scorers": [named["strict"], named["compat"]]} if "scorers" in item.meta else {}


def _counted(item: Any) -> dict[str, int]:
    """Words and bytes of a text whose perplexity is asked, where its item counts them."""
    return dict(item.meta.get("counted", {}))


def _rows(
    items: Sequence[Any], replies: Sequence[Sequence[Reply]]
) -> Iterator[tuple[int, int, dict[str, Any], Reply]]:
    for offset, item in enumerate(items):
        answers, choices = settled(item, replies[offset])
        for slot, (question, reply) in enumerate(zip(item.questions, answers, strict=True)):
            prompt = item.context + question.text + question.answer_prefix
            logprob = reply.gold_logprob
            facts: dict[str, Any] = {"logprob": logprob, "gold_tokens": reply.gold_tokens, "choices": choices}
            scores = score_answer(item, slot, reply.output, **facts)
            yield (
                offset,
                slot,
                {
                    "item": item.id,
                    "item_sha256": item.sha256,
                    "prompt_sha256": hashlib.sha256(prompt.encode("utf-8")).hexdigest(),
                    "context_tokens": reply.context_tokens,
                    "reached": item.reached,
                    "depths": [round(float(needle.depth), 6) for needle in item.needles],
                    "golds": list(question.golds),
                    "output": reply.output,
                    "output_ids": reply.output_ids,
                    "gold_tokens": reply.gold_tokens,
                    "logprob": logprob if logprob is not None and math.isfinite(logprob) else None,
                    **({"unscored": True} if logprob is None else {}),
                    **_named_scorers(item),
                    **_counted(item),
                    **({} if choices is None else {"choices": [v if math.isfinite(v) else None for v in choices]}),
                    "strict": scores.strict,
                    "compat": scores.compat,
                    **({} if reply.unlocks is None else {"unlocks": list(reply.unlocks)}),
                },
                reply,
            )
