"""Who answers. Nothing heavy is imported until a back end is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proteus_bench.backends.base import Answer, AskIds, Backend, BackendInfo, Tokenizer
from proteus_bench.errors import EnvironmentFault

if TYPE_CHECKING:
    from proteus_bench.grammar import ModelSpec

__all__ = ["Answer", "AskIds", "Backend", "BackendInfo", "Tokenizer", "open_backend", "require_backend"]


def require_backend(spec: ModelSpec) -> None:
    """EnvironmentFault (exit 4) for a source that this version has no back end for."""
    if spec.source in ("hf", "vllm"):
        raise EnvironmentFault(f"the {spec.source} back end is not part of this version; only models of the zoo run")


def open_backend(spec: ModelSpec, seed: int) -> Backend:
    """The back end of a model spec and one training seed, loaded.

    Raises EnvironmentFault (exit 4) for a source without a back end, InvalidFileError (exit 3) for a checkpoint that
    fails its checks, UsageError (exit 2) for a capacity that the model cannot have.
    """
    require_backend(spec)
    from proteus_bench.backends.local import LocalBackend

    return LocalBackend(spec, seed)
