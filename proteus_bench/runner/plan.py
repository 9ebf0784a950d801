"""The plan of a run: every cell and everything that decides its numbers, before any work."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from proteus_bench import __version__
from proteus_bench.backends import BackendInfo, forget, opened
from proteus_bench.errors import UsageError
from proteus_bench.runner.items import SuitePlan, plan_suite, questions_per_item
from proteus_bench.runner.models import Method, methods_of
from proteus_bench.score import SCORER_ID, SCORER_VERSION
from proteus_bench.spec import RunSpec
from proteus_bench.store import CellKey, digest


@dataclass(frozen=True)
class Plan:
    """A resolved run. ``infos``: by (method text, seed). ``cells``: with their item counts, in running order.

    asked: questions an item by (task, length). tokenizers: definitions by fingerprint, of models outside the zoo.
    """

    spec: RunSpec
    suite: SuitePlan
    methods: tuple[Method, ...]
    infos: dict[tuple[str, int], BackendInfo]
    cells: dict[CellKey, int]
    notes: tuple[str, ...]
    asked: dict[tuple[str, int], int]
    tokenizers: dict[str, str] = field(default_factory=dict)

    def questions(self, key: CellKey) -> int:
        """Rows that the cell's log will hold."""
        return self.cells[key] * self.asked[key.task, key.length]

    @property
    def is_partial(self) -> bool:
        """Whether a limit leaves items of the suite out."""
        return any(self.cells[key] < self.suite.counts[key.task, key.length] for key in self.cells)

    def default_workers(self) -> int:
        """One process a CPU; one in all for a model outside the zoo, which may fill the memory or the device by itself."""
        return 1 if any(method.is_external for method in self.methods) else os.cpu_count() or 1

    def identity(self, text: str, seed: int) -> dict[str, Any]:
        """What makes a record what it is; its sha256 is the record's id."""
        info = self.infos[text, seed]
        return {
            "suite": self.suite.block(),
            "scorer": {"id": SCORER_ID, "version": SCORER_VERSION},
            "model": info.model,
            "schedule": info.schedule,
            "size": info.size,
            "seed": seed,
            "trained_schedule": info.trained_schedule,
            "checkpoint_sha256": info.sha256,
            "config_sha256": info.config_sha256,
            "tokenizer_sha256": info.tokenizer_sha256,
            "capacity": info.capacity,
            "dtype": info.dtype,
            "device": info.device,
            "backend": info.backend,
            **({"settings": info.settings} if info.settings else {}),
            "batch_tokens": self.spec.batch_tokens,
            **({"data": self.suite.data} if self.suite.data else {}),
            "items": [[k.task, k.length, n] for k, n in self.cells.items() if (k.model, k.seed) == (text, seed)],
        }

    def document(self) -> dict[str, Any]:
        """The plan as plain values: the manifest."""
        return {
            "version": __version__,
            "spec": self.spec.measured(),
            "suite": self.suite.block(),
            "records": [self.identity(text, seed) for text, seed in self.infos],
            "cells": [{**asdict(key), "items": count} for key, count in self.cells.items()],
        }

    def default_folder(self) -> str:
        """Name of the run folder when none was asked for: the same command finds the same folder."""
        return f"{self.methods[0].text}-{self.suite.name}-{digest(self.document())[:8]}".replace("/", "_")


def make_plan(spec: RunSpec) -> Plan:
    """Resolve models, weights and suite, load every checkpoint once to check it, and list the cells.

    All errors of a bad request surface here, before any work: unknown names and impossible capacities (exit 2), damaged
    checkpoints (exit 3), lengths that cannot hold a task (exit 2).
    """
    suite = plan_suite(spec.suite)
    methods, notes = methods_of(spec)
    infos: dict[tuple[str, int], BackendInfo] = {}
    forget()  # every checkpoint is read and checked, whatever an earlier run of this process kept
    tokenizers: dict[str, Any] = {}
    for method in methods:
        for seed in method.seeds:
            backend = opened(method.spec, seed, spec.settings())
            infos[method.text, seed] = backend.info
            tokenizers[backend.info.tokenizer_sha256] = backend.tokenizer
            _preflight(method, backend.info, suite.longest, suite.name)
    asked: dict[tuple[str, int], int] = {}
    for fingerprint, tokenizer in tokenizers.items():
        asked, longest = questions_per_item(suite, tokenizer, spec.limit)
        for method in methods:
            for info in (infos[method.text, seed] for seed in method.seeds):
                if info.tokenizer_sha256 == fingerprint:
                    _preflight(method, info, longest, suite.name)
    cells: dict[CellKey, int] = {}
    for method in methods:
        for seed in method.seeds:
            for (task, length), count in suite.counts.items():
                cells[CellKey(method.text, task, length, seed)] = min(count, spec.limit or count)
    texts = {name: text for name, one in tokenizers.items() if (text := getattr(one, "definition", None)) is not None}
    return Plan(spec, suite, tuple(methods), infos, cells, tuple(notes), asked, texts)


def _preflight(method: Method, info: BackendInfo, longest: int, suite: str) -> None:
    """UsageError (exit 2) for items longer than the model's context, prompt and answer together."""
    if info.max_length is not None and longest > info.max_length:
        raise UsageError(f"{method.text} takes at most {info.max_length} tokens; suite {suite} has {longest}")
