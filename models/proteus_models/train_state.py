"""Where a training stands, and its file: weights, optimizer state and progress in one safetensors file, renamed into place.

The file holds whole tensors whatever the sharding, so a training may go on with another number of processes. It is read
and written by every process's own path name: several nodes need a shared folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from proteus_bench.errors import InvalidFileError
from proteus_models.decoder import DecoderLM
from proteus_models.train_parallel import like, whole

FILE = "state.safetensors"


@dataclass
class Progress:
    """Where a phase stands: everything but tensors. Losses are running means (decay 0.97 a step)."""

    step: int = 0
    stage: int = 0
    tokens: int = 0
    stage_tokens: int = 0
    answer_loss: float = math.nan
    digit_accuracy: float = 0.0
    crossed_90_at: int | None = None
    seconds: float = 0.0
    status: str = "running"
    history: list[dict[str, Any]] = field(default_factory=list)


def write_json(path: Path, data: Any) -> None:
    """Atomic: temporary file, fsync, rename."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as f:
        json.dump(data, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def save(
    folder: Path, model: DecoderLM, optimizers: list[torch.optim.Optimizer], progress: Progress, identity: str, *, main: bool
) -> None:
    """Every process calls it, since shards are collected; the main one writes. Killed at any moment, the last file stands."""
    tensors = {}
    for name, tensor in _tensors(model, optimizers):
        value = whole(tensor).detach()
        if main:
            tensors[name] = value.cpu().contiguous().clone()
        del value
    if not main:
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "state.tmp"
    # the progress travels inside the tensors' file: one rename, so the two can never disagree
    save_file(tensors, temporary, metadata={"progress": json.dumps(vars(progress)), "identity": identity})
    with temporary.open("rb") as f:
        os.fsync(f.fileno())
    os.replace(temporary, folder / FILE)
    write_json(folder / "progress.json", vars(progress))


def _tensors(model: DecoderLM, optimizers: list[torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in model.state_dict().items():
        yield f"model.{name}", tensor
    for name, parameter in model.named_parameters():
        for optimizer in optimizers:
            for key, value in optimizer.state.get(parameter, {}).items():
                yield f"optimizer.{name}/{key}", torch.as_tensor(value)


def read_progress(folder: Path) -> Progress | None:
    """What is saved in the folder, without its tensors; None when nothing is. InvalidFileError for a damaged file.

    Safe beside a training that renames new files into place: the file is opened once. (`safe_open` opens a path twice, for
    the header and for the tensors, and between the two a rename may put another file there.)
    """
    path = folder / FILE
    try:
        with path.open("rb") as f:
            length = int.from_bytes(f.read(8), "little")
            size = os.fstat(f.fileno()).st_size
            if length > size - 8:
                raise ValueError("cut short")
            header = json.loads(f.read(length))
        metadata = header.pop("__metadata__")
        if size != 8 + length + max(entry["data_offsets"][1] for entry in header.values()):
            raise ValueError("cut short")
        return Progress(**json.loads(metadata["progress"]))
    except FileNotFoundError:
        return None
    except (OSError, AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
        raise InvalidFileError(f"{path}: not a training state of ours ({error})") from error


@torch.no_grad()
def load(
    folder: Path, model: DecoderLM, optimizers: list[torch.optim.Optimizer], identity: str
) -> Progress | None:
    """Put a saved training back, tensor by tensor; None when there is none.

    InvalidFileError for a damaged file, for tensors of another model, and for a training of another `identity`.
    """
    progress = read_progress(folder)
    if progress is None:
        return None
    path = folder / FILE
    with safe_open(path, "pt") as f:
        made_by = f.metadata().get("identity", "")
        if made_by != identity:
            raise InvalidFileError(f"{path}: made by another recipe or from other data ({made_by[:24]}); choose another --out")
        names = set(f.keys())
        for name, parameter in model.named_parameters():
            key = f"model.{name}"
            if key not in names or tuple(f.get_slice(key).get_shape()) != tuple(parameter.shape):
                raise InvalidFileError(f"{path}: tensor {key!r} is missing or of another shape")
            parameter.copy_(like(f.get_tensor(key), parameter))
        own = {parameter: name for name, parameter in model.named_parameters()}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    prefix = f"optimizer.{own[parameter]}/"
                    state = {n[len(prefix) :]: f.get_tensor(n) for n in names if n.startswith(prefix)}
                    optimizer.state[parameter] = {
                        key: like(t, parameter) if t.shape == parameter.shape else t for key, t in state.items()
                    }
    return progress
