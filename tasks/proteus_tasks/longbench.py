"""Six QA sets of LongBench v1: NarrativeQA, Qasper, MultiFieldQA-en, HotpotQA, 2WikiMQA, MuSiQue, or their fixtures.

`compat`: the original prompt frames, read at run time from the installed lm-eval; the original middle truncation of the whole
prompt at its lengths; F1 over the whole generation. `strict`: our wording; only the context is cut, in its middle, and the item
says whether the answer is still there; an accepted answer must be there whole. After THUDM/LongBench (arXiv 2308.14508).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import fixtures_qa, sources
from .errors import DataFileError, LengthBudgetError, TaskError
from .family import ANSWER_SLACK, Draft, Family, ask
from .item import Item, Question
from .retrieval import order
from .sources import LONGBENCH_SETS
from .tokenizers import Tokenizer, count, count_batch, decode, special_tokens

MAX_GEN = {"narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "hotpotqa": 32, "2wikimqa": 32, "musique": 32}
"""Tokens that the original generates."""
ORIGINAL_LIMITS = {4096: 3500, 8192: 7500, 16384: 15500, 32768: 31500}
"""Longest prompt, in tokens, that the original gives a model of this context length."""
HEAD = "Read the text, then answer the question about it.\nText:"
MARK = " ..."
_NOTE = {"qasper": " Say unanswerable when the text does not tell."}
_LEAST_CONTEXT = 16
_SEAM_TOKENS = 8
"""Left free at other lengths: cut texts may have a few tokens more when they are read again."""
_TRIES = 8


@dataclass(frozen=True)
class Row:
    """One question about one context, with the accepted answers (not empty, stripped) and its number in the data."""

    question: str
    context: str
    answers: tuple[str, ...]
    number: int


def middle_cut(ids: Sequence[int], limit: int) -> list[int]:
    """LongBench v1's truncation: the first and the last half of `limit` tokens; an odd limit keeps one token less."""
    if len(ids) <= limit:
        return list(ids)
    half = limit // 2
    return [*ids[:half], *ids[len(ids) - half :]]


@lru_cache(maxsize=8)
def template(name: str) -> str:
    """The prompt frame of a set, from the YAML file of the installed lm-eval. DataFileError when it is not there."""
    spec = importlib.util.find_spec("lm_eval")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    path = next((p for f in folders if (p := Path(f) / "tasks" / "longbench" / f"{name}.yaml").is_file()), None)
    if path is None:
        raise DataFileError(f"longbench.{name}.compat reads its prompt from the package 'lm-eval' (extra 'lm-eval')")
    lines = path.read_text(encoding="utf-8").splitlines()
    quoted = next((line.partition(":")[2].strip() for line in lines if line.startswith("doc_to_text:")), "")
    try:
        text = json.loads(quoted)  # a double-quoted scalar of one line, whose escapes YAML and JSON share
    except ValueError:
        text = None
    if not isinstance(text, str) or text.count("{{context}}") != 1 or text.count("{{question}}") != 1:
        raise DataFileError(f"{path.name} of lm-eval has another form than this version reads")
    return text


def filled(frame: str, context: str, question: str) -> str:
    """A frame with its context and question. Braces in the texts are left alone."""
    before, after = frame.split("{{context}}")
    return before + context + after.replace("{{question}}", question)


@lru_cache(maxsize=16)
def load_rows(name: str, data_dir: str | None) -> tuple[tuple[Row, ...], str, str]:
    """(rows with an answer, origin, sha256) of a real set."""
    table = sources.load(sources.SOURCES[f"longbench_{name}"], data_dir)
    rows = [_row(row, number) for number, row in enumerate(table.rows)]
    kept = tuple(row for row in rows if row.answers and row.context.strip())
    if not kept:
        raise DataFileError(f"longbench {name} from {table.origin}: no row with a context and an answer")
    return kept, table.origin, table.sha256


def _row(row: dict[str, Any], number: int) -> Row:
    answers = tuple(dict.fromkeys(answer.strip() for answer in row["answers"] if answer.strip()))
    return Row(row["input"].strip(), row["context"], answers, number)


