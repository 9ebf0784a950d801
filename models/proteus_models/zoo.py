"""The zoo: trained micro models under `models/zoo/<name>/seed<k>/`, and the plugin objects of our backbones.

A folder's name is `<backbone>` for the static twin and `<backbone>+<schedule>` for a scheduled one, `@<size>` if not micro.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError, UsageError, nearest
from proteus_bench.schedules import Capacity

HERE = Path(__file__).resolve().parent
MICRO = "micro"


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    name: str
    schedule: str
    size: str
    seeds: tuple[int, ...]
    path: Path


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model ready to answer: eval mode, its tokenizer, its card, the sha256 of its weights."""

    model: Any
    tokenizer: Any
    card: dict[str, Any]
    sha256: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """What a `proteus_bench.models` entry point gives: a name, its memory axes (default first), memory kind."""

    name: str
    axes: tuple[str, ...]
    memory: str
    title: str
    scheduled: bool = True
    clock: str = "context"  # what its schedule counts: positions, or optimizer steps (training)
    mixer: Any = None  # of a plugin: its subclass of proteus_models.mixer.Mixer; ours stand in decoder.MIXERS


gdn = Backbone(name="gdn", axes=("value", "key", "head"), memory="matrix", title="Gated DeltaNet")
deltanet = Backbone(name="deltanet", axes=("value", "key", "head"), memory="matrix", title="DeltaNet")
retnet = Backbone(name="retnet", axes=("value", "key", "head"), memory="matrix", title="RetNet")
comba = Backbone(name="comba", axes=("value", "key", "head"), memory="matrix", title="Comba")
swla = Backbone(name="swla", axes=("value", "key", "head"), memory="matrix", title="SWLA, sliding-window linear attention")
titans = Backbone(name="titans", axes=("value", "key", "head"), memory="matrix", title="Titans LMM, linear memory")
titans_mlp = Backbone(name="titans-mlp", axes=("hidden",), memory="mlp", title="Titans LMM, MLP memory (memory_depth)")
_HYBRID = ("value", "key", "head", "hidden")  # hidden when the neural memory is an MLP
titans_mac = Backbone(name="titans-mac", axes=_HYBRID, memory="matrix", title="Titans MAC, memory as context")
titans_mag = Backbone(name="titans-mag", axes=_HYBRID, memory="matrix", title="Titans MAG, memory as a gate")
titans_mal = Backbone(name="titans-mal", axes=_HYBRID, memory="matrix", title="Titans MAL, memory as a layer")
transformer = Backbone(name="transformer++", axes=(), memory="none", title="Transformer++, no fixed state", scheduled=False)
hope_attention = Backbone(name="hope-attention", axes=("hidden",), memory="none", title="Hope-Attention", clock="training")


def zoo_root() -> Path:
    """models/zoo of a source checkout, or the copy inside an installed wheel."""
    for path in (HERE.parent / "zoo", HERE / "zoo"):
        if path.is_dir():
            return path
    raise InvalidFileError("the zoo of trained models is missing from this installation")


def available(root: Path | None = None) -> list[ZooEntry]:
    """Every model of the zoo, sorted by name; a seed counts when its card is there (it is written last)."""
    root = root or zoo_root()
    entries = []
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        seeds = sorted(
            int(p.name[4:]) for p in folder.glob("seed*") if p.name[4:].isdigit() and (p / "card.json").exists()
        )
        if not seeds:
            continue
        stem, _, size = folder.name.partition("@")
        name, schedule = split_name(stem)
        entries.append(
            ZooEntry(name=name, schedule=schedule, size=size or MICRO, seeds=tuple(seeds), path=folder)
        )
    return entries


def split_name(stem: str) -> tuple[str, str]:
    """`<backbone>[+<schedule>]` -> both; a backbone's own name may end in plus signs, a schedule begins with a letter."""
    match = re.fullmatch(r"([^+]+\+*?)(?:\+([A-Za-z].*))?", stem)
    return (match[1], match[2] or "static") if match else (stem, "static")


def find(name: str, schedule: str, size: str = MICRO, root: Path | None = None) -> ZooEntry:
    """The entry of one trained model; UsageError names the nearest that exists."""
    entries = available(root)
    for entry in entries:
        if (entry.name, entry.schedule, entry.size) == (name, schedule, size):
            return entry
    names = [e.path.name for e in entries]
    wanted = name if schedule == "static" else f"{name}+{schedule}"
    raise UsageError(f"no trained weights for {wanted}@{size} in the zoo{nearest(wanted, names)}")


def tokenizer(root: Path | None = None) -> Any:
    from proteus_models.tokenizer import MicroTokenizer

    return MicroTokenizer.from_file((root or zoo_root()) / "tokenizer.json")


def load(
    name: str,
    schedule: str,
    size: str = MICRO,
    seed: int = 0,
    capacity: Capacity | None = None,
    root: Path | None = None,
) -> Loaded:
    """Load one seed; `capacity` replaces the trained capacity on the same weights."""
    from proteus_models.checkpoint import load_checkpoint

    entry = find(name, schedule, size, root)
    if seed not in entry.seeds:
        raise UsageError(f"{entry.path.name} has no seed {seed}; there are {', '.join(map(str, entry.seeds))}")
    path = entry.path / f"seed{seed}"
    model, card, sha = load_checkpoint(path, capacity)
    return Loaded(model=model, tokenizer=tokenizer(root), card=card, sha256=sha, path=path)
