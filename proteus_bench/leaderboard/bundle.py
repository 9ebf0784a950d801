"""Writing a bundle: what `submit` puts together."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proteus_bench import __version__
from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.leaderboard.cost import FILE as COST_FILE
from proteus_bench.leaderboard.items import needed_tokenizers
from proteus_bench.leaderboard.opening import MANIFEST, bundle_id, plain_file
from proteus_bench.leaderboard.schema import BUNDLE, Bundle, Statement
from proteus_bench.store import write_bytes
from proteus_bench.store.atomic import fsync_folder
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.run_file import RunFile, read_run_file

CHECKPOINT_FILES = ("model.safetensors", "config.json", "card.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def run_file_names(folder: Path, run: RunFile) -> list[str]:
    """What of a run folder goes into a bundle: run.json, the logs that it names, timing.json and cost.json if they are there."""
    names = ["run.json", *(cell.file for record in run.records for cell in record.cells if cell.sha256 is not None)]
    return [*names, *(name for name in ("timing.json", COST_FILE) if (folder / name).is_file())]


def submit(
    runs: Sequence[Path], out: Path, statement: Statement, checkpoints: Mapping[str, Path] | None = None,
    durable: bool = True,
) -> str:  # fmt: skip
    """Write a bundle of run folders and return its id. ``out``: a new or empty folder, or a name that ends in .zip.

    The tokenizers of the runs go in, from the zoo or the run folders. checkpoints: zoo folders by the sha256 of their weights, for
    V3. durable: False for a folder that is read once and thrown
    away. Raises InvalidFileError for a run folder that is not
    whole, UsageError for a target that is there already, EnvironmentFault when it cannot be written. The result is there
    whole or not at all.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} is there already; choose another --out or delete it")
    sources: dict[str, Path] = {}
    blocks: list[dict[str, Any]] = []
    fingerprints: set[str] = set()
    for folder in runs:
        run = read_run_file(folder / "run.json")
        fingerprints |= {str(record.identity.get("tokenizer_sha256")) for record in run.records}
        at = f"runs/{run.run_id[:16]}"
        files = []
        for name in run_file_names(folder, run):
            sources[f"{at}/{name}"] = plain_file(folder, name)
            files.append(_file_block(sources[f"{at}/{name}"], name))
        if any(block["run_id"] == run.run_id for block in blocks):
            raise UsageError(f"{folder} is given twice, or measures the same as another one")
        blocks.append({"run_id": run.run_id, "path": at, "files": files})
    tokenizers = needed_tokenizers(sorted(fingerprints), runs)
    held = {"tokenizers": _tokenizer_blocks(tokenizers, sources), "checkpoints": _checkpoint_blocks(checkpoints, sources)}
    manifest = Bundle.model_validate(
        {"schema": BUNDLE, "version": __version__, "statement": statement.model_dump(), "runs": blocks, **held}
    )
    if out.suffix == ".zip":
        write_bytes(out, zip_bytes(manifest, sources))
    else:
        _write_folder(out, manifest, sources, durable)
    return bundle_id(manifest)


def _file_block(path: Path, name: str) -> dict[str, Any]:
    return {"path": name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def _tokenizer_blocks(paths: Sequence[Path], sources: dict[str, Path]) -> list[dict[str, Any]]:
    blocks = []
    for path in paths:
        name = f"tokenizers/{file_digest(path)[:16]}.json"
        if name not in sources:
            sources[name] = path
            blocks.append(_file_block(path, name))
    return blocks


def _checkpoint_blocks(checkpoints: Mapping[str, Path] | None, sources: dict[str, Path]) -> list[dict[str, Any]]:
    blocks = []
    for sha256, folder in (checkpoints or {}).items():
        at = f"checkpoints/{sha256[:16]}"
        files = []
        for name in CHECKPOINT_FILES:
            sources[f"{at}/{name}"] = plain_file(folder, name)
            files.append(_file_block(sources[f"{at}/{name}"], name))
        blocks.append({"sha256": sha256, "path": at, "files": files})
    return blocks


def _text_of(manifest: Bundle) -> bytes:
    data = manifest.model_dump(mode="json", by_alias=True)
    return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"


def zip_bytes(manifest: Bundle, sources: Mapping[str, Path]) -> bytes:
    """The bundle as a zip: no clock and no owner in it, so that one bundle is one file."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in [(MANIFEST, None), *sorted(sources.items())]:
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, _text_of(manifest) if data is None else data.read_bytes())
    return sink.getvalue()


def _write_folder(out: Path, manifest: Bundle, sources: Mapping[str, Path], durable: bool) -> None:
    """Everything into a folder beside the target, which then takes its name: the manifest is never without its files."""
    work = out.with_name(f".{out.name}.tmp")
    try:
        shutil.rmtree(work, ignore_errors=True)
        for name, source in sources.items():
            target = work / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if durable:
                write_bytes(target, source.read_bytes())
            else:
                shutil.copyfile(source, target)
        write_bytes(work / MANIFEST, _text_of(manifest))
        if out.is_dir():
            out.rmdir()
        os.replace(work, out)
        fsync_folder(out.parent)
    except OSError as error:
        raise EnvironmentFault(f"cannot save {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
