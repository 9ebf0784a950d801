"""Suites and items as the runner needs them: counts, questions per item."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.registry import Registry


@dataclass(frozen=True)
class SuitePlan:
    """A frozen suite. ``source``: what it was asked by (name or path). ``counts``: items by (task, length).

    hashes: by tokenizer fingerprint and cell (task, or task@length with several lengths), over all items; what the items
    of a whole cell must have. data: sha256 of the data by task, for tasks that read data which is not shipped.
    """

    source: str
    name: str
    version: str
    sha256: str
    split: str
    data_seed: int
    counts: dict[tuple[str, int], int]
    hashes: dict[str, dict[str, str]]
    data: dict[str, str] = field(default_factory=dict)

    def frozen(self, fingerprint: str, task: str, length: int) -> str | None:
        """The hash that the items of a whole cell must have; None where the suite froze none for this tokenizer."""
        row = self.hashes.get(fingerprint, {})
        return row.get(f"{task}@{length}", row.get(task))

    @property
    def longest(self) -> int:
        """The most tokens that items are made to have; 0 where all texts have lengths of their own."""
        made = (length for task, length in self.counts if not getattr(tasks().get(task), "whole_set", False))
        return max(made, default=0)

    def block(self) -> dict[str, str]:
        """Name, version and hash, for manifests and identities."""
        return {"name": self.name, "version": self.version, "sha256": self.sha256}


@lru_cache(maxsize=4)
def plan_suite(name: str) -> SuitePlan:
    """A suite by name or path. SuiteError: exit 2 for an unknown one, exit 3 for an invalid file."""
    from proteus_tasks.suites import load_suite

    suite = load_suite(name, suite_folders(), tasks(), suite_texts())
    data = {task: found for task in suite.tasks if (found := getattr(tasks()[task], "data_sha256", None)) is not None}
    return SuitePlan(
        source=name,
        name=suite.id,
        version=suite.version,
        sha256=suite.sha256,
        split=suite.split,
        data_seed=suite.data_seed,
        counts={(task, length): _count(tasks()[task], n, suite.split) for task, length, n in suite.cells()},
        hashes={fingerprint: dict(row) for fingerprint, row in suite.hashes.items()},
        data=data,
    )


def draws_of(task: str) -> str:
    """What a task's items are drawn from: tasks and lengths that share it are paired by index. A task that does not say so
    (or is not installed) shares its draws with itself at other lengths."""
    return str(getattr(tasks().get(task), "draws", None) or task)[:200]


def _count(task: Any, n: int, split: str) -> int:
    """Items of a cell: ``n``, or all that there are of a set that is asked whole."""
    return min(n, task.size(split)) if getattr(task, "whole_set", False) else n


@lru_cache(maxsize=1)
def tasks() -> dict[str, Any]:
    """Every task of every task plugin that loads, by id. UsageError when two plugins offer one id."""
    found: dict[str, Any] = {}
    for name, plugin in Registry("tasks").load()[0].items():
        for task_id, task in plugin.tasks.items():
            if task_id in found:
                raise UsageError(f"two task plugins offer {task_id!r}; the second is {name}")
            found[task_id] = task
    return found


def suite_folders() -> tuple[Path, ...]:
    """The suite folders of every task plugin that loads and has one, ours first: a name is taken from the first that has it."""
    from proteus_tasks.resources import suites_dir

    paths = [getattr(plugin, "suites_path", None) for plugin in Registry("tasks").load()[0].values()]
    return tuple(dict.fromkeys([suites_dir(), *(Path(path) for path in paths if path is not None)]))


def suite_texts() -> dict[str, str]:
    """Suite files by name that plugins carry as text (``suites``): a plugin of one file has no folder for them."""
    found: dict[str, str] = {}
    for plugin in Registry("tasks").load()[0].values():
        for name, text in dict(getattr(plugin, "suites", None) or {}).items():
            found.setdefault(str(name), str(text))
    return found


def make_item(suite: SuitePlan, task: str, length: int, tokenizer: Any, index: int) -> Any:
    """One item. LengthBudgetError (exit 2) names the smallest length that can hold it."""
    table = tasks()
    if task not in table:
        raise EnvironmentFault(f"the plugin of task {task!r} does not load; see 'proteus-bench plugins'")
    arguments = {"data_seed": suite.data_seed, "split": suite.split}
    return table[task].item(index, length=length, tokenizer=tokenizer, **arguments)


def questions_per_item(
    suite: SuitePlan, tokenizer: Any, limit: int | None
) -> tuple[dict[tuple[str, int], int], int]:
    """Questions an item by (task, length), and the tokens of the longest item seen. Makes the first and the last item of
    each, so that a length that cannot hold a task is refused before any work (LengthBudgetError, exit 2), and the longest
    of a set of texts with lengths of their own. Documents that are read in windows have no length that matters."""
    found, longest = {}, 0
    for (task, length), count in suite.counts.items():
        last = min(count, limit or count) - 1
        picks = {0, last}
        if hasattr(tasks()[task], "longest"):
            picks.add(min(last, tasks()[task].longest(suite.split)))
        items = [make_item(suite, task, length, tokenizer, index) for index in sorted(picks)]
        found[task, length] = len(items[0].questions)
        longest = max(longest, *(0 if item.meta.get("windowed") else item.reached for item in items))
    return found, longest


def gold_text(item: Any, slot: int) -> str:
    """The continuation whose log-probability is scored: behind a prompt, or a whole document."""
    golds = item.questions[slot].golds
    return str(golds[0]) if item.meta.get("windowed") else " " + ", ".join(golds)


def suite_rows() -> list[dict[str, Any]]:
    """The suites of all plugins, shortest first, for `list`. One that does not load is reported and left out."""
    from proteus_tasks.suites import SuiteError, load_suite, suite_files

    folders, texts, suites = suite_folders(), suite_texts(), []
    for name in {**suite_files(folders), **texts}:
        try:
            suites.append(load_suite(name, folders, tasks(), texts))
        except SuiteError as error:
            print(f"left out: {error}", file=sys.stderr)
    suites.sort(key=lambda suite: (suite.length, suite.id))
    return [
        {
            "suite": s.id,
            "version": s.version,
            "length": s.length if len(s.lengths) == 1 else list(s.lengths),
            "items": s.n,
            "tasks": list(s.tasks),
            "about": s.description,
        }
        for s in suites
    ]


def task_rows() -> list[dict[str, Any]]:
    """The tasks of all plugins, for `list`."""
    return [{"task": name, "version": task.version} for name, task in sorted(tasks().items())]
