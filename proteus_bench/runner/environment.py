"""The environment block: what could explain a different number elsewhere. Stable between repeats on one machine."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from proteus_bench import __version__

_PACKAGES = ("torch", "numpy", "scipy", "tokenizers", "safetensors", "pydantic", "transformers", "lm_eval")


def environment(devices: Iterable[str] = ()) -> dict[str, Any]:
    """Python, packages, machine, and the commit of a source checkout (None for an installed wheel).

    devices: where models of ours ran; each names the kernels that were chosen there.
    """
    return {
        "proteus_bench": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": platform.system(),
        "machine": platform.machine(),
        "threads_per_process": _threads(),
        **({"kernels": {device: _kernels(device) for device in sorted(set(devices))}} if devices else {}),
        **_commit(),
    }


def _threads() -> int:
    """Threads of one model: 1 for the zoo, torch's own number for a model outside it that runs in this process."""
    torch = sys.modules.get("torch")
    return 1 if torch is None else int(torch.get_num_threads())


def _kernels(device: str) -> dict[str, str]:
    from proteus_kernels import dispatch

    return dispatch.chosen(device.partition(":")[0])


def package_versions() -> dict[str, str | None]:
    """Versions on which the last bits of a result depend: this program's, Python's and its libraries'."""
    own = {"proteus_bench": __version__, "python": platform.python_version()}
    return {**own, **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> dict[str, Any]:
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return {"commit": None, "dirty": None}
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no").strip())}
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}


def _git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout
