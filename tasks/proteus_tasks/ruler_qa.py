"""Question answering among distractor paragraphs (RULER's qa), strict form, over SQuAD 2, HotpotQA or their fixtures.

Against RULER's defects: the gold paragraphs stand at independent uniform depths, items are drawn from all questions and not
the first ones, and no distractor holds the answer, so that an answer is right because of its paragraph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import fixtures_qa, rng, sources
from .errors import DataFileError, TaskError
from .family import Draft, Family, Piece, Weave, ask, woven
from .item import Item
from .padding import Corpus, padding
from .retrieval import order
from .tokenizers import Tokenizer, count

HEAD = "Answer the question from the paragraphs below.\n"
_MOST_DISTRACTORS = 8000
"""Of a larger data set every k-th paragraph serves as distractor: about a million tokens, which are counted once."""
_SOURCES = {"squad": "squad", "hotpot": "hotpotqa_dev"}


@dataclass(frozen=True)
class Asked:
    """One question with the wordings of its answer and the paragraphs that are needed."""

    question: str
    answers: tuple[str, ...]
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Book:
    """All questions of a data set, its paragraphs as padding, and which data it is."""

    asked: tuple[Asked, ...]
    left_out: int
    corpus: Corpus
    origin: str
    sha256: str


def read_squad(document: Any) -> tuple[list[Asked], list[str], int]:
    """(questions, paragraphs, questions left out) of a SQuAD document: those without an answer are left out."""
    found, paragraphs, left_out = [], [], 0
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            text = " ".join(paragraph["context"].split())
            paragraphs.append(text)
            for question in paragraph["qas"]:
                answers = tuple(dict.fromkeys(" ".join(a["text"].split()) for a in question["answers"]))
                if question.get("is_impossible") or not answers:
                    left_out += 1
                    continue
                found.append(Asked(" ".join(question["question"].split()), answers, (text,)))
    return found, paragraphs, left_out


def read_hotpot(document: Any) -> tuple[list[Asked], list[str], int]:
    """(questions, paragraphs, questions left out) of HotpotQA rows. Left out: yes and no, and answers that are not in the
    supporting paragraphs."""
    found, paragraphs, left_out = [], [], 0
    for row in document:
        texts = {title: " ".join(f"{title}: {' '.join(sentences)}".split()) for title, sentences in row["context"]}
        paragraphs += list(texts.values())
        titles = list(dict.fromkeys(title for title, _ in row["supporting_facts"]))
        gold = tuple(texts[title] for title in titles if title in texts)
        answer = " ".join(row["answer"].split())
        if (
            len(gold) < len(titles)
            or not any(answer.lower() in text.lower() for text in gold)
            or answer in ("yes", "no")
        ):
            left_out += 1
            continue
        found.append(Asked(" ".join(row["question"].split()), (answer,), gold))
    return found, paragraphs, left_out


@lru_cache(maxsize=8)
def load_book(dataset: str, fixture: bool, split: str, data_dir: str | None) -> Book:
    """Questions and paragraphs. DataFileError when the file is not of its schema."""
    if fixture:
        document = {"squad": fixtures_qa.squad, "hotpot": fixtures_qa.hotpot}[dataset](split)
        origin, digest = "fixture", sources.rows_sha256([{"document": document}])
    else:
        if split != "test":
            raise TaskError(f"{dataset}: the data set has one split, which serves as 'test'")
        table = sources.load(sources.SOURCES[_SOURCES[dataset]], data_dir)
        document, origin, digest = table.document, table.origin, table.sha256
    try:
        asked, paragraphs, left_out = (read_squad if dataset == "squad" else read_hotpot)(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataFileError(f"{dataset} from {origin}: not of the schema ({type(error).__name__}: {error})") from error
    if not asked:
        raise DataFileError(f"{dataset} from {origin}: no question with an answer")
    paragraphs = list(dict.fromkeys(paragraphs))
    paragraphs = paragraphs[:: -(-len(paragraphs) // _MOST_DISTRACTORS)]
    corpus = Corpus.of(
        f"{dataset}-{digest[:16]}", [(text, [text]) for text in paragraphs], most_words=400, start_words=400
    )
    return Book(tuple(asked), left_out, corpus, origin, digest)


@dataclass(frozen=True, kw_only=True)
class QaTask(Family):
    """Questions of `dataset` (squad, hotpot) or its fixture, among as many other paragraphs as fit."""

    dataset: str
    fixture: bool = False
    data_dir: str | None = None
    version: int = 1

    @property
    def id(self) -> str:
        return f"ruler.qa_{self.dataset}{'-fixture' if self.fixture else ''}"

    @property
    def data_sha256(self) -> str | None:
        """sha256 of the data that was loaded; None for a fixture, which is part of the program."""
        return None if self.fixture else load_book(self.dataset, False, "test", sources.folder_of(self.data_dir)).sha256

    def size(self, split: str = "test") -> int:
        """How many items there are."""
        return len(load_book(self.dataset, self.fixture, split, sources.folder_of(self.data_dir)).asked)

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
        book = load_book(self.dataset, self.fixture, split, sources.folder_of(self.data_dir))
        number = self.row(index, order(len(book.asked), split, data_seed))
        asked = book.asked[number]
        question = ask(f"\nQuestion: {asked.question}\nAnswer:", "", asked.answers[:1], tokenizer)
        start = draft.pick("start", len(book.corpus.starts))
        meta = {
            "haystack_start": start,
            "scorers": {"strict": "any@1", "compat": "ruler-part@1"}, "accept": [list(asked.answers)], "stop": "line",
            "data": book.origin, "data_sha256": book.sha256, "row": number, "questions_left_out": book.left_out,
        }  # fmt: skip
        supply = padding(
            book.corpus,
            tokenizer,
            start,
            length,
            _banned(asked.answers),
            asked.paragraphs,
        )
        weave = Weave(HEAD, _pieces(draft, asked), (question,), meta, sep="\n", least=0)
        return woven(self, draft, weave, supply, book.corpus.name, length, tokenizer)


def _pieces(draft: Draft, asked: Asked) -> tuple[Piece, ...]:
    """The gold paragraphs at independent depths, in order of depth."""
    depths = rng.fractions(draft.seed("depths"), len(asked.paragraphs)).tolist()
    gold = asked.answers[0]
    pieces = [Piece("paragraph", gold, text, at) for text, at in zip(asked.paragraphs, depths, strict=True)]
    return tuple(sorted(pieces, key=lambda piece: piece.depth))


def _banned(answers: Sequence[str]) -> list[str]:
    """Answers that no distractor may hold. A single character would leave no distractor."""
    return [answer for answer in answers if len(answer) > 1]


def paragraph_tokens(task: QaTask, tokenizer: Tokenizer, split: str = "test") -> int:
    """Tokens of the longest paragraph: how far an item may stay under its length."""
    book = load_book(task.dataset, task.fixture, split, sources.folder_of(task.data_dir))
    return max(count(tokenizer, "\n" + text) for text in book.corpus.haystack.units)


QA_TASKS: tuple[QaTask, ...] = tuple(
    QaTask(dataset=dataset, fixture=fixture) for fixture in (False, True) for dataset in _SOURCES
)
