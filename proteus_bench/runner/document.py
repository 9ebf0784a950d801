"""Building run.json, the items table and timing.json from a plan and its rows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from proteus_bench.errors import InvalidFileError
from proteus_bench.runner.environment import environment
from proteus_bench.runner.execute import Executed
from proteus_bench.runner.items import draws_of
from proteus_bench.runner.plan import Plan
from proteus_bench.runner.pool import Outcome
from proteus_bench.runner.results import NOTHING_MEASURED, CellResult, Comparison, cell_result, compare
from proteus_bench.score import SCORER_ID, SCORER_VERSION
from proteus_bench.stats import holm_family
from proteus_bench.store import CellKey, RunFolder, digest, read_log, write_bytes, write_json
from proteus_bench.store.run_file import SCHEMA, RunFile, run_id_of

OWN_KERNELS = ("local", "hf")
"""Sources of models that may run on the kernels of this project."""


def comparisons_of(plan: Plan, rows: Mapping[CellKey, list[dict[str, Any]]]) -> list[Comparison]:
    """The asked method against every other, and every scheduled method against its static twin. Complete cells only."""
    whole = {key: found for key, found in rows.items() if found and len(found) == plan.questions(key)}
    texts = [method.text for method in plan.methods]
    static = [method.text for method in plan.methods if method.is_static]
    pairs = [(texts[0], other) for other in texts[1:]]
    pairs += [(text, static[0]) for text in texts[1:] if static and text not in static and static[0] != texts[0]]
    found: list[Comparison] = []
    for a, b in dict.fromkeys(pairs):
        sides = {key: value for key, value in whole.items() if key.model in (a, b)}
        of_a, of_b = ({(k.task, k.length) for k in sides if k.model == model} for model in (a, b))
        common = of_a & of_b
        shared = {k: value for k, value in sides.items() if (k.task, k.length) in common}
        found += compare(a, b, shared, {task: draws_of(task) for task, _ in common})
    return found


def cell_results(plan: Plan, rows: Mapping[CellKey, list[dict[str, Any]]]) -> dict[CellKey, CellResult]:
    """Metrics of every cell that has rows. InvalidFileError (exit 3) when a whole cell's items are not the frozen ones."""
    results = {key: cell_result(key, found, len(found) == plan.questions(key)) for key, found in rows.items() if found}
    for key, result in results.items():
        frozen = plan.suite.frozen(plan.infos[key.model, key.seed].tokenizer_sha256, key.task, key.length)
        whole = result.n == plan.suite.counts[key.task, key.length]
        if whole and frozen not in (None, result.items_sha256):
            place = f"{key.task} at {key.length}"
            raise InvalidFileError(f"the items of {place} are not those that suite {plan.suite.name} froze")
    return results


def run_document(
    plan: Plan, folder: RunFolder, done: Executed, cells: Mapping[CellKey, CellResult], comparisons: list[Comparison]
) -> dict[str, Any]:
    """run.json, checked against its own schema. No clock in it: the same measurement gives the same bytes."""
    records = [_record(plan, folder, done, cells, text, seed) for text, seed in plan.infos]
    document = {
        "schema": SCHEMA,
        "run_id": run_id_of([record["record_id"] for record in records]),
        "status": _worst([record["status"] for record in records]),
        "spec": plan.spec.measured(),
        "suite": plan.suite.block(),
        "scorer": {"id": SCORER_ID, "version": SCORER_VERSION},
        "notes": list(plan.notes),
        "records": records,
        "comparisons": _comparison_blocks(comparisons),
        "environment": environment([info.device for info in plan.infos.values() if info.backend in OWN_KERNELS]),
    }
    RunFile.model_validate(document)
    return document


def _record(
    plan: Plan, folder: RunFolder, done: Executed, cells: Mapping[CellKey, CellResult], text: str, seed: int
) -> dict[str, Any]:
    info = plan.infos[text, seed]
    method = next(m for m in plan.methods if m.text == text)
    identity = plan.identity(text, seed)
    blocks = [
        _cell_block(plan, folder, key, cells.get(key), done.failures.get(key))
        for key in plan.cells
        if (key.model, key.seed) == (text, seed)
    ]
    status = _worst([block["status"] for block in blocks])
    if status == "complete" and any(plan.cells[k] < plan.suite.counts[k.task, k.length] for k in plan.cells):
        status = "partial"
    if info.recipe.get("status") == "diverged" and status == "complete":
        status = "diverged"  # a training that diverged is a result, and says so
    return {
        "record_id": digest(identity),
        "identity": identity,
        "model": info.model if method.is_external else method.name,
        "schedule": method.schedule,
        "label": text,
        "seed": seed,
        "status": status,
        "backend": info.backend,
        "trained_schedule": info.trained_schedule,
        "n_params": info.n_params,
        "state_bytes": info.state_bytes,
        "train_length": info.train_length,
        "capacity": info.capacity,
        "config": info.config,
        "recipe": info.recipe,
        "cells": blocks,
    }


