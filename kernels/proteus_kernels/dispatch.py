"""Which kernel runs: every one has a name `op--backend`, and all of an op take the same arguments.

    op       delta, comba, linear, titans_linear, titans_mlp
    backend  recurrent   the definition, one position at a time
             chunk       the chunked form in torch: any device, every mask
             triton      kernels for CUDA (extra `gpu`), where the op has them
             fla         flash-linear-attention, where it is installed and computes the same; only when asked for

`kernel(op)` chooses by the tensors' device: triton on CUDA, chunk elsewhere. What triton cannot do (`unsupported` of its
modules says so: a gate, a type, a size) runs as chunk, and the reason is kept: `used()` tells what ran in this process.
`kernel(op, form)` forces a backend. PROTEUS_KERNELS chooses for a whole process: a backend for every op that has it, an
`op--backend`, or several of both with commas, the later before the earlier.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

VARIABLE = "PROTEUS_KERNELS"
AUTO = "auto"
BACKENDS = ("recurrent", "chunk", "triton", "fla")
OPS: dict[str, dict[str, str]] = {
    "delta": {"triton": "proteus_kernels.triton.delta", "fla": "proteus_kernels.fla"},
    "comba": {"triton": "proteus_kernels.triton.comba"},
    "linear": {"triton": "proteus_kernels.triton.linear"},
    "titans_linear": {"triton": "proteus_kernels.triton.titans"},
    "titans_mlp": {},
}
"""Modules of the backends beyond the two that `proteus_kernels.<op>` has itself."""

_used: dict[str, set[str]] = {}


class KernelError(ValueError):
    """No such kernel, or one that cannot run here. The exit code is the command line's."""

    exit_code = 2


def names() -> list[str]:
    """Every kernel there is."""
    return [f"{op}--{backend}" for op, more in OPS.items() for backend in ("recurrent", "chunk", *more)]


def planned(op: str, device: str) -> str:
    """The backend that `kernel(op)` tries first for tensors on "cpu" or "cuda"."""
    asked = _asked(os.environ.get(VARIABLE, "")).get(op)
    if asked is not None:
        return asked
    return "triton" if device == "cuda" and "triton" in OPS[op] and _installed("triton") else "chunk"


def chosen(device: str) -> dict[str, str]:
    """What `kernel` tries first for each op on "cpu" or "cuda". KernelError when PROTEUS_KERNELS asks for what cannot run."""
    found = {op: planned(op, device) for op in OPS}
    for op, backend in found.items():
        _check(op, backend, device)
    return found


def used() -> dict[str, list[str]]:
    """What ran in this process so far: kernel -> why it ran in place of the planned one (nothing when it was planned)."""
    return {name: sorted(reasons) for name, reasons in sorted(_used.items())}


def kernel(op: str, form: str = AUTO) -> Callable[..., Any]:
    """The function of an op: `form` auto, or a backend. KernelError for names that do not exist."""
    if op not in OPS:
        raise KernelError(f"no kernel {op!r}{_nearest(op, OPS)}")
    if form != AUTO and form not in ("recurrent", "chunk", *OPS[op]):
        raise KernelError(f"no kernel {op}--{form}{_nearest(f'{op}--{form}', names())}")

    def run(**arguments: Any) -> Any:
        backend, reason = (form, "") if form != AUTO else _choice(op, arguments)
        _used.setdefault(f"{op}--{backend}", set()).update({reason} - {""})
        if backend == "recurrent":
            arguments.pop("chunk_size", None)
        return _function(op, backend)(**arguments)

    return run


def _choice(op: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Backend, and why it is not the planned one."""
    where = next(x.device for x in arguments.values() if isinstance(x, Tensor))
    device = where.type
    backend = planned(op, device)
    if backend in ("recurrent", "chunk"):
        return backend, ""
    _check(op, backend, device)
    if device == "cuda" and torch.cuda.get_device_capability(where) < (8, 0):
        return "chunk", "a device before compute capability 8.0"
    why_not = importlib.import_module(OPS[op][backend]).unsupported
    wanted = inspect.signature(why_not).parameters
    reason = why_not(**{name: value for name, value in arguments.items() if name in wanted})
    return (backend, "") if reason is None else ("chunk", reason)


def _check(op: str, backend: str, device: str) -> None:
    if backend in ("recurrent", "chunk"):
        return
    if not _installed(backend):
        raise KernelError(f"{VARIABLE} asks for {op}--{backend}, and {backend} is not installed")
    if device != "cuda" and not (backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"):
        raise KernelError(f"{VARIABLE} asks for {op}--{backend}, which needs CUDA; the model is on {device}")


def _function(op: str, backend: str) -> Callable[..., Any]:
    if backend in OPS[op]:
        if not _installed(backend):
            raise KernelError(f"{op}--{backend} needs {backend}, which is not installed")
        return importlib.import_module(OPS[op][backend]).chunk
    return getattr(importlib.import_module(f"proteus_kernels.{op}"), backend)


@lru_cache(maxsize=8)
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@lru_cache(maxsize=8)
def _asked(text: str) -> dict[str, str]:
    """PROTEUS_KERNELS by op."""
    found: dict[str, str] = {}
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name in BACKENDS:
            found |= {op: name for op, more in OPS.items() if name in ("recurrent", "chunk", *more)}
        elif name in names():
            op, _, backend = name.partition("--")
            found[op] = backend
        else:
            raise KernelError(f"{VARIABLE}: no kernel {name!r}{_nearest(name, [*BACKENDS, *names()])}")
    return found


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)
    return f"; the nearest is {close[0]}" if close else ""
