"""RunSpec: one set of settings, spelled alike in a TOML file, as flags, in PROTEUS_BENCH_* and in run.json."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from proteus_bench.backends.base import Settings
from proteus_bench.errors import InvalidFileError, UsageError, nearest

PREFIX = "PROTEUS_BENCH_"
# Variables of the same prefix that other parts read.
_OTHER_VARIABLES = {"PLUGINS", "ZOO", "CACHE", "DATA"}


class RunSpec(BaseModel):
    """What a run asks for. Fields marked 'place' say where and how it runs, never what it measures.

    model: ``[source:]name[+schedule][@size]``. suite: a suite's name. schedules: further schedules of the same model,
    compared alike.
    seeds: the first K training seeds (all when None). limit: items per cell (all when None).
    batch_tokens: tokens of contexts that are prefilled together (one context at the least); the last bits of a
    log-probability depend on it, so it belongs to the measurement.
    device, dtype, chat, train_length, tokenizer, engine: of models outside the zoo, see `backends.Settings`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    model: str = Field(min_length=1, max_length=4096)
    suite: str = Field(min_length=1, max_length=200)
    schedules: tuple[str, ...] = ()
    size: str | None = None
    seeds: int | None = Field(default=None, ge=1)
    limit: int | None = Field(default=None, ge=1)
    twin: bool = True
    batch_tokens: int = Field(default=4096, ge=1, le=1 << 24)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    chat: bool = False
    train_length: int | None = Field(default=None, ge=1)
    tokenizer: str | None = None
    engine: tuple[str, ...] = ()
    out: str | None = None  # place
    workers: int | None = Field(default=None, ge=1, le=1024)  # place
    executor: Literal["local", "ray"] = "local"  # place

    @field_validator("schedules", "engine", mode="before")
    @classmethod
    def _sequence(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    def settings(self) -> Settings:
        """How its models are opened."""
        return Settings(self.device, self.dtype, self.chat, self.train_length, self.tokenizer, self.engine)

    def measured(self) -> dict[str, Any]:
        """The fields that decide the results, for the manifest and identities."""
        return self.model_dump(mode="json", exclude={"out", "workers", "executor"})


def load_spec(flags: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] | None = None) -> RunSpec:
    """Merge flag > ``PROTEUS_BENCH_*`` > file > default. A flag that was not given is None.

    Raises UsageError (exit 2) for unknown keys, with the nearest name, and for values out of range;
    InvalidFileError (exit 3) for a file that is no TOML.
    """
    merged = {
        **(_from_file(file) if file is not None else {}),
        **_from_environment(os.environ if environ is None else environ),
        **{key: value for key, value in flags.items() if value is not None},
    }
    for key in merged:
        if key not in RunSpec.model_fields:
            raise UsageError(f"unknown setting {key!r}{nearest(key, RunSpec.model_fields)}")
    for key in ("model", "suite"):
        if key not in merged:
            raise UsageError(f"a run needs --{key} (or {key} in the file, or {PREFIX}{key.upper()})")
    try:
        return RunSpec.model_validate(merged)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{where}: {first['msg']}, not {first['input']!r}"[:400]) from error


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidFileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InvalidFileError(f"{path} is not TOML: {str(error).splitlines()[0]}") from error


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in environ.items():
        key = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or key in _OTHER_VARIABLES:
            continue
        field = key.lower()
        if field not in RunSpec.model_fields:
            raise UsageError(f"unknown variable {name}{nearest(field, RunSpec.model_fields)}")
        found[field] = _convert(name, field, text)
    return found


def _convert(name: str, field: str, text: str) -> Any:
    kind = str(RunSpec.model_fields[field].annotation)
    if "tuple" in kind:
        return split_schedules(text)
    if "bool" in kind:
        if text.lower() not in ("0", "1", "true", "false"):
            raise UsageError(f"{name} must be true or false, not {text!r}")
        return text.lower() in ("1", "true")
    if "int" in kind:
        try:
            return int(text)
        except ValueError as error:
            raise UsageError(f"{name} must be an integer, not {text!r}") from error
    return text


def split_schedules(text: str) -> tuple[str, ...]:
    """``a,b(x=1,y=2)`` -> ``("a", "b(x=1,y=2)")``: commas inside parentheses belong to a schedule."""
    parts, depth, current = [], 0, ""
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += sign
    return tuple(part for part in [*parts, current.strip()] if part)