def _cell_block(
    plan: Plan, folder: RunFolder, key: CellKey, result: CellResult | None, failure: Outcome | None
) -> dict[str, Any]:
    status = result.status if result else "partial"
    return {
        "task": key.task,
        "length": key.length,
        "status": "failed" if failure is not None else status,
        "error": failure.error[:2000] if failure is not None and failure.error else None,
        "file": str(folder.cell_path(key).relative_to(folder.path)),
        "sha256": folder.file_hash(key),
        "draws": draws_of(key.task),
        **(NOTHING_MEASURED if result is None else result.measured()),
    }


def _comparison_blocks(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """With p-values corrected by Holm inside the family of the suite-level (or only) lines."""
    whole = {c.task for c in comparisons if c.length is None}
    family = {
        f"{c.verdict.a}|{c.verdict.b}|{c.task}|{c.length}": c.verdict.p_value
        for c in comparisons
        if c.verdict.p_value is not None and (c.length is None or not whole)
    }
    adjusted = holm_family(family) if family else {}
    blocks = []
    for c in comparisons:
        v = c.verdict
        blocks.append(
            {
                **c.as_row(),
                "method": v.primary.method,
                "outcome": v.outcome,
                "n_items": v.items,
                "p_value": v.p_value,
                "p_holm": adjusted.get(f"{v.a}|{v.b}|{c.task}|{c.length}"),
                "bootstrap_low": v.bootstrap.lo if v.bootstrap else None,
                "bootstrap_high": v.bootstrap.hi if v.bootstrap else None,
            }
        )
    return blocks


def _worst(statuses: list[str]) -> str:
    return next((s for s in ("failed", "partial", "diverged") if s in statuses), "complete")


def json_document(plan: Plan, cells: Mapping[CellKey, CellResult], comparisons: list[Comparison]) -> dict[str, Any]:
    """What --json prints: cells and comparisons, fractions and nats."""
    by_text = {method.text: method for method in plan.methods}
    return {
        "cells": [
            {
                "model": by_text[key.model].name,
                "schedule": by_text[key.model].schedule,
                "suite": plan.suite.name,
                "task": key.task,
                "length": key.length,
                "seed": key.seed,
                "n": cell.n,
                "score": cell.interval.mean,
                "ci_low": cell.interval.lo,
                "ci_high": cell.interval.hi,
                "logprob": cell.logprob,
                **({"perplexity": cell.perplexity.as_dict()} if cell.perplexity is not None else {}),
            }
            for key, cell in cells.items()
        ],
        "comparisons": [comparison.as_row() for comparison in comparisons],
    }


def write_items(plan: Plan, folder: RunFolder, rows: Mapping[CellKey, list[dict[str, Any]]]) -> None:
    """All rows of all cells as one Parquet file, in plan order."""
    import pyarrow as pa
    from pyarrow import parquet

    by_text = {method.text: method for method in plan.methods}
    table = [
        {
            "suite": plan.suite.name,
            "task": key.task,
            "length": key.length,
            "model": by_text[key.model].name,
            "schedule": by_text[key.model].schedule,
            "seed": key.seed,
            **row,
        }
        for key, found in rows.items()
        for row in found
    ]
    if table:
        extra = {name: None for row in table for name in row if name not in table[0]}
        table[0] |= extra  # the table has the columns of its first row
        sink = io.BytesIO()
        parquet.write_table(pa.Table.from_pylist(table), sink, compression="zstd")
        write_bytes(folder.items_path, sink.getvalue())


def write_tokenizers(plan: Plan, folder: RunFolder) -> None:
    """The tokenizers of models outside the zoo, with which the items can be made again."""
    for fingerprint, text in plan.tokenizers.items():
        folder.tokenizer_path(fingerprint).parent.mkdir(exist_ok=True)
        write_bytes(folder.tokenizer_path(fingerprint), text.encode("utf-8"))


def write_timing(plan: Plan, folder: RunFolder, done: Executed, workers: int) -> None:
    """Seconds, apart from the results."""
    cells = [
        {"model": key.model, "task": key.task, "length": key.length, "seed": key.seed, "seconds": round(seconds, 6)}
        for key in plan.cells
        if (seconds := sum(row["seconds"] for row in read_log(folder.time_path(key))))
    ]
    write_json(folder.timing_path, {"wall_seconds_last": done.wall_seconds, "workers": workers, "cells": cells})
