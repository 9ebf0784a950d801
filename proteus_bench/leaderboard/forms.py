"""Base of the strict models, the texts that they may hold, and how files become models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from proteus_bench.errors import InvalidFileError
from proteus_bench.store.folder import read_json

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+=(),-]{0,199}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_LINK = re.compile(r"https://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~:/?#@!$&()*+,;=%-]*)?")
# Characters that change the order of a text or do not show: a name with them is read as another one.
_HIDDEN = re.compile("[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")


MAX_COUNT = 1 << 53
DECIMALS = 8
"""Floats are kept to so many: sums differ in the last bits from one processor to the next, files should not."""


def rounded(value: float | None) -> float | None:
    """To `DECIMALS`; minus zero becomes zero."""
    return None if value is None else round(float(value), DECIMALS) + 0.0


def safe_path(text: str) -> str:
    """A relative path that means the same file on every system. ValueError for anything else."""
    parts = text.split("/")
    if len(text) > 400 or any(_PART.fullmatch(p) is None or _DEVICE.fullmatch(p) or p.endswith(".") for p in parts):
        raise ValueError(f"{text[:80]!r} is no plain relative path")
    return text


def plain_text(text: str) -> str:
    """Text that shows as it is. ValueError for control and direction characters and for unpaired surrogates."""
    if _HIDDEN.search(text) or any(0xD800 <= ord(sign) <= 0xDFFF for sign in text):
        raise ValueError("control or direction characters in a text")
    return text


def https_link(text: str) -> str:
    """An https address. ValueError for every other scheme."""
    if _LINK.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} is no https address")
    return text


SafePath = Annotated[str, AfterValidator(safe_path)]
Text = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(plain_text)]
Link = Annotated[str, Field(max_length=400), AfterValidator(https_link)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Length = Annotated[int, Field(ge=1, le=1 << 40)]


def shown(value: object, most: int = 300) -> str:
    """A stranger's text for a message: ASCII, nothing that a terminal obeys, not too long."""
    return ascii(str(value)[:most])[1:-1]


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def read_as(kind: type[Any], path: Path) -> Any:
    """The file as one of these models. InvalidFileError (exit 3) with the first thing that is wrong."""
    return check_as(kind, read_json(path), str(path))


def check_as(kind: type[Any], value: Any, source: str) -> Any:
    """`value` as one of these models. InvalidFileError (exit 3) names ``source``."""
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise InvalidFileError(f"{source}: {first_error(error)}"[:400]) from error


def first_error(error: ValidationError | RecursionError) -> str:
    """Place and message of the first thing that is wrong, in one line."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:60] for part in first["loc"])
    return f"{where}: {first['msg']}"
