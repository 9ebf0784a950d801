"""run.json: strict models of what it holds, and its content addresses. Used to write it and to check a stranger's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus_bench.errors import InvalidFileError
from proteus_bench.store.canonical import digest
from proteus_bench.store.folder import read_json

SCHEMA = "proteus-bench/run@1"
Sha256 = Field(pattern=r"^[0-9a-f]{64}$")
Name = Field(min_length=1, max_length=4096)
Status = Literal["complete", "partial", "failed", "diverged"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class SuiteBlock(_Strict):
    """A frozen suite: its name, version, and the hash of its file, which holds the item hashes."""

    name: str = Name
    version: str = Name
    sha256: str = Sha256


class ScorerBlock(_Strict):
    """The scorer of ``score``."""

    id: str = Name
    version: str = Name


class PerplexityBlock(_Strict):
    """Perplexity per token of a task of running text, with its 95% interval."""

    value: float = Field(ge=1)
    ci_low: float | None
    ci_high: float | None
    tokens: int = Field(ge=1)
    bits_per_byte: float = Field(ge=0)


class CellBlock(_Strict):
    """One cell. Scores in [0, 1], logprob in nats per gold answer. ``file`` is relative to the run folder.

    draws: what the items are drawn from; where cells share it, items of one index are one draw in their suite's mean. It is
    missing in files of older versions, whose suite lines took all cells as independent, and so are the intervals of compat
    and logprob.
    """

    task: str = Name
    length: int = Field(ge=1)
    status: Status
    n: int = Field(ge=0)
    rows: int = Field(ge=0)
    score: float | None = Field(ge=0, le=1)
    ci_low: float | None = Field(ge=0, le=1)
    ci_high: float | None = Field(ge=0, le=1)
    ci_method: str | None
    compat: float | None = Field(ge=0, le=1)
    logprob: float | None
    error: str | None = Field(default=None, max_length=2000)
    items_sha256: str | None
    file: str = Name
    sha256: str | None
    draws: str | None = Field(default=None, min_length=1, max_length=200)
    compat_ci_low: float | None = Field(default=None, ge=0, le=1)
    compat_ci_high: float | None = Field(default=None, ge=0, le=1)
    logprob_ci_low: float | None = None
    logprob_ci_high: float | None = None
    perplexity: PerplexityBlock | None = None


class Record(_Strict):
    """One trained checkpoint under one capacity on one suite version. ``record_id`` is the hash of ``identity``."""

    record_id: str = Sha256
    identity: dict[str, Any]
    model: str = Name
    schedule: str = Name
    label: str = Name
    seed: int = Field(ge=0)
    status: Status
    backend: str = Name
    trained_schedule: str = Name
    n_params: int = Field(ge=0)
    state_bytes: int = Field(ge=0)
    train_length: int = Field(ge=1)
    capacity: dict[str, Any]
    config: dict[str, Any]
    recipe: dict[str, Any]
    cells: list[CellBlock]


class ComparisonBlock(_Strict):
    """a - b over shared seeds and items; fractions, not points. length None: the whole suite."""

    a: str = Name
    b: str = Name
    task: str = Name
    length: int | None
    diff: float = Field(ge=-1, le=1)
    ci_low: float | None
    ci_high: float | None
    n_seeds: int = Field(ge=1)
    verdict: str = Name
    method: str = Name
    outcome: Literal["better", "worse", "not_separable", "identical"]
    n_items: int = Field(ge=1)
    p_value: float | None
    p_holm: float | None
    bootstrap_low: float | None
    bootstrap_high: float | None
    logprob_diff: float | None
    logprob_ci_low: float | None
    logprob_ci_high: float | None


class RunFile(_Strict):
    """The whole file. ``run_id`` addresses the records' identities and therefore not the values."""

    schema_: Literal["proteus-bench/run@1"] = Field(alias="schema")
    run_id: str = Sha256
    status: Status
    spec: dict[str, Any]
    suite: SuiteBlock
    scorer: ScorerBlock
    notes: list[str]
    records: list[Record] = Field(min_length=1, max_length=10_000)
    comparisons: list[ComparisonBlock]
    environment: dict[str, Any]


def run_id_of(record_ids: list[str]) -> str:
    """The content address of a run: the sorted addresses of its records."""
    return digest({"schema": SCHEMA, "records": sorted(record_ids)})


def read_run_file(path: Path) -> RunFile:
    """Read and check run.json. Raises InvalidFileError (exit 3) with the first thing that is wrong."""
    data = read_json(path)
    try:
        run = RunFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidFileError(f"{path}: {where}: {first['msg']}"[:400]) from error
    for record in run.records:
        if digest(record.identity) != record.record_id:
            where = f"record {record.label} seed {record.seed}"
            raise InvalidFileError(f"{path}: {where}: its id is not its identity's hash")
    if run_id_of([record.record_id for record in run.records]) != run.run_id:
        raise InvalidFileError(f"{path}: run_id does not address these records")
    return run
