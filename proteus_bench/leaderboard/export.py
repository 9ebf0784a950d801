"""The leaderboard in other forms: CSV, and the schema of Every Eval Ever (version 0.3.0)."""

from __future__ import annotations

import csv
import io
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from proteus_bench import __version__
from proteus_bench.errors import UsageError, unknown
from proteus_bench.leaderboard.board_schema import Board, BoardRow, Leaderboard
from proteus_bench.leaderboard.build import leaderboard_of
from proteus_bench.leaderboard.cost import WORDS
from proteus_bench.leaderboard.schema import ScoreBlock
from proteus_bench.store import prove_writable, write_bytes, write_json
from proteus_bench.store.canonical import digest

EEE_VERSION = "0.3.0"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "'")
_COLUMNS = (
    "suite", "suite_version", "scorer", "board", "rank_best", "rank_worst", "tie_group", "method", "model", "schedule",
    "size", "task", "length", "score", "ci_low", "ci_high", "ci_method", "bootstrap_low", "bootstrap_high", "items",
    "seeds", "diverged_seeds", "logprob", "tier", "ranked", "reason", "n_params", "state_bytes", "train_length", "trained_tokens",
    "active", "seconds_per_item", "configs_tried", "entry",
)  # fmt: skip

_COST_COLUMNS = (
    "suite", "method", "size", "seed", "measure", "length", "pairs", "ratio", "ci_low", "ci_high", "outcome", "tokens_per_second",
    "static_tokens_per_second", "peak_bytes", "static_peak_bytes", "state_bytes", "static_state_bytes", "clock", "load", "cpu",
    "time_verdict", "memory_verdict", "entry",
)  # fmt: skip


def export(folder: Path, to: str, out: Path, timestamp: str | None = None) -> list[Path]:
    """Write the leaderboard of ``folder`` into ``out`` and return the files. UsageError for an unknown form."""
    forms = ("csv", "eee")
    if to not in forms:
        raise unknown("export form", to, forms)
    board = leaderboard_of(folder)
    prove_writable(out)
    if to == "csv":
        return [_csv_file(out / "leaderboard.csv", to_csv(board)), *_cost_files(board, out)]
    written = []
    for name, document in eee_documents(board, _timestamp(timestamp)):
        path = out / name
        prove_writable(path.parent)
        write_json(path, document)
        written.append(path)
    return written


def _csv_file(path: Path, text: str) -> Path:
    write_bytes(path, text.encode("utf-8"))
    return path


def _cost_files(board: Leaderboard, out: Path) -> list[Path]:
    """cost.csv, where some row has a cost."""
    text = cost_csv(board)
    return [_csv_file(out / "cost.csv", text)] if text.count("\n") > 1 else []


def _timestamp(given: str | None) -> str:
    """Seconds since 1970: as given, of SOURCE_DATE_EPOCH, or now."""
    text = given or os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise UsageError(f"a timestamp is a number of seconds, not {text[:40]!r}")
    return text


def to_csv(board: Leaderboard) -> str:
    """One line a row and cell, and one for the mean (task 'all'). No cell starts what a spreadsheet would run."""
    parts = (("live", board.boards), ("archive", board.archive))
    return _table(_COLUMNS, (line for part, found in parts for one in found for row in one.rows for line in _lines(part, one, row)))


def cost_csv(board: Leaderboard) -> str:
    """One line a live row, measure and length: time and memory of the schedule against its static twin."""
    return _table(_COST_COLUMNS, (line for one in board.boards for row in one.rows for line in _cost_lines(one, row)))


def _table(columns: tuple[str, ...], lines: Iterable[dict[str, Any]]) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    for line in lines:
        writer.writerow([csv_cell(line.get(column)) for column in columns])
    return sink.getvalue()


def _cost_lines(board: Board, row: BoardRow) -> Iterator[dict[str, Any]]:
    cost = row.paired_cost
    for line in cost.lines if cost is not None else ():
        assert cost is not None
        yield {
            **line.model_dump(), "suite": board.suite.name, "method": row.label, "size": row.size, "pairs": line.n,
            "clock": cost.clock, "seed": cost.seed, "state_bytes": cost.state_bytes, "static_state_bytes": cost.static_state_bytes,
            "cpu": cost.machine.cpu, "time_verdict": cost.time, "memory_verdict": cost.memory, "entry": row.id,
        }  # fmt: skip


def _lines(part: str, board: Board, row: BoardRow) -> Iterator[dict[str, Any]]:
    head = {
        "suite": board.suite.name, "suite_version": board.suite.version,
        "scorer": f"{board.scorer.id} {board.scorer.version}", "board": part, "rank_best": row.rank_best,
        "rank_worst": row.rank_worst, "tie_group": row.tie_group, "method": row.label, "model": row.model,
        "schedule": row.schedule, "size": row.size, "seeds": " ".join(map(str, row.seeds)),
        "diverged_seeds": " ".join(map(str, row.diverged_seeds)), "tier": row.tier, "ranked": row.ranked,
        "reason": row.reason, "n_params": row.n_params, "state_bytes": row.state_bytes,
        "train_length": row.train_length, "trained_tokens": row.trained_tokens, "active": row.active,
        "seconds_per_item": row.cost.seconds_per_item if row.cost else None,
        "configs_tried": row.statement.configs_tried, "entry": row.id,
    }  # fmt: skip
    yield {**head, "task": "all", **_score(row.overall)}
    for cell in row.cells:
        yield {**head, "task": cell.task, "length": cell.length, "logprob": cell.logprob, **_score(cell)}