@dataclass(frozen=True, kw_only=True)
class LongBenchTask(Family):
    """Items of one set (or its fixture) in the form `compat` or `strict`."""

    name: str
    form: str
    fixture: bool = False
    data_dir: str | None = None
    version: int = 1

    @property
    def id(self) -> str:
        return f"longbench.{self.name}{'-fixture' if self.fixture else ''}.{self.form}"

    @property
    def data_sha256(self) -> str | None:
        """sha256 of the rows that were loaded; None for a fixture, which is part of the program."""
        return None if self.fixture else load_rows(self.name, sources.folder_of(self.data_dir))[2]

    def size(self, split: str = "test") -> int | None:
        """How many items there are; None for a fixture, which has one for any index."""
        return None if self.fixture else len(load_rows(self.name, sources.folder_of(self.data_dir))[0])

    def item(
        self,
        index: int,
        *,
        length: int,
        tokenizer: Tokenizer,
        data_seed: int = 0,
        split: str = "test",
        depth: float | None = None,
    ) -> Item:
        draft = self.draft(index, length, data_seed, split, depth)
        row, origin, digest = self._find(draft)
        meta = {
            "variant": self.form, "data_seed": data_seed, "index": index, "tokenizer": tokenizer.fingerprint,
            "data": origin, "data_sha256": digest, "row": row.number, "accept": [list(row.answers)],
            "scorers": {"strict": "any@1", "compat": "qa-f1@1"}, "stop": "none" if self.form == "compat" else "line",
        }  # fmt: skip
        build = self._compat if self.form == "compat" else self._strict
        return build(draft, row, length, tokenizer, meta)

    def _find(self, draft: Draft) -> tuple[Row, str, str | None]:
        if self.fixture:
            # One row for each data seed and index: seeds never share a document.
            number = draft.index + 1_000_000 * draft.data_seed
            return _row(fixtures_qa.longbench(self.name, draft.split, number), number), "fixture", None
        if draft.split != "test":
            raise TaskError(f"{self.id}: the data set has one split, which serves as 'test'")
        rows, origin, digest = load_rows(self.name, sources.folder_of(self.data_dir))
        return rows[self.row(draft.index, order(len(rows), "test", draft.data_seed))], origin, digest

    def _compat(self, draft: Draft, row: Row, length: int, tokenizer: Tokenizer, meta: dict[str, Any]) -> Item:
        prompt = filled(template(self.name), row.context, row.question)
        budget = MAX_GEN[self.name]
        limit = ORIGINAL_LIMITS.get(length, length - budget - special_tokens(tokenizer) - _SEAM_TOKENS)
        frame_tokens = count(tokenizer, filled(template(self.name), "", row.question))
        if limit < frame_tokens + _LEAST_CONTEXT:
            least = frame_tokens + _LEAST_CONTEXT + budget + special_tokens(tokenizer) + _SEAM_TOKENS
            raise LengthBudgetError(self.id, length, least)
        ids = tokenizer.encode(prompt)
        kept = len(ids)
        if kept > limit:
            half = limit // 2
            prompt = decode(tokenizer, ids[:half]) + decode(tokenizer, ids[len(ids) - half :])
            kept = count(tokenizer, prompt)  # what the cut texts become when they are read again: as published
        context, text = _before_question(prompt)
        question = Question(text, "", row.answers[:1], budget)
        survives = len(ids) <= limit or _holds(prompt, row.answers)
        return self.build(
            draft,
            length,
            reached=kept + budget + special_tokens(tokenizer),
            context=context,
            questions=(question,),
            truncation="none" if len(ids) <= limit else "prompt_middle",
            gold_survives=survives,
            meta={
                **meta,
                "limit": limit,
                "prompt_tokens": len(ids),
                "gold_in_context": _holds(row.context, row.answers),
            },
        )

    def _strict(self, draft: Draft, row: Row, length: int, tokenizer: Tokenizer, meta: dict[str, Any]) -> Item:
        budget = int(count_batch(tokenizer, [f" {answer}" for answer in row.answers]).max()) + ANSWER_SLACK
        note = _NOTE.get(self.name, "")
        question = ask(f"\nQuestion: {row.question}{note}\nAnswer:", "", row.answers[:1], tokenizer, budget)
        text = " ".join(row.context.split())
        fixed = count_batch(tokenizer, [HEAD, question.text, MARK]).tolist()
        room = length - sum(fixed) - budget - special_tokens(tokenizer)
        if room < _LEAST_CONTEXT:
            raise LengthBudgetError(self.id, length, length + _LEAST_CONTEXT - room)
        kept, reached, cut = f" {text}", 0, False
        for _ in range(_TRIES):
            reached = count(tokenizer, HEAD + kept + question.text) + budget + special_tokens(tokenizer)
            if reached <= length:
                break
            if cut:
                room -= reached - length
            kept, cut = _without_middle(tokenizer, text, room), True
        else:
            raise TaskError(f"{self.id}: item {draft.index} cannot be cut to {length} tokens with this tokenizer")
        return self.build(
            draft,
            length,
            reached=reached,
            context=HEAD + kept,
            questions=(question,),
            truncation="context_middle" if cut else "none",
            gold_survives=not cut or _holds(kept, row.answers),
            meta={**meta, "gold_in_context": _holds(text, row.answers)},
        )


def _without_middle(tokenizer: Tokenizer, text: str, room: int) -> str:
    """About `room` tokens of whole words from both ends of a text, with a mark between them."""
    ids = tokenizer.encode(f" {text}")
    half = max(1, room // 2)
    head, tail = decode(tokenizer, ids[:half]), decode(tokenizer, ids[len(ids) - half :])
    head = head[: head.rfind(" ")] if " " in head.strip() else head
    tail = tail[tail.find(" ", 1) :] if " " in tail.strip() else tail
    return f" {head.strip()}{MARK} {tail.strip()}"


def _before_question(prompt: str) -> tuple[str, str]:
    """(context, question) of a prompt: cut before the line with the question, or before the last word."""
    at = prompt.rfind("\nQuestion:")
    at = at if at > 0 else max(prompt.rstrip().rfind("\n"), prompt.rstrip().rfind(" "))
    while at > 0 and prompt[at - 1].isspace():
        at -= 1
    return prompt[:at], prompt[at:]


def _holds(text: str, answers: Sequence[str]) -> bool:
    lowered = text.casefold()
    return any(answer.casefold() in lowered for answer in answers)


LONGBENCH_TASKS: tuple[LongBenchTask, ...] = tuple(
    LongBenchTask(name=name, form=form, fixture=fixture)
    for fixture in (False, True)
    for name in LONGBENCH_SETS
    for form in ("compat", "strict")
)
