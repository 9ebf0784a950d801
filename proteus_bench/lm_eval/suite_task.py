"""Our suites as lm-eval tasks: one task a cell, one document an item, a numeric standard error on every metric.

An item's questions share its context, so they are not independent: the document's value of a metric is the mean over its
questions, and lm-eval's standard error of the mean over documents is the one clustered by item. Items are fitted to a tokenizer:
that of the model as `metadata` says (``model`` or ``tokenizer``), bytes otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from proteus_bench.backends import Reply
from proteus_bench.backends.encoding import continuation_ids, stop_strings
from proteus_bench.errors import UsageError
from proteus_bench.runner.cell import asks_of, settled
from proteus_bench.runner.items import make_item, plan_suite
from proteus_bench.score import score_answer

METRICS = ("strict", "compat", "logprob")
PREFIX = "proteus_"
MODULE = "proteus_suite"


class SuiteTask(ConfigurableTask):
    """One cell. ``config["metadata"]``: suite, task, length; tokenizer (bytes, micro, a path) or model (as for ``run``); limit.

    strict, compat: the two scores of `proteus-bench run`, means in [0, 1]. logprob: nats of the whole gold.
    UsageError for a suite, tokenizer or task that is not known.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        metadata = dict(config.get("metadata") or {})
        missing = [key for key in ("suite", "task", "length") if key not in metadata]
        if missing:
            raise UsageError(f"a suite task's metadata lacks {', '.join(missing)}")
        self._items: list[Any] = []
        self._tokenizer: Any = None
        super().__init__(
            config={
                "task": config.get("task") or task_name(metadata["suite"], metadata["task"], int(metadata["length"])),
                "custom_dataset": self._dataset,
                "test_split": "test",
                "output_type": "generate_until",
                "doc_to_text": "",
                "doc_to_target": "{{item}}",
                "generation_kwargs": {"until": ["\n"], "do_sample": False},
                "process_results": self.process_results,
                "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in METRICS],
                "num_fewshot": 0,
                "metadata": {**metadata, "version": plan_suite(metadata["suite"]).version},
            }
        )

    def _dataset(self, suite: str, task: str, length: int, **rest: Any) -> dict[str, Any]:
        import datasets

        plan = plan_suite(suite)
        if (task, int(length)) not in plan.counts:
            raise UsageError(f"suite {suite} has no {task} at {length}")
        count = min(plan.counts[task, int(length)], int(rest.get("limit") or 10**9))
        self._tokenizer = tokenizer_of(rest)
        self._items = [make_item(plan, task, int(length), self._tokenizer, index) for index in range(count)]
        rows = [{"index": index, "item": item.id, "item_sha256": item.sha256} for index, item in enumerate(self._items)]
        return {"test": datasets.Dataset.from_list(rows)}

    def construct_requests(self, doc: dict[str, Any], ctx: Any, **kwargs: Any) -> list[Instance]:
        """The answers that an item wants and, behind them, the log-probability of each gold or choice."""
        item = self._items[doc["index"]]
        asks = asks_of(item)
        found: list[tuple[str, tuple[Any, ...]]] = []
        for ask in asks:
            if ask.max_new_tokens > 0:
                settings = {"until": stop_strings(ask.stop), "max_gen_toks": ask.max_new_tokens, "do_sample": False}
                found.append(("generate_until", (item.context + ask.text + ask.answer_prefix, settings)))
        for ask in asks:
            prompt = item.context + ask.text + ask.answer_prefix
            found.append(("loglikelihood", (prompt, ask.gold)) if prompt else ("loglikelihood_rolling", (ask.gold,)))
        known = {key: kwargs[key] for key in ("metadata",) if key in kwargs}
        return [
            Instance(request_type=kind, doc=doc, arguments=pair, idx=index, **known)
            for index, (kind, pair) in enumerate(found)
        ]

    def fewshot_context(self, doc: dict[str, Any], *args: Any, **kwargs: Any) -> str:
        """Nothing is put before an item. UsageError for a chat template: ask `proteus-bench run --chat` instead."""
        if kwargs.get("apply_chat_template"):
            raise UsageError("suites ask plain prompts here: for a chat template use proteus-bench run --chat")
        return ""

    def process_results(self, doc: dict[str, Any], results: Sequence[Any]) -> dict[str, float]:
        """The means over an item's questions."""
        item = self._items[doc["index"]]
        replies, choices = settled(item, self._replies(item, results))
        totals = dict.fromkeys(METRICS, 0.0)
        for slot, reply in enumerate(replies):
            facts: dict[str, Any] = {"logprob": reply.gold_logprob, "gold_tokens": reply.gold_tokens, "choices": choices}
            scores = score_answer(item, slot, reply.output, **facts)
            for metric, value in zip(METRICS, (scores.strict, scores.compat, reply.gold_logprob), strict=True):
                totals[metric] += float(value or 0.0) / len(replies)
        return totals

    def _replies(self, item: Any, results: Sequence[Any]) -> list[Reply]:
        asks = asks_of(item)
        texts = iter(results[: len(results) - len(asks)])
        found = []
        for ask, nats in zip(asks, results[len(results) - len(asks) :], strict=True):
            prompt = item.context + ask.text + ask.answer_prefix
            found.append(
                Reply(
                    output=next(texts) if ask.max_new_tokens > 0 else "",
                    output_ids=[],
                    gold_logprob=float(nats[0] if isinstance(nats, tuple | list) else nats),
                    gold_tokens=len(continuation_ids(self._tokenizer, prompt, ask.gold)),
                    context_tokens=1,
                    seconds=0.0,
                )
            )
        return found


