"""Real data sets: from a folder, from an installed package, or from a hub through `datasets`; always checked, never shipped.

Where: the caller's `data_dir`, or the folder in PROTEUS_BENCH_DATA, or else the source's own place. Rows are checked against
the schema, and their sha256 (canonical JSON, one row a line, declared fields only) against the pin. A hub data set without a
pinned revision is resolved to the commit of its first load, which the lock file keeps together with the sha256: every later
load asks for that commit and must find those rows.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import DataFileError
from .output import write_bytes
from .resources import data_dir as shipped

DATA_VARIABLE = "PROTEUS_BENCH_DATA"
LOCK_VARIABLE = "PROTEUS_TASKS_CACHE"
MAX_BYTES = 2 * 2**30
MAX_ROWS = 1_000_000
LOCK_FILE = "data-lock.json"
_SUFFIXES = (".jsonl", ".json", ".parquet")
_OTHER_NAMES = {"input": "question"}
"""A field's name in the original files, and in the hub's copy."""


@dataclass(frozen=True)
class Source:
    """One data set. `fields`: type of each field of a row, `list` for a list of strings.

    hub: repository and configuration; split: of the hub; revision: commit that is asked for, None where none is known.
    package: (import name, file in it); file_sha256: of that file and of copies of it; sha256: of the rows.
    whole_file: the file is one JSON document, whose rows its own parser finds.
    """

    name: str
    fields: Mapping[str, type]
    hub: tuple[str, str | None] | None = None
    split: str = "validation"
    revision: str | None = None
    package: tuple[str, str] | None = None
    file_sha256: str | None = None
    sha256: str | None = None
    whole_file: bool = False


@dataclass(frozen=True)
class Table:
    """Checked rows. `origin` says where they came from, `sha256` what they are; `document` instead of rows for whole files."""

    rows: tuple[dict[str, Any], ...]
    sha256: str
    origin: str
    document: Any = field(default=None, compare=False)


def load(source: Source, data_dir: str | None = None) -> Table:
    """The rows of a source. DataFileError (exit 3), in one line, for anything that is missing, malformed or not the pinned
    data. Read once per process and place."""
    # A document is parsed anew, since what is made of it is kept and the document itself would take ten times its file.
    read = _load.__wrapped__ if source.whole_file else _load
    return read(source.name, folder_of(data_dir), os.environ.get(LOCK_VARIABLE) or "")


def folder_of(data_dir: str | None) -> str:
    """The folder that data is read from: the caller's, or the environment's, or none (the source's own place)."""
    return data_dir or os.environ.get(DATA_VARIABLE) or ""


@lru_cache(maxsize=32)
def _load(name: str, folder: str, lock: str) -> Table:
    source = SOURCES[name]
    if folder:
        found = _from_folder(source, Path(folder))
    elif source.package is not None and importlib.util.find_spec(source.package[0]) is not None:
        found = _from_package(source)
    elif source.hub is not None:
        found = _from_hub(source, Path(lock) if lock else None)
    else:
        raise DataFileError(f"no data for {name}: {_advice(source)}")
    if source.sha256 is not None and found.sha256 != source.sha256:
        raise DataFileError(
            f"{name} from {found.origin}: its rows are not the pinned ones (sha256 {found.sha256[:16]}...)"
        )
    return found


def _advice(source: Source) -> str:
    files = " or ".join(source.name + suffix for suffix in (_SUFFIXES if not source.whole_file else (".json",)))
    return f"put {files} into a folder and give it as --data-dir or in {DATA_VARIABLE}"


def _from_folder(source: Source, folder: Path) -> Table:
    for suffix in (*_SUFFIXES, *((".txt",) if source.name == "text" else ())):
        path = folder / f"{source.name}{suffix}"
        if path.is_file():
            return _from_file(source, path)
    raise DataFileError(f"{folder}: no data for {source.name}; {_advice(source)}")


def _from_package(source: Source) -> Table:
    assert source.package is not None
    module, file = source.package
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    path = next((Path(folder) / file for folder in folders if (Path(folder) / file).is_file()), None)
    if path is None:
        raise DataFileError(f"package {module} has no {file}; {_advice(source)}")
    return _from_file(source, path)


def _from_file(source: Source, path: Path) -> Table:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataFileError(f"{path}: larger than {MAX_BYTES // 2**20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise DataFileError(f"{path}: {error.strerror or error}") from error
    if source.whole_file:
        digest = hashlib.sha256(data).hexdigest()
        if source.file_sha256 is not None and digest != source.file_sha256:
            raise DataFileError(f"{path}: not the pinned file of {source.name} (sha256 {digest[:16]}...)")
        return Table((), digest, path.name, _json(data, str(path)))
    if path.suffix == ".txt":
        return _table(source, [{"text": data.decode("utf-8", errors="replace")}], path.name)
    if path.suffix == ".parquet":
        return _table(source, _datasets().load_dataset("parquet", data_files=str(path), split="train"), path.name)
    if path.suffix == ".jsonl":
        rows = [_json(line, f"{path}:{n}") for n, line in enumerate(data.splitlines(), start=1) if line.strip()]
    else:
        rows = _json(data, str(path))
    if not isinstance(rows, list):
        raise DataFileError(f"{path}: a list of rows is wanted")
    return _table(source, rows, path.name)


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{where}: not JSON ({str(error)[:100]})") from error


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataFileError("reading this data needs the package 'datasets' (extra 'lm-eval')") from error
    return datasets


def _from_hub(source: Source, lock: Path | None) -> Table:
    assert source.hub is not None
    repository, config = source.hub
    datasets = _datasets()
    held = _read_lock(lock).get(source.name, {}) if lock is not None else {}
    try:
        revision = source.revision or held.get("revision") or _newest(repository)
        with _one_try(repository, revision):
            rows = datasets.load_dataset(repository, config, split=source.split, revision=revision)
    except Exception as error:  # whatever the hub's client raises: offline, gone, moved, refused
        first = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise DataFileError(f"{source.name}: {repository} cannot be loaded ({first}); {_advice(source)}") from error
    table = _table(source, rows, f"{repository}@{revision or 'local'}")
    if held.get("sha256") not in (None, table.sha256):
        raise DataFileError(
            f"{source.name}: {repository} has other rows than when it was first loaded (see {LOCK_FILE})"
        )
    if lock is not None and not held:
        _write_lock(lock, source.name, {"revision": revision, "sha256": table.sha256})
    return table


def _newest(repository: str) -> str | None:
    """The commit at the head of a hub repository; None for a local folder, which has no commits."""
    if Path(repository).is_dir():
        return None
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(repository).sha)


@contextmanager
def _one_try(repository: str, revision: str | None) -> Iterator[None]:
    """Where the hub cannot be reached, only a copy that was loaded before counts: its client would ask again for half a minute."""
    import datasets
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    held = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    try:
        if not (Path(repository).is_dir() or any(held)):
            HfApi().dataset_info(repository, revision=revision, timeout=10)
    except HfHubHTTPError:
        pass  # it answers: what it says is for the load to tell
    except Exception:  # whatever the client's transport raises
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = held


def _read_lock(folder: Path) -> dict[str, Any]:
    path = folder / LOCK_FILE
    if not path.is_file():
        return {}
    held = _json(path.read_bytes(), str(path))
    if not isinstance(held, dict) or not all(isinstance(row, dict) for row in held.values()):
        raise DataFileError(f"{path}: not a lock file")
    return held


def _write_lock(folder: Path, name: str, row: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    held = {**_read_lock(folder), name: row}
    write_bytes(folder / LOCK_FILE, (json.dumps(held, sort_keys=True, indent=1) + "\n").encode("utf-8"))


def _table(source: Source, rows: Iterable[Any], origin: str) -> Table:
    checked = []
    for number, row in enumerate(rows):
        if number >= MAX_ROWS:
            raise DataFileError(f"{source.name} from {origin}: more than {MAX_ROWS} rows")
        checked.append(_checked(source, row, f"{source.name} from {origin}, row {number}"))
    if not checked:
        raise DataFileError(f"{source.name} from {origin}: no rows")
    return Table(tuple(checked), rows_sha256(checked), origin)


def _checked(source: Source, row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise DataFileError(f"{where}: not an object")
    row = {**row, **{name: row[other] for name, other in _OTHER_NAMES.items() if name not in row and other in row}}
    for name, kind in source.fields.items():
        value = row.get(name)
        texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
        if not (texts if kind is list else isinstance(value, kind)):
            raise DataFileError(f"{where}: '{name}' must be a {'list of strings' if kind is list else kind.__name__}")
    return {name: row[name] for name in source.fields}


def rows_sha256(rows: Iterable[Mapping[str, Any]]) -> str:
    """sha256 over the rows as canonical JSON, one a line."""
    digest = hashlib.sha256()
    for row in rows:
        text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        digest.update(text.encode("ascii") + b"\n")
    return digest.hexdigest()


_EXTRACT = {"text": str, "value": str, "key": str}
_SQUAD = {"text": str, "value": str, "context": str, "question": str}
_LONGBENCH = {"input": str, "context": str, "answers": list}
# Data sets of lm-eval's tasks, by the task's name: fields that its definition reads, hub, and the split that it asks.
_HARNESS_SETS: dict[str, tuple[dict[str, type], tuple[str, str | None], str]] = {
    "lambada_openai": ({"text": str}, ("EleutherAI/lambada_openai", "default"), "test"),
    "piqa": ({"goal": str, "sol1": str, "sol2": str, "label": int}, ("baber/piqa", None), "validation"),
    "hellaswag": (
        {"activity_label": str, "ctx_a": str, "ctx_b": str, "endings": list, "label": str},
        ("Rowan/hellaswag", None),
        "validation",
    ),
    "winogrande": (
        {"sentence": str, "option1": str, "option2": str, "answer": str},
        ("allenai/winogrande", "winogrande_xl"),
        "validation",
    ),
    "arc_easy": ({"question": str, "choices": dict, "answerKey": str}, ("allenai/ai2_arc", "ARC-Easy"), "test"),
    "arc_challenge": ({"question": str, "choices": dict, "answerKey": str}, ("allenai/ai2_arc", "ARC-Challenge"), "test"),
    "social_iqa": (
        {"context": str, "question": str, "answerA": str, "answerB": str, "answerC": str, "label": str},
        ("lighteval/siqa", None),
        "validation",
    ),
    "boolq": ({"passage": str, "question": str, "label": int}, ("aps/super_glue", "boolq"), "validation"),
    "wikitext": ({"page": str}, ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"), "test"),
}
_EVAL = "long_context_eval"
_PINS = "data-pins.json"
LONGBENCH_SETS = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique")


@lru_cache(maxsize=1)
def pins() -> dict[str, dict[str, str]]:
    """Shipped pins by source: `revision` of a hub repository, `sha256` of rows, `file_sha256` of a file."""
    path = shipped() / _PINS
    try:
        held = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataFileError(f"the shipped {_PINS} is damaged: {error}") from error
    return {name: dict(row) for name, row in held.items()}


def _sources() -> dict[str, Source]:
    found = [
        Source("swde", _EXTRACT, ("hazyresearch/based-swde-v2", "default"), **_pin("swde")),
        Source("fda", _EXTRACT, ("hazyresearch/based-fda", "default"), **_pin("fda")),
        Source("squad_completion", _SQUAD, ("hazyresearch/based-squad", "default"), **_pin("squad_completion")),
        Source("text", {"text": str}),
        Source("squad", {}, package=(_EVAL, "data/synthetic/json/squad.json"), whole_file=True, **_pin("squad")),
        Source(
            "hotpotqa_dev",
            {},
            package=(_EVAL, "data/synthetic/json/hotpotqa.json"),
            whole_file=True,
            **_pin("hotpotqa_dev"),
        ),
    ]
    for name in LONGBENCH_SETS:
        found.append(
            Source(
                f"longbench_{name}",
                _LONGBENCH,
                ("Xnhyacinth/LongBench", name),
                split="test",
                **_pin(f"longbench_{name}"),
            )
        )
    found += [
        Source(name, fields, hub, split=split, **_pin(name)) for name, (fields, hub, split) in _HARNESS_SETS.items()
    ]
    return {source.name: source for source in found}  # 'text' is any text that a user has


def _pin(name: str) -> dict[str, Any]:
    return pins().get(name, {})


SOURCES: dict[str, Source] = _sources()
"""Every real data set by name."""
