"""An entry: one method (a model under one capacity, all its seeds) on one suite version, computed and never typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus_bench.errors import InvalidFileError
from proteus_bench.store.canonical import digest
from proteus_bench.store.folder import read_json
from proteus_bench.store.run_file import Name, ScorerBlock, SuiteBlock

SCHEMA = "proteus-bench/entry@1"
ID_CHARS = 16


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class ScoreBlock(_Strict):
    """A score over seeds and items in [0, 1] with its 95% interval; None where one cannot be estimated."""

    score: float = Field(ge=0, le=1)
    ci_low: float | None
    ci_high: float | None
    ci_method: str = Name
    n: int = Field(ge=1)


class EntryCell(ScoreBlock):
    """One task at one length. logprob: nats per gold answer; None when it was not finite."""

    task: str = Name
    length: int = Field(ge=1)
    logprob: float | None


class Entry(_Strict):
    """What one file under ``entries/`` holds. ``id`` is the start of the hash of ``identity``, which holds no value."""

    schema_: Literal["proteus-bench/entry@1"] = Field(alias="schema")
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    identity: dict[str, Any]
    label: str = Name
    model: str = Name
    schedule: str = Name
    suite: SuiteBlock
    scorer: ScorerBlock
    seeds: list[int] = Field(min_length=1)
    ranked: bool
    reason: str
    tier: Literal["V1"]
    n_params: int
    state_bytes: int
    train_length: int
    trained_schedule: str = Name
    capacity: dict[str, Any]
    overall: ScoreBlock
    cells: list[EntryCell] = Field(min_length=1)


def entry_id(identity: dict[str, Any]) -> str:
    """The file name of an entry, from what it is and not from what it scored."""
    return digest(identity)[:ID_CHARS]


def read_entry(path: Path) -> Entry:
    """Read and check one entry. Raises InvalidFileError (exit 3) with the first thing that is wrong."""
    try:
        entry = Entry.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidFileError(f"{path}: {where}: {first['msg']}"[:400]) from error
    if entry_id(entry.identity) != entry.id or path.stem != entry.id:
        raise InvalidFileError(f"{path}: its id is not its identity's hash")
    return entry