def tokenizer_of(metadata: dict[str, Any]) -> Any:
    """The tokenizer that items are fitted to. lm-eval puts a model's own arguments into the metadata of its tasks."""
    named = metadata.get("tokenizer") or metadata.get("pretrained")
    if metadata.get("model") and not named:
        from proteus_bench.backends import opened
        from proteus_bench.runner.models import parse

        return opened(parse(str(metadata["model"])), int(metadata.get("seed") or 0)).tokenizer
    from proteus_tasks.tokenizers import resolve

    return resolve(str(named or "bytes"))


def task_name(suite: str, task: str, length: int) -> str:
    """`proteus_niah4k__niah_single_1__4096`: what lm-eval calls a cell."""
    return f"{PREFIX}{Path(suite).stem}__{task.replace('.', '_').replace('-', '_')}__{length}"


def suite_tasks(suite: str, **metadata: Any) -> list[SuiteTask]:
    """The cells of a suite as tasks for `lm_eval.simple_evaluate(tasks=...)`. metadata: tokenizer or model, seed, limit."""
    cells = plan_suite(suite).counts
    return [SuiteTask({"metadata": {"suite": suite, "task": task, "length": length, **metadata}}) for task, length in cells]


def write_tasks(folder: str | Path, suites: Iterable[str] | None = None) -> str:
    """Write one YAML a cell and a group a suite, and return the folder, for ``--include_path``. Without ``suites``: all that
    need no data beyond this package.

    `lm_eval --include_path FOLDER --tasks proteus_niah4k --metadata '{"model": "gdn+proteus"}'` then runs them.
    """
    from proteus_tasks.suites import list_suites, load_suite

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{MODULE}.py").write_text("from proteus_bench.lm_eval.suite_task import SuiteTask  # noqa: F401\n")
    frozen = (name for name in list_suites() if load_suite(name).hashes)  # only items of shipped data are frozen
    for suite in suites if suites is not None else frozen:
        plan = plan_suite(suite)
        names = [task_name(suite, task, length) for task, length in plan.counts]
        for name, (task, length) in zip(names, plan.counts, strict=True):
            metadata = json.dumps({"suite": suite, "task": task, "length": length, "version": plan.version})
            (path / f"{name}.yaml").write_text(f"task: {name}\nclass: !function {MODULE}.SuiteTask\nmetadata: {metadata}\n")
        group = f"{PREFIX}{Path(suite).stem}"
        means = [{"metric": metric, "aggregation": "mean", "weight_by_size": False} for metric in METRICS]
        block = {"group": group, "task": names, "aggregate_metric_list": means, "metadata": {"version": plan.version}}
        (path / f"{group}.yaml").write_text(json.dumps(block, indent=1) + "\n")  # JSON is YAML
    return str(path)
