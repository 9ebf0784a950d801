"""Documents of lm-eval's own task definitions: prompts, continuations and which of them is right, on rows that we load.

The definitions (YAML and functions) are read at run time from the installed lm-eval and never copied. Its index of all tasks
takes seconds to build, so only the folder of the wanted task is indexed.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DataFileError

_NEVER = -1e9


@dataclass(frozen=True)
class Document:
    """One question as lm-eval asks it. requests: (prompt, continuation) of each choice, or the one that is scored.

    choices: the texts whose lengths normalise `acc_norm`; answer: the right one's place. words, bytes: of a whole text whose
    probability is asked (prompt ""), as lm-eval counts them.
    """

    kind: str
    requests: tuple[tuple[str, str], ...]
    choices: tuple[str, ...] = ()
    answer: int = 0
    words: int | None = None
    bytes: int | None = None


class HarnessDocs:
    """The documents of one lm-eval task on given rows. DataFileError when lm-eval, or the task in it, is not there."""

    def __init__(self, task: str, folder: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.name = task
        path = _definition(task, folder)
        with _quiet():
            self._task = _task(task, path, rows)
            self._docs = self._task.eval_docs
        self.version = str(self._task.VERSION)

    def __len__(self) -> int:
        return len(self._docs)

    def __getitem__(self, index: int) -> Document:
        task, doc = self._task, self._docs[index]
        prompt = task.fewshot_context(doc, 0)
        found = task.construct_requests(doc=doc, ctx=prompt)
        pairs = [request.args for request in (found if isinstance(found, list) else [found])]
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            counted = task.process_results(doc, (0.0,))
            words, octets = counted["word_perplexity"][1], counted["byte_perplexity"][1]
            return Document("text", (("", pairs[0][0]),), words=int(words), bytes=int(octets))
        requests = tuple((str(before), str(after)) for before, after in pairs)
        if task.OUTPUT_TYPE == "loglikelihood":
            return Document("word", requests)
        return Document("choice", requests, tuple(map(str, task.doc_to_choice(doc))), _answer(task, doc, len(requests), index))


def _answer(task: Any, doc: Any, choices: int, index: int) -> int:
    """The choice that lm-eval's own scoring calls right."""
    for place in range(choices):
        results = [(0.0 if other == place else _NEVER, False) for other in range(choices)]
        if task.process_results(doc, results)["acc"] == 1.0:
            return place
    raise DataFileError(f"{task.config.task}: row {index} has no right answer among its choices")


def _definition(name: str, folder: str) -> Path:
    """The folder of a task in the installed lm-eval."""
    spec = importlib.util.find_spec("lm_eval")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    path = next((p for root in roots if (p := Path(root) / "tasks" / folder).is_dir()), None)
    if path is None:
        raise DataFileError(f"{name} is defined by the package 'lm-eval' (extra 'lm-eval'), which is not here or lacks it")
    return path


def _task(name: str, path: Path, rows: Sequence[Mapping[str, Any]]) -> Any:
    import datasets
    from lm_eval.tasks import TaskManager

    def given(**_: Any) -> dict[str, Any]:
        table = datasets.Dataset.from_list([dict(row) for row in rows])
        return dict.fromkeys(("train", "validation", "test"), table)

    try:
        manager = TaskManager(include_path=str(path), include_defaults=False)
        return manager.load([{"group": "whole", "task": [{"task": name, "custom_dataset": given}]}])["tasks"][name]
    except Exception as error:  # its definitions are code that meets rows which they did not expect
        raise DataFileError(f"lm-eval cannot make its task {name} of these rows: {str(error)[:200]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of datasets, and lm-eval's advice about every data set that is handed over."""
    import datasets

    bars, level = not datasets.are_progress_bars_disabled(), logging.root.manager.disable
    datasets.disable_progress_bars()
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)
        if bars:
            datasets.enable_progress_bars()
