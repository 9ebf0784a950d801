"""A trained model on disk: `model.safetensors` + `config.json` + `card.json`. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from proteus_bench.errors import InvalidFileError
from proteus_bench.schedules import Capacity
from proteus_bench.store.canonical import loads_strict
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

PICKLES = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"}
MAX_HEADER = 16 * 2**20
MAX_JSON = 4 * 2**20
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def save_checkpoint(folder: Path, model: DecoderLM, card: dict[str, Any], weights: str = "fp32") -> None:
    """Write weights, config and card; `card.json` comes last, so a folder with a card is whole.

    `weights`: what matrices are written in, fp32 or bf16 (half of the file; the model that is loaded from it has the rounded
    values, in fp32). Vectors (norms, biases, decay rates) are fp32 always: they are few, and rounding a decay rate acts on every
    position.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = {n: t.detach().to(WEIGHTS[weights] if t.ndim > 1 else torch.float32) for n, t in model.state_dict().items()}
    save_file({n: t.contiguous() for n, t in made.items()}, folder / "model.safetensors")
    for name, data in (("config.json", model.config.as_dict()), ("card.json", card)):
        temporary = folder / f"{name}.tmp"
        temporary.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        temporary.replace(folder / name)


def read_json(path: Path) -> dict[str, Any]:
    """A small strict JSON object, or InvalidFileError."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise InvalidFileError(f"{path}: larger than {MAX_JSON} bytes")
        data = loads_strict(path.read_bytes(), str(path))
    except OSError as error:
        raise InvalidFileError(f"{path}: not a readable file ({error.strerror or error})") from error
    if not isinstance(data, dict):
        raise InvalidFileError(f"{path}: expected a JSON object")
    return data


def sha256_file(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file; pickles, oversize headers and damaged files are refused."""
    if path.suffix in PICKLES:
        raise InvalidFileError(f"{path}: pickled checkpoints can run code and are never loaded; convert to safetensors")
    try:
        with path.open("rb") as f:
            head = f.read(8)
        if len(head) < 8 or struct.unpack("<Q", head)[0] > MAX_HEADER:
            raise InvalidFileError(f"{path}: not a safetensors file, or its header is too large")
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidFileError(f"{path}: not a readable safetensors file ({error})") from error


def load_checkpoint(folder: Path, capacity: Capacity | None = None) -> tuple[DecoderLM, dict[str, Any], str]:
    """(model in eval mode, card, sha256 of the weights); `capacity` replaces the trained one (same weights)."""
    weights = folder / "model.safetensors"
    if not weights.exists():
        pickled = sorted(p.name for p in folder.glob("*") if p.suffix in PICKLES) if folder.is_dir() else []
        if pickled:
            raise InvalidFileError(f"{folder}: holds only a pickled checkpoint ({pickled[0]}); convert to safetensors")
        raise InvalidFileError(f"{folder}: no model.safetensors")
    card = read_json(folder / "card.json")
    try:
        config = ModelConfig.from_dict(read_json(folder / "config.json"))
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidFileError(f"{folder / 'config.json'}: {error}") from error
    if capacity is not None:
        config = replace(config, capacity=capacity)
    model = DecoderLM(config)
    tensors = read_weights(weights)
    expected = {n: t.shape for n, t in model.state_dict().items()}
    found = {n: t.shape for n, t in tensors.items()}
    if expected != found:
        wrong = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
        raise InvalidFileError(f"{weights}: tensor {wrong[0]!r} is missing, unexpected or of another shape")
    if not all(t.isfinite().all() for t in tensors.values()):
        raise InvalidFileError(f"{weights}: holds values that are not finite")
    model.load_state_dict(tensors)
    return model.eval(), card, sha256_file(weights)
