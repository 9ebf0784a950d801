"""Configuration, session state, segments and files of the delta-mem adapter (`proteus_models.delta_mem`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from proteus_bench.errors import BenchError, InvalidFileError
from proteus_bench.registry import stored_capacity
from proteus_bench.schedules import Capacity
from proteus_models.checkpoint import read_weights

WRITES = ("token", "segment")
SESSION, ADAPTER = "proteus-bench delta-mem session 1", "proteus-bench delta-mem adapter 1"
CACHE_KEY = "delta_mem_state"


@dataclass(frozen=True, kw_only=True)
class DeltaMemConfig:
    """One adapter. The paper's modes: TSW is the default, SSW is write="segment", MSW is states=4.

    rank: r, rows and columns of a state. alpha: scale of both corrections is alpha / rank. states: parallel states.
    segment: a segment ends after so many tokens, or at any id of `segment_tokens` (the end of a message) before that.
    beta_bias: start of the write gate, sigmoid(-1.5) = 0.18. layers: 0-based, None = all. capacity: a schedule over rows.
    """

    rank: int = 8
    alpha: float = 16.0
    states: int = 1
    write: str = "token"
    segment: int = 64
    segment_tokens: tuple[int, ...] = ()
    beta_bias: float = -1.5
    layers: tuple[int, ...] | None = None
    capacity: Capacity = field(default_factory=lambda: Capacity.static(axis="row", read="pre"))

    def __post_init__(self) -> None:
        for name in ("rank", "states", "segment"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.write not in WRITES:
            raise ValueError(f"unknown write mode {self.write!r}; one of {', '.join(WRITES)}")
        cap = self.capacity
        if cap.axis != "row":
            raise ValueError(f"delta-mem's keep gate is one number a row: the axis must be row, not {cap.axis}")
        if cap.read != "pre" or cap.m0 != "zero":
            raise ValueError("delta-mem reads before it writes and starts from zero: read must be pre and m0 zero")
        if cap.is_data_dependent:
            raise ValueError("a data-dependent schedule needs the memory's prediction error, which delta-mem does not report")
        if not cap.is_static:
            cap.check_axis(self.rank)

    def as_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"capacity": self.capacity.as_dict()}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> DeltaMemConfig:
        unknown = sorted(set(data) - {f.name for f in fields(DeltaMemConfig)})
        if unknown:
            raise ValueError(f"unknown delta-mem configuration key {unknown[0]!r}")
        lists = {n: tuple(data[n]) for n in ("segment_tokens", "layers") if data.get(n) is not None}
        return DeltaMemConfig(**{**data, **lists, "capacity": stored_capacity(data["capacity"])})

    def active(self, position_BT: Tensor) -> Tensor | None:
        """Open rows at 1-based positions [B, T]; None when static."""
        if self.capacity.is_static:
            return None
        first, last = int(position_BT.min()), int(position_BT.max())
        table = torch.from_numpy(np.asarray(self.capacity.active_coords_range(first - 1, last - first + 1, self.rank)))
        return table.to(position_BT.device)[position_BT - first]


@dataclass(frozen=True, kw_only=True)
class DeltaMemState:
    """A session: per layer S_BNRR and, in segment mode, the sum_BD of the open segment; per row [B] the tokens seen (the
    schedule's clock) and the tokens of the open segment."""

    memory: tuple[Tensor, ...]
    sums: tuple[Tensor, ...]
    position: Tensor
    pending: Tensor

    @property
    def rows(self) -> int:
        return self.position.shape[0]

    def select(self, rows: Tensor | list[int]) -> DeltaMemState:
        """Row n of the result is row rows[n]."""
        index = torch.as_tensor(rows)
        return self._map(lambda x: x[index.to(x.device)])

    def detach(self) -> DeltaMemState:
        return self._map(Tensor.detach)

    def for_batch(self, batch: int) -> DeltaMemState:
        """The state itself, or its only row for every row of a batch. ValueError when the numbers disagree."""
        if self.rows not in (1, batch):
            raise ValueError(f"the session holds {self.rows} rows and the batch {batch}")
        return self if self.rows == batch else self.select([0] * batch)

    def _map(self, f: Callable[[Tensor], Tensor]) -> DeltaMemState:
        memory, sums = (tuple(f(x) for x in part) for part in (self.memory, self.sums))
        return replace(self, memory=memory, sums=sums, position=f(self.position), pending=f(self.pending))


@dataclass(frozen=True, kw_only=True)
class Segments:
    """How one forward is cut. ends [B, T]: the last token of a segment. number [B, T]: which segment a position is in; 0 is
    the one that was open before. count [B, S]: tokens of each, earlier ones included. open [B]: the segment left open."""

    ends: Tensor
    number: Tensor
    count: Tensor
    open: Tensor
    real: Tensor

    @staticmethod
    def cut(config: DeltaMemConfig, real_BT: Tensor, ids_BT: Tensor | None, pending_B: Tensor) -> Segments:
        if config.segment_tokens and ids_BT is None:
            raise ValueError("segment_tokens need input_ids, not inputs_embeds")
        closes = torch.zeros_like(real_BT)
        if config.segment_tokens and ids_BT is not None:
            closes = torch.isin(ids_BT, torch.tensor(config.segment_tokens, device=ids_BT.device))
        count, ends = pending_B.clone(), []
        for real, close in zip(real_BT.unbind(1), closes.unbind(1), strict=True):
            count = count + real
            ends.append(real & (close | (count >= config.segment)))
            count = torch.where(ends[-1], 0, count)
        ends_BT = torch.stack(ends, 1)
        number_BT = ends_BT.cumsum(1) - ends_BT.long()
        left_open = ends_BT.sum(1)
        of_BTS = torch.nn.functional.one_hot(number_BT, int(left_open.max()) + 1) * real_BT[..., None]
        count_BS = of_BTS.sum(1)
        count_BS[:, 0] += pending_B
        return Segments(ends=ends_BT, number=number_BT, count=count_BS, open=left_open, real=real_BT)

    def to(self, device: torch.device) -> Segments:
        return Segments(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    @property
    def pending(self) -> Tensor:
        return self.count.gather(1, self.open[:, None]).squeeze(1)

    def means(self, x_BTD: Tensor, sum_BD: Tensor) -> tuple[Tensor, Tensor]:
        """(mean_BSD of every segment, sum_BD of the one left open); `sum_BD` is what the first one brings along."""
        of_BTS = torch.nn.functional.one_hot(self.number, self.count.shape[1]) * self.real[..., None]
        total_BSD = of_BTS.to(x_BTD.dtype).transpose(1, 2) @ x_BTD
        total_BSD = torch.cat([total_BSD[:, :1] + sum_BD[:, None], total_BSD[:, 1:]], 1)
        row = torch.arange(len(self.open), device=self.open.device)
        return total_BSD / self.count.clamp_min(1)[..., None], total_BSD[row, self.open]

    def spread(self, x_BSNR: Tensor) -> Tensor:
        """Each position gets its segment's value: x_BTNR."""
        row = torch.arange(len(self.open), device=self.open.device)[:, None]
        return x_BSNR[row, self.number]


def follow(cache: Any, state: DeltaMemState) -> None:
    """Tie a state to a cache: whatever moves the cache's rows moves the memory's."""
    setattr(cache, CACHE_KEY, state)
    for name, move in _MOVES.items():
        if name not in vars(cache) and hasattr(cache, name):
            setattr(cache, name, MethodType(move, cache))  # a bound method is copied with its object


def _moves(name: str, rows: Callable[[DeltaMemState, Any], Any]) -> Callable[[Any, Any], None]:
    def move(cache: Any, how: Any) -> None:
        getattr(type(cache), name)(cache, how)
        state = getattr(cache, CACHE_KEY)
        setattr(cache, CACHE_KEY, state.select(rows(state, how)))

    return move


def _crop(cache: Any, *args: Any) -> None:
    raise ValueError("a memory cannot forget its last tokens: assisted decoding does not work with delta-mem")


_MOVES: dict[str, Callable[..., None]] = {
    "reorder_cache": _moves("reorder_cache", lambda _, index: index),
    "batch_select_indices": _moves("batch_select_indices", lambda _, index: index),
    "batch_repeat_interleave": _moves("batch_repeat_interleave", lambda s, n: torch.arange(s.rows).repeat_interleave(n)),
    "crop": _crop,
}


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], kind: str, config: DeltaMemConfig, **extra: str) -> None:
    """One safetensors file with kind and configuration in its header; written beside and renamed."""
    header = {"format": kind, "config": json.dumps(config.as_dict(), sort_keys=True), **extra}
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, temporary, metadata=header)
    os.replace(temporary, path)


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], DeltaMemConfig, dict[str, str]]:
    """(tensors, configuration, header) of `save_tensors`. InvalidFileError, one line, for anything else."""
    tensors = read_weights(Path(path))
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
        if header.get("format") != kind:
            raise ValueError(f"its format is {header.get('format')!r}, not {kind!r}")
        config = DeltaMemConfig.from_dict(json.loads(header["config"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError, BenchError) as error:
        raise InvalidFileError(f"{path}: not a {kind} file ({error})") from error
    return tensors, config, header


def check_tensors(path: str | Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """InvalidFileError unless names, shapes and kinds agree and every number is finite."""
    for name in sorted(found.keys() | expected.keys()):
        if name not in found or name not in expected or found[name].shape != expected[name].shape:
            raise InvalidFileError(f"{path}: tensor {name!r} is missing, unexpected or of another shape")
        if found[name].is_floating_point() != expected[name].is_floating_point():
            raise InvalidFileError(f"{path}: tensor {name!r} is of another kind")
        if not bool(found[name].isfinite().all()) or (not found[name].is_floating_point() and bool((found[name] < 0).any())):
            raise InvalidFileError(f"{path}: tensor {name!r} holds values that cannot be")