def _score(block: ScoreBlock) -> dict[str, Any]:
    return {
        "score": block.score, "ci_low": block.ci_low, "ci_high": block.ci_high, "ci_method": block.ci_method,
        "bootstrap_low": block.bootstrap_low, "bootstrap_high": block.bootstrap_high, "items": block.n,
    }  # fmt: skip


def csv_cell(value: Any) -> Any:
    """Text that a spreadsheet would read as a formula gets an apostrophe in front; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, str) and value.lstrip().startswith(_FORMULA):
        return "'" + value
    return value


def eee_documents(board: Leaderboard, timestamp: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path below the output folder, document) of every live row, in the layout of that repository's data."""
    for one in board.boards:
        for row in one.rows:
            name = uuid.UUID(hex=_uuid4(digest([one.suite.sha256, row.id])))
            suite, model = (_slug(text) for text in (one.suite.name, f"{row.label}-{row.size}"))
            yield f"data/{suite}/proteus-bench/{model}/{name}.json", _eee(one, row, timestamp)


def _uuid4(sha256: str) -> str:
    """32 digits of a hash in the shape of a version 4 UUID, so that one row is always one file."""
    return f"{sha256[:12]}4{sha256[13:16]}{'89ab'[int(sha256[16], 16) % 4]}{sha256[17:32]}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._") or "unnamed"


def _eee(board: Board, row: BoardRow, timestamp: str) -> dict[str, Any]:
    model_id = f"proteus-bench/{_slug(f'{row.label}-{row.size}')}"
    return {
        "schema_version": EEE_VERSION,
        "evaluation_id": f"{_slug(board.suite.name)}/{model_id}/{timestamp}",
        "retrieved_timestamp": timestamp,
        "source_metadata": {
            "source_name": "proteus-bench leaderboard",
            "source_type": "evaluation_run",
            "source_organization_name": "proteus-bench",
            "evaluator_relationship": "other",
            "additional_details": {
                "verification": row.tier,
                "ranked": str(row.ranked).lower(),
                "rank_interval": "" if row.rank_best is None else f"{row.rank_best}-{row.rank_worst}",
                "entry": row.id,
                **({"submitter": row.statement.submitter} if row.statement.submitter else {}),
            },
        },
        "eval_library": {"name": "proteus-bench", "version": __version__},
        "model_info": {
            "name": row.label,
            "id": model_id,
            "inference_platform": "proteus-bench local back end",
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                "schedule": row.schedule,
                "size": row.size,
                "parameters": str(row.n_params),
                "state_bytes": str(row.state_bytes),
                "training_length": str(row.train_length),
                "training_seeds": " ".join(map(str, row.seeds)),
                **_cost_words(row),
            },
        },
        "evaluation_results": [_result(board, row, "all", None, row.overall)]
        + [_result(board, row, cell.task, cell.length, cell) for cell in row.cells],
    }


def _cost_words(row: BoardRow) -> dict[str, str]:
    cost = row.paired_cost
    return {} if cost is None else {"cost_time": WORDS[cost.time], "cost_memory": WORDS.get(cost.memory or "", "not measured")}


def _result(board: Board, row: BoardRow, task: str, length: int | None, block: ScoreBlock) -> dict[str, Any]:
    place = board.suite.name + (f"/{task}@{length}" if length is not None else "")
    details: dict[str, Any] = {"score": block.score}
    uncertainty: dict[str, Any] = {"num_samples": block.n * len(row.seeds)}
    if block.ci_low is not None and block.ci_high is not None:
        uncertainty["confidence_interval"] = {
            "lower": block.ci_low, "upper": block.ci_high, "confidence_level": 0.95, "method": block.ci_method,
        }  # fmt: skip
    details["uncertainty"] = uncertainty
    details["details"] = {"items": str(block.n), "training_seeds": str(len(row.seeds))}
    return {
        "evaluation_result_id": f"{row.id}/{place}",
        "evaluation_name": place,
        "source_data": {
            "dataset_name": f"{board.suite.name} version {board.suite.version}",
            "source_type": "other",
            "additional_details": {"suite_sha256": board.suite.sha256, "items_sha256": board.items_sha256},
        },
        "metric_config": {
            "evaluation_description": "mean over tasks, equal weights" if length is None else f"{task} at {length} tokens",
            "metric_id": f"proteus-bench.{board.scorer.id}.{board.scorer.version}",
            "metric_name": f"{board.scorer.id} match",
            "metric_kind": "accuracy",
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
        },
        "score_details": details,
        "generation_config": {"generation_args": {"temperature": 0}, "additional_details": {"decoding": "greedy"}},
    }
