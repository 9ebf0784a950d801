"""One cell: its items through one back end, one row a question, a batch at a time into the cell's log."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from proteus_bench.backends import Answer, AskIds, Backend, open_backend
from proteus_bench.backends.base import Ids
from proteus_bench.backends.weights import ZOO_VARIABLE
from proteus_bench.runner.items import encode_long, gold_text, make_item, plan_suite, stop_ids
from proteus_bench.runner.models import parse
from proteus_bench.score import score_answer, scorers_of
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


def run_cell(job: CellJob) -> None:
    """Answer what the cell's log does not hold yet. Batches are cut by item index alone, so that a resumed cell repeats
    the arithmetic of an uninterrupted one to the last bit; rows that stand are computed again and not written again."""
    folder = RunFolder(Path(job.folder))
    log = CellLog(folder.cell_path(job.key))
    times = CellLog(folder.time_path(job.key))
    try:
        suite = plan_suite(job.suite)
        backend = _backend(job.key.model, job.key.seed, os.environ.get(ZOO_VARIABLE))
        held = {(row["index"], row["question"]) for row in log.rows}
        size = max(1, job.batch_tokens // job.key.length)
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


@lru_cache(maxsize=2)
def _backend(model: str, seed: int, zoo: str | None) -> Backend:
    """The last two back ends stay loaded: a worker's cells come ordered by model and seed."""
    return open_backend(parse(model), seed)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        sys.exit(1)


def _answer(backend: Backend, items: Sequence[Any], start: int) -> tuple[list[dict[str, Any]], list[float]]:
    tokenizer = backend.tokenizer
    contexts = [encode_long(tokenizer, item.context) for item in items]
    asks = [
        [
            AskIds(
                tokenizer.encode(question.text + question.answer_prefix),
                tokenizer.encode(gold_text(question)),
                question.max_new_tokens,
                stop_ids(tokenizer, item.meta.get("stop", "sentence")),
            )
            for question in item.questions
        ]
        for item in items
    ]
    answers = backend.answer(contexts, asks)
    rows, seconds = [], []
    for offset, slot, row, answer in _rows(tokenizer, items, contexts, asks, answers):
        rows.append({"index": start + offset, "question": slot, **row})
        seconds.append(answer.seconds)
    return rows, seconds


def _named_scorers(item: Any) -> dict[str, Any]:
    """The names of the item's two rules, where it names them: [strict, compat]."""
    named = scorers_of(item)
    return {"scorers": [named["strict"], named["compat"]]} if "scorers" in item.meta else {}


def _rows(
    tokenizer: Any,
    items: Sequence[Any],
    contexts: Sequence[Ids],
    asks: Sequence[Sequence[AskIds]],
    answers: Sequence[Sequence[Answer]],
) -> Iterator[tuple[int, int, dict[str, Any], Answer]]:
    for offset, item in enumerate(items):
        for slot, (question, ask, answer) in enumerate(zip(item.questions, asks[offset], answers[offset], strict=True)):
            output = tokenizer.decode(answer.text_ids)
            prompt = item.context + question.text + question.answer_prefix
            logprob = answer.gold_logprob
            scores = score_answer(item, slot, output, logprob=logprob, gold_tokens=len(ask.gold_ids))
            yield (
                offset,
                slot,
                {
                    "item": item.id,
                    "item_sha256": item.sha256,
                    "prompt_sha256": hashlib.sha256(prompt.encode("utf-8")).hexdigest(),
                    "context_tokens": len(contexts[offset]),
                    "reached": item.reached,
                    "depths": [round(float(needle.depth), 6) for needle in item.needles],
                    "golds": list(question.golds),
                    "output": output,
                    "output_ids": list(answer.text_ids),
                    "gold_tokens": len(ask.gold_ids),
                    "logprob": logprob if math.isfinite(logprob) else None,
                    **_named_scorers(item),
                    "strict": scores.strict,
                    "compat": scores.compat,
                    **({} if answer.unlocks is None else {"unlocks": list(answer.unlocks)}),
                },
                answer,
            )
