"""LAMBADA, WikiText and seven commonsense sets as lm-eval defines them, or fixtures of the same schema.

Each item is one document of lm-eval's task, zero-shot, with its prompts to the byte; what it was made of stands in its hash.
Scores are lm-eval's: the choice with the highest log-probability (acc), the same per character (acc_norm), the whole word
(LAMBADA), the perplexity of words (LAMBADA, WikiText). These texts have lengths of their own: the asked length cuts nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import fixtures_commonsense, sources
from .errors import TaskError
from .family import Draft, Family
from .harness_docs import Document, HarnessDocs
from .item import Item, Question
from .tokenizers import Tokenizer, count, special_tokens

ACC, NORM = "choice@1", "choice-per-char@1"


@dataclass(frozen=True)
class Definition:
    """lm-eval's task, the folder it stands in, and the rules of (strict, compat): the first is the one that papers report."""

    task: str
    folder: str
    rules: tuple[str, str]


SETS: dict[str, Definition] = {
    "lambada": Definition("lambada_openai", "lambada", ("exact@1", "exact@1")),
    "piqa": Definition("piqa", "piqa", (ACC, NORM)),
    "hellaswag": Definition("hellaswag", "hellaswag", (NORM, ACC)),
    "winogrande": Definition("winogrande", "winogrande", (ACC, ACC)),
    "arc_easy": Definition("arc_easy", "arc", (ACC, NORM)),
    "arc_challenge": Definition("arc_challenge", "arc", (NORM, ACC)),
    "siqa": Definition("social_iqa", "siqa", (ACC, ACC)),
    "boolq": Definition("boolq", "super_glue/boolq", (ACC, ACC)),
    "wikitext": Definition("wikitext", "wikitext", ("token-probability@1", "token-probability@1")),
}


@lru_cache(maxsize=18)
def _rows(name: str, split: str, fixture: bool, folder: str) -> tuple[tuple[dict[str, Any], ...], str, str | None]:
    """(rows, origin, sha256 of what is not shipped)."""
    source = SETS[name].task
    if fixture:
        return fixtures_commonsense.rows(source, split), "fixture", None
    table = sources.load(sources.SOURCES[source], folder)
    return table.rows, table.origin, table.sha256


@lru_cache(maxsize=18)
def _documents(name: str, split: str, fixture: bool, folder: str) -> HarnessDocs:
    definition = SETS[name]
    return HarnessDocs(definition.task, definition.folder, _rows(name, split, fixture, folder)[0])


@dataclass(frozen=True, kw_only=True)
class CommonsenseTask(Family):
    """The documents of one set, in their order, or of its fixture. A run asks all of them, up to the suite's number."""

    name: str
    fixture: bool = False
    data_dir: str | None = None
    version: int = 1
    whole_set = True

    @property
    def id(self) -> str:
        return f"commonsense.{self.name}{'-fixture' if self.fixture else ''}"

    @property
    def data_sha256(self) -> str | None:
        """sha256 of the rows that were loaded; None for a fixture, which is part of the program."""
        return self._held("test")[2]

    def size(self, split: str = "test") -> int:
        """How many items there are."""
        return len(self._held(split)[0])

    def longest(self, split: str = "test") -> int:
        """The index of the item with the most text."""
        lengths = [len(json.dumps(row)) for row in self._held(split)[0]]
        return lengths.index(max(lengths))

    def _held(self, split: str) -> tuple[tuple[dict[str, Any], ...], str, str | None]:
        return _rows(self.name, split, self.fixture, "" if self.fixture else sources.folder_of(self.data_dir))

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
        rows, origin, digest = self._held(split)
        if not self.fixture and split != "test":
            raise TaskError(f"{self.id}: the data set has one split, which serves as 'test'")
        if index >= len(rows):
            raise TaskError(f"{self.id} has {len(rows)} items; there is no item {index}")
        docs = _documents(self.name, split, self.fixture, "" if self.fixture else sources.folder_of(self.data_dir))
        strict, compat = SETS[self.name].rules
        meta = {
            "variant": "compat", "index": index, "tokenizer": tokenizer.fingerprint, "data": origin, "data_sha256": digest,
            "definition": f"lm-eval {docs.name}@{docs.version}", "scorers": {"strict": strict, "compat": compat}, "stop": "none",
        }  # fmt: skip
        return self._built(draft, length, docs[index], tokenizer, meta)

    def _built(self, draft: Draft, length: int, doc: Document, tokenizer: Tokenizer, meta: dict[str, Any]) -> Item:
        before, after = doc.requests[doc.answer]
        shared = before if len({prompt for prompt, _ in doc.requests}) == 1 else ""
        budget = count(tokenizer, after) if doc.kind == "word" else 0
        if doc.kind == "choice":
            meta["options"] = [[prompt if not shared else "", continuation] for prompt, continuation in doc.requests]
            meta |= {"choices": list(doc.choices), "answer": doc.answer}
            gold = doc.choices[doc.answer].strip() or after.strip()
        elif doc.kind == "word":
            meta["counted"] = {"words": 1}
            gold = after.strip()
        else:
            meta |= {"counted": {"words": doc.words, "bytes": doc.bytes}, "windowed": True}
            gold = after
        reached = max(count(tokenizer, prompt + continuation) for prompt, continuation in doc.requests)
        return self.build(
            draft,
            length,
            reached=reached + special_tokens(tokenizer),
            context=shared,
            questions=(Question("", "", (gold,), budget),),
            meta=meta,
        )


COMMONSENSE_TASKS: tuple[CommonsenseTask, ...] = tuple(
    CommonsenseTask(name=name, fixture=fixture) for fixture in (False, True) for name in SETS
)
