"""Retrieval from real documents: SWDE, FDA and SQuAD completion, in four prompt variants and two length policies.

Policies: `window`, the published one (JRT, arXiv 2407.05483): a window of the document round the answer, which tells where the
answer is; and `ladder`: the whole document at a random depth among lines of other documents that mention neither key nor
value. A document that is longer than the length keeps its beginning, and `gold_survives` says whether the value is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from . import fixtures, haystack, rng, sources
from .errors import LengthBudgetError, TaskError
from .family import Draft, Family, ask
from .fit import Layout, Plan, fit
from .item import Item, Needle, Question
from .padding import Corpus, padding
from .retrieval_text import (
    DATASETS,
    VARIANTS,
    Extract,
    Frame,
    answer_position,
    ended,
    frame,
    oracle_window,
    parse,
)
from .supply import Supply
from .tokenizers import Tokenizer, count, count_batch, decode, special_tokens

MAX_NEW_TOKENS = 48
POLICIES = ("window", "ladder")
_LEAST_DOCUMENT = 16
_TRIES = 8


@dataclass(frozen=True)
class Rows:
    """Parsed rows that can be asked, how many were left out and why, and the other documents as padding."""

    extracts: tuple[Extract, ...]
    dropped: int
    origin: str
    sha256: str
    corpus: Corpus


@lru_cache(maxsize=16)
def load_rows(dataset: str, fixture: bool, split: str, data_dir: str | None) -> Rows:
    """The rows of a data set. Left out: values of one character (as published), and values that the document does not hold."""
    if fixture:
        raw = fixtures.rows(dataset, split)
        origin, digest = "fixture", sources.rows_sha256(raw)
    else:
        if split != "test":
            raise TaskError(f"{dataset}: the data set has one split, which serves as 'test'")
        table = sources.load(sources.SOURCES[dataset], data_dir)
        raw, origin, digest = table.rows, table.origin, table.sha256
    parsed = [parse(dataset, row) for row in raw]
    kept = tuple(e for e in parsed if len(e.gold) > 1 and e.gold.lower() in e.body.lower())
    if not kept:
        raise TaskError(f"{dataset} from {origin}: no document holds its value")
    cut = haystack.split_sentences if dataset == "squad_completion" else str.splitlines
    corpus = Corpus.of(f"{dataset}-{digest[:16]}", [(e.body, cut(e.body)) for e in parsed])
    return Rows(kept, len(parsed) - len(kept), origin, digest, corpus)


@dataclass(frozen=True, kw_only=True)
class RetrievalTask(Family):
    """Items of one data set (or its fixture) in one prompt variant under one length policy."""

    dataset: str
    variant: str
    policy: str
    fixture: bool = False
    data_dir: str | None = None
    version: int = 1

    takes_depth = False

    @property
    def id(self) -> str:
        name = self.dataset.removesuffix("_completion")
        return f"retrieval.{name}{'-fixture' if self.fixture else ''}.{self.variant}.{self.policy}"

    @property
    def data_sha256(self) -> str | None:
        """sha256 of the rows that were loaded; None for a fixture, which is part of the program."""
        return None if self.fixture else load_rows(self.dataset, False, "test", sources.folder_of(self.data_dir)).sha256

    def size(self, split: str = "test") -> int:
        """How many items there are."""
        return len(load_rows(self.dataset, self.fixture, split, sources.folder_of(self.data_dir)).extracts)

    @property
    def draws(self) -> str:
        """Variants and policies share rows, places and padding: an item differs between them in nothing else."""
        return f"retrieval.{self.dataset}@{self.version}"

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
        rows = load_rows(self.dataset, self.fixture, split, sources.folder_of(self.data_dir))
        number = self.row(index, order(len(rows.extracts), split, data_seed))
        extract = rows.extracts[number]
        parts = frame(extract, self.variant)
        question = ask(parts.question, "", [extract.gold], tokenizer, MAX_NEW_TOKENS)
        meta = {
            "variant": self.variant, "policy": self.policy, "data_seed": data_seed, "index": index, "row": number,
            "tokenizer": tokenizer.fingerprint, "data": rows.origin, "data_sha256": rows.sha256,
            "rows_left_out": rows.dropped, "scorers": {"strict": "strict@1", "compat": "contains-any@1"}, "stop": "line",
            "accept": [[extract.gold if self.variant != "based" else extract.value]],
        }  # fmt: skip
        if self.policy == "window":
            return self._window(draft, extract, parts, question, length, tokenizer, meta)
        return self._ladder(draft, rows, extract, parts, question, length, tokenizer, meta)

    def _window(
        self,
        draft: Draft,
        extract: Extract,
        parts: Frame,
        question: Question,
        length: int,
        tokenizer: Tokenizer,
        meta: dict[str, object],
    ) -> Item:
        body = extract.body.strip()
        position = answer_position(extract, body)
        ids = tokenizer.encode(body)
        before = count(tokenizer, body[: position or 0].rstrip(" "))
        least = 2 * _LEAST_DOCUMENT + 50
        if length < least:
            raise LengthBudgetError(self.id, length, least)
        first, end = oracle_window(ids, before, length)
        text = decode(tokenizer, ids[first:end]) if (first, end) != (0, len(ids)) else body
        context = _joined(text, parts)
        asked = question.text + question.answer_prefix
        # What the window leaves out and what the prompt adds is counted, not hidden: this policy may pass its length.
        reached = count(tokenizer, context + asked) + MAX_NEW_TOKENS + special_tokens(tokenizer)
        meta = {**meta, "window": [first, end], "document_tokens": len(ids)}
        return self.build(
            draft,
            length,
            reached=reached,
            context=context,
            questions=(question,),
            truncation="oracle_window",
            gold_survives=extract.gold.lower() in text.lower(),
            meta=meta,
        )

    def _ladder(
        self,
        draft: Draft,
        rows: Rows,
        extract: Extract,
        parts: Frame,
        question: Question,
        length: int,
        tokenizer: Tokenizer,
        meta: dict[str, object],
    ) -> Item:
        banned = (extract.key, extract.gold) if extract.key else (extract.gold,)
        start = draft.pick("start", len(rows.corpus.starts))
        at = float(rng.fractions(draft.seed("depth"), 1)[0])
        room = self._room(parts, question, length, tokenizer)
        supply = padding(rows.corpus, tokenizer, start, room, banned, (extract.body,))
        for _ in range(_TRIES):
            page = _page(self.id, length, extract, at, room, supply, tokenizer)
            made = _Prompt(page, parts, question, tokenizer)
            over = made.reached - length
            if over <= 0:
                break
            room -= -(-over // parts.copies)  # the parts did not add up: what they lacked is taken off
        else:
            raise TaskError(f"{self.id}: item {draft.index} cannot be laid out in {length} tokens with this tokenizer")
        needles = tuple(
            Needle(extract.key or "completion", extract.gold, char, token, at) for char, token in made.places()
        )
        layout = page.layout
        return self.build(
            draft,
            length,
            reached=made.reached,
            context=made.context,
            questions=(question,),
            needles=needles,
            truncation="none" if page.whole else "document_beginning",
            gold_survives=extract.gold.lower() in page.document.lower(),
            meta={**meta, "padding_units": layout.units, "padding_start": start, "counting": made.counting},
        )

    def _room(self, parts: Frame, question: Question, length: int, tokenizer: Tokenizer) -> int:
        """Tokens for one copy of the document with its padding."""
        asked = count(tokenizer, question.text) + MAX_NEW_TOKENS + special_tokens(tokenizer)
        # A full stop and a line end at the most for each copy.
        room = (length - asked - count(tokenizer, parts.opening)) // parts.copies - 2
        if room < _LEAST_DOCUMENT:
            raise LengthBudgetError(self.id, length, length + (_LEAST_DOCUMENT - room) * parts.copies)
        return room


@dataclass(frozen=True)
class _Page:
    """The document among its padding. `whole`: nothing of it was cut."""

    document: str
    whole: bool
    layout: Layout


def _page(
    task: str, length: int, extract: Extract, at: float, room: int, supply: Supply, tokenizer: Tokenizer
) -> _Page:
    body = extract.body.strip()
    whole = count(tokenizer, body) <= room
    if not whole:
        body = _beginning(tokenizer, body, room, task, length)
    # Nothing is asked here: the question's cost is not in the room.
    return _Page(body, whole, fit(Plan(task, room, ((body, at),), (("", 0),), "", "\n", 0), supply, tokenizer))


class _Prompt:
    """A page in its frame, with its tokens as sums of parts; counted whole where a seam does not add up."""

    def __init__(self, page: _Page, parts: Frame, question: Question, tokenizer: Tokenizer) -> None:
        self.page, self.parts, self.tokenizer = page, parts, tokenizer
        body = page.layout.context
        self.stop = "." if parts.full_stop and not body.endswith(".") else ""
        self.body = body + self.stop
        self.context = parts.opening + "\n".join([self.body] * parts.copies)
        first, last = body.split("\n", 1)[0], body.rsplit("\n", 1)[-1]
        texts = (
            first, f"\n{first}", parts.opening + first, f"\n{last}", f"\n{last}{self.stop}", question.text,
            f"\n{last}{self.stop}{question.text}", f"\n{last}{self.stop}\n{first}",
        )  # fmt: skip
        alone, behind, opened, end, stopped, asked, seam, between = count_batch(tokenizer, texts).tolist()
        self.opened = opened - alone
        self.copy = page.layout.reached + stopped - end
        self.gap = behind - alone
        self.reached = self.opened + parts.copies * self.copy + (parts.copies - 1) * self.gap + asked
        adds_up = seam == stopped + asked and (parts.copies == 1 or between == stopped + behind)
        self.counting = page.layout.counting if adds_up else "whole"
        if self.counting == "whole":
            self.reached = count(tokenizer, self.context + question.text)
        self.reached += question.max_new_tokens + special_tokens(tokenizer)

    def places(self) -> list[tuple[int, int]]:
        """(character, token) at which each copy of the document starts in the context."""
        (char,), (token,) = self.page.layout.char_offsets, self.page.layout.token_offsets
        found = []
        for copy in range(self.parts.copies):
            at = len(self.parts.opening) + copy * (len(self.body) + 1) + char
            if self.counting == "whole":
                before = self.context[:at].removesuffix("\n") if at > len(self.parts.opening) else self.parts.opening
                found.append((at, count(self.tokenizer, before)))
            else:
                gap = self.gap if char else 0
                tokens = self.opened + copy * (self.copy + gap) + (copy - 1) * copy // 2 * self.gap + token
                found.append((at, tokens))
        return found


def _joined(text: str, parts: Frame) -> str:
    body = ended(text) if parts.full_stop else text.strip()
    return parts.opening + "\n".join([body] * parts.copies)


def _beginning(tokenizer: Tokenizer, body: str, room: int, task: str, length: int) -> str:
    """The longest beginning of whole words within `room` tokens."""
    ids = tokenizer.encode(body)[:room]
    while ids:
        text = decode(tokenizer, ids)
        cut = max(text.rfind(" "), text.rfind("\n"))
        text = text[:cut].rstrip() if cut > 0 else text
        if text and body.startswith(text) and count(tokenizer, text) <= room:
            return text
        ids = ids[:-1]
    raise LengthBudgetError(task, length, length + _LEAST_DOCUMENT)


@lru_cache(maxsize=64)
def order(n: int, split: str, data_seed: int) -> tuple[int, ...]:
    """The order in which rows become items: a permutation for each data seed, the same for every variant and policy."""
    raw = rng.raw(rng.seed_of("proteus-tasks", "rows", split, data_seed), n)
    return tuple(int(i) for i in raw.argsort(kind="stable"))


RETRIEVAL_TASKS: tuple[RetrievalTask, ...] = tuple(
    RetrievalTask(dataset=dataset, variant=variant, policy=policy, fixture=fixture)
    for fixture in (False, True)
    for dataset in DATASETS
    for variant in VARIANTS
    for policy in POLICIES
)
