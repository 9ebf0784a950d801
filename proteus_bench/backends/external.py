"""Models outside the zoo as far as they can be known without loading them: seeds, sizes, the length of their training."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import BackendInfo, Settings
from proteus_bench.backends.weights import Weights
from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.grammar import ModelSpec
from proteus_bench.registry import stored_capacity
from proteus_bench.schedules import Capacity
from proteus_bench.store.canonical import canonical_json, digest, file_digest
from proteus_bench.store.folder import read_json

CONFIG = "config.json"
OWN = "proteus"
"""The `model_type` of our own models saved for transformers."""
# What configurations call the longest text that a model was made for, the most telling first.
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx", "context_length",
)  # fmt: skip


def external_weights(spec: ModelSpec) -> Weights:
    """What answers for ``hf:PATH`` and the like. A schedule can be put on our own checkpoints only (UsageError, exit 2)."""
    folders = {} if "(" in spec.name else seed_folders(spec.name)  # NAME(arguments) is no path
    own = own_capacity(next(iter(folders.values()), None))
    if own is None and spec.schedule is not None:
        raise UsageError(f"{spec}: only models of proteus-bench have a memory to open by a schedule; ask without it")
    default = own or Capacity.static()
    return Weights(
        name=spec.name,
        trained=default.schedule.label,
        size=spec.size or "",
        seeds=tuple(folders) or (0,),
        capacity=spec.capacity(default),
        exact=own is None or spec.capacity(own) == own,
        train_length=0,
        memory="none",
        root=None,
    )


def seed_folders(name: str) -> dict[int, Path]:
    """Checkpoint folders by training seed: the ``seed<k>`` folders of a path where it has some, the path itself as seed 0.

    Empty for what is no folder here: an address, a name on a hub.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        return {}
    matches = {p: re.fullmatch(r"seed([0-9]{1,9})", p.name) for p in sorted(path.iterdir())}
    seeds = {int(m[1]): p for p, m in matches.items() if m and (p / CONFIG).is_file()}
    return dict(sorted(seeds.items())) or {0: path}


def checkpoint_folder(spec: ModelSpec, seed: int) -> Path:
    """The folder of one seed with its configuration. UsageError (exit 2) when there is none."""
    folder = seed_folders(spec.name).get(seed)
    if folder is None or not (folder / CONFIG).is_file():
        raise UsageError(f"{spec.source}:{spec.name}: no folder with a {CONFIG} (download a model of a hub first)")
    return folder


def own_capacity(folder: Path | None) -> Capacity | None:
    """The capacity in the configuration of one of our own models, None for anybody else's."""
    if folder is None or not (folder / CONFIG).is_file():
        return None
    data = read_json(folder / CONFIG)
    if not isinstance(data, dict) or data.get("model_type") != OWN:
        return None
    try:
        return stored_capacity(data["architecture"]["capacity"])
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise InvalidFileError(f"{folder / CONFIG}: {error}") from error


def train_length_of(config: dict[str, Any], settings: Settings, what: str) -> int:
    """Tokens of the texts that a model was trained on: the flag, our own record of it, or what the configuration is made for.

    An extended context (RoPE scaling) names its original length. UsageError (exit 2) when nothing says it.
    """
    if settings.train_length is not None:
        return settings.train_length
    own = config.get("architecture", {}).get("train_length") if config.get("model_type") == OWN else None
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    original = scaling.get("original_max_position_embeddings") if isinstance(scaling, dict) else None
    for value in (own, original, position_limit(config)):
        if isinstance(value, int) and value > 0:
            return value
    raise UsageError(f"{what}: its configuration does not say how long the texts of its training were: give --train-length")


def position_limit(config: dict[str, Any]) -> int | None:
    """The most tokens a model takes; None where its configuration names no limit, as for a recurrent one."""
    if config.get("model_type") == OWN:
        return None
    found = [config.get(name) for name in _LENGTHS]
    return next((value for value in found if isinstance(value, int) and 0 < value < 1 << 40), None)


def size_name(parameters: int) -> str:
    """A model's size in words: 85k, 124m, 1.3b."""
    for unit, sign in ((10**9, "b"), (10**6, "m"), (10**3, "k")):
        if parameters >= unit:
            return f"{parameters / unit:.2g}{sign}" if parameters < 10 * unit else f"{parameters // unit}{sign}"
    return str(parameters)


def weights_digest(folder: Path) -> str:
    """sha256 of the weights: of the file where there is one, over the names and hashes of several."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise InvalidFileError(f"{folder} holds no weights (*.safetensors, *.bin)")
    if len(files) == 1:
        return file_digest(files[0])
    return digest({path.name: file_digest(path) for path in files})


def folder_config(folder: Path) -> dict[str, Any]:
    """The configuration of a checkpoint folder without the path that it was saved from."""
    return {key: value for key, value in read_json(folder / CONFIG).items() if key != "_name_or_path"}


def external_info(
    spec: ModelSpec, seed: int, settings: Settings, weights: Weights, config: dict[str, Any], *, tokenizer: Any, **known: Any
) -> BackendInfo:
    """Who answers outside the zoo. known: the fields of BackendInfo that the back end found out; ``extra`` joins its settings."""
    extra = known.pop("extra", {})
    name = f"{spec.source}:{Path(spec.name).expanduser().resolve().name}"
    return BackendInfo(
        **({"model": name, "size": spec.size or size_name(known["n_params"])} | known),
        schedule=spec.schedule or weights.trained,
        seed=seed,
        config_sha256=hashlib.sha256(canonical_json(config)).hexdigest(),
        tokenizer_sha256=tokenizer.fingerprint,
        memory=weights.memory,
        trained_schedule=weights.trained,
        capacity=weights.capacity.as_dict(),
        config=config,
        backend=spec.source,
        settings={"prompting": "chat" if settings.chat else "base", **extra},
    )


def count_parameters(folder: Path) -> int:
    """Numbers in a folder's weights, from the headers of its safetensors files; 0 for other formats."""
    from safetensors import safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total


def own_state_bytes(config: dict[str, Any]) -> int:
    """Bytes of the state of one of our own models, by its configuration: nothing is loaded."""
    import torch

    from proteus_models.config import ModelConfig
    from proteus_models.decoder import DecoderLM

    with torch.device("meta"):
        return int(DecoderLM(ModelConfig.from_dict(config["architecture"])).init_state(1).nbytes)


def end_ids(folder: Path, config: dict[str, Any]) -> frozenset[int]:
    """The tokens at which a model says that its text ends, from its generation settings or its configuration."""
    path = folder / "generation_config.json"
    found = (read_json(path) if path.is_file() else config).get("eos_token_id")
    return frozenset([found] if isinstance(found, int) else found or ())
