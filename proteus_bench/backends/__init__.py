"""Who answers. Nothing heavy is imported until a back end is opened."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from proteus_bench.backends.base import DEFAULT, Answer, Ask, AskIds, Backend, BackendInfo, Reply, Settings, Tokenizer
from proteus_bench.errors import EnvironmentFault

if TYPE_CHECKING:
    from proteus_bench.grammar import ModelSpec

__all__ = [
    "SOURCES", "Answer", "Ask", "AskIds", "Backend", "BackendInfo", "Reply", "Settings", "Tokenizer", "forget", "open_backend",
    "opened", "require_backend",
]  # fmt: skip

SOURCES: dict[str, tuple[str, str, str]] = {
    "zoo": ("proteus_bench.backends.local:LocalBackend", "", ""),
    "hf": ("proteus_bench.backends.hf:HFBackend", "transformers", "hf"),
    "vllm": ("proteus_bench.backends.vllm:open_vllm", "transformers", "hf"),
    "openai": ("proteus_bench.backends.server:ServerBackend", "transformers", "hf"),
    "lm-eval": ("proteus_bench.backends.harness:HarnessBackend", "lm_eval", "lm-eval"),
}
"""By source of the grammar: the class, the package that it needs and the extra that brings it. See `base`."""

_KEPT = 2
_open: OrderedDict[tuple[Any, ...], Backend] = OrderedDict()


def require_backend(spec: ModelSpec) -> None:
    """EnvironmentFault (exit 4) for a source that has no back end here, or whose extra is not installed."""
    if spec.source not in SOURCES:
        raise EnvironmentFault(f"the {spec.source} back end is not part of this version; there are {', '.join(SOURCES)}")
    _, package, extra = SOURCES[spec.source]
    if package and importlib.util.find_spec(package) is None:
        raise EnvironmentFault(f"{spec.source}: needs the package {package}: pip install 'proteus-bench[{extra}]'")


def open_backend(spec: ModelSpec, seed: int, settings: Settings = DEFAULT) -> Backend:
    """The back end of a model spec and one training seed, loaded.

    Raises EnvironmentFault (exit 4) for a source without a back end, InvalidFileError (exit 3) for a checkpoint that
    fails its checks, UsageError (exit 2) for a capacity that the model cannot have.
    """
    require_backend(spec)
    module, _, name = SOURCES[spec.source][0].partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)(spec, seed, settings)
    return backend


def opened(spec: ModelSpec, seed: int, settings: Settings = DEFAULT) -> Backend:
    """`open_backend`, but the last two models of the zoo stay open, or the last one of another source: cells come ordered
    by model and seed, and a model that fills the memory is loaded once."""
    from proteus_bench.backends.weights import ZOO_VARIABLE

    key = (str(spec), seed, settings, os.environ.get(ZOO_VARIABLE), os.getcwd())
    if key not in _open:
        alone = spec.source != "zoo"
        while _open and (alone or len(_open) >= _KEPT):
            _close(_open.popitem(last=False)[1])
        _open[key] = open_backend(spec, seed, settings)
    _open.move_to_end(key)
    return _open[key]


def forget() -> None:
    """Close what `opened` keeps."""
    while _open:
        _close(_open.popitem()[1])


def _close(backend: Backend) -> None:
    close = getattr(backend, "close", None)
    if close is not None:
        close()
