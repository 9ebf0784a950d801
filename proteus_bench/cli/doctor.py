"""`doctor`: is this machine able to run the bench, and do the kernels compute what their definitions say?"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import BenchError

_PACKAGES = ("torch", "numpy", "scipy", "pandas", "pyarrow", "pydantic", "rich", "safetensors", "tokenizers", "typer")
_OPTIONAL = ("accelerate", "transformers", "datasets", "lm-eval", "vllm", "ray", "triton")
MIN_FREE_BYTES = 1 << 30
KERNEL_TOLERANCE = 1e-10

Row = dict[str, Any]


def doctor_command(*, as_json: bool) -> int:
    """Print the checks; 0 when none failed, 4 otherwise. A missing extra is information, not a failure."""
    checks: tuple[Callable[[], list[Row]], ...] = (
        _versions, _threads, _gpu, _kernels, _kernel_choice, _folders, _zoo, _plugin_rows,
    )  # fmt: skip
    rows: list[Row] = []
    for check in checks:
        try:
            rows += check()
        except Exception as error:  # the doctor reports what is broken; it must not break on it
            name = check.__name__.strip("_")
            rows.append(_row(name, "failed", f"{type(error).__name__}: {error}".splitlines()[0]))
    failed = any(row["state"] == "failed" for row in rows)
    if as_json:
        print_json({"ok": not failed, "checks": rows})
    else:
        print_table("doctor", ("check", "state", "detail"), [(r["check"], r["state"], r["detail"]) for r in rows])
    return 4 if failed else 0


def _row(check: str, state: str, detail: str) -> Row:
    return {"check": check, "state": state, "detail": detail}


def _versions() -> list[Row]:
    rows = [_row("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    for names, missing in ((_PACKAGES, "failed"), (_OPTIONAL, "absent")):
        for name in names:
            try:
                rows.append(_row(name, "ok", metadata.version(name)))
            except metadata.PackageNotFoundError:
                rows.append(_row(name, missing, "not installed" + (" (optional)" if missing == "absent" else "")))
    return rows


def _threads() -> list[Row]:
    value = os.environ.get("OMP_NUM_THREADS", "unset")
    return [_row("threads", "ok" if value == "1" else "note", f"{os.cpu_count()} CPUs, OMP_NUM_THREADS={value}")]


def _gpu() -> list[Row]:
    import torch

    if not torch.cuda.is_available():
        return [_row("gpu", "absent", "none; the micro track needs none")]
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [_row("gpu", "ok", ", ".join(names))]


def _kernels() -> list[Row]:
    """Each backbone of the decoder, chunked form against its definition, in float64 across every unlock."""
    import torch

    from proteus_bench.schedules import Capacity, Uniform
    from proteus_models.check import check_model
    from proteus_models.config import ModelConfig
    from proteus_models.decoder import MIXERS, DecoderLM

    rows = []
    for name, mixer in sorted(MIXERS.items()):
        torch.manual_seed(0)
        kind: Any = mixer
        m0: Any = "learned" if kind.memory == "mlp" else "zero"
        capacity = Capacity.static(span=32)  # what a backbone without a fixed state can have
        if kind.axes:
            capacity = Capacity(schedule=Uniform(blocks=2, span=32), axis=kind.axes[0], m0=m0)
        config = ModelConfig(
            mixer=name,
            vocab_size=64,
            train_length=32,
            capacity=capacity,
            d_model=32,
            n_layers=1,
            n_heads=2,
            head_k=8,
            head_v=8,
            mlp_hidden=32,
            memory_hidden=16,
        )
        worst = next(row for row in check_model(DecoderLM(config)) if row.name == "chunk = definition")
        state = "ok" if worst.passed else "failed"
        rows.append(_row(f"kernel {name}", state, f"chunked against definition: {worst.value:.1e} (float64)"))
    return rows


def _kernel_choice() -> list[Row]:
    """What runs a model on each kind of device, by default or by PROTEUS_KERNELS."""
    import torch

    from proteus_kernels import dispatch

    rows = []
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        chosen = ", ".join(f"{op}--{backend}" for op, backend in dispatch.chosen(device).items())
        rows.append(_row(f"kernels on {device}", "ok", chosen))
    return rows


def _folders() -> list[Row]:
    import platformdirs

    from proteus_bench.store import prove_writable

    cache = Path(platformdirs.user_cache_dir("proteus-bench"))
    rows = []
    for name, path in (("cache folder", cache), ("working folder", Path.cwd())):
        try:
            prove_writable(path)
            free = shutil.disk_usage(path).free
            state = "ok" if free >= MIN_FREE_BYTES else "failed"
            rows.append(_row(name, state, f"{path}, {free / 2**30:.1f} GiB free"))
        except BenchError as error:
            rows.append(_row(name, "failed", str(error)))
    return rows


def _zoo() -> list[Row]:
    from proteus_bench.backends.weights import zoo_root

    zoo = importlib.import_module("proteus_models.zoo")
    entries = zoo.available(zoo_root())
    total = sum(len(entry.seeds) for entry in entries)
    return [_row("zoo", "ok" if entries else "failed", f"{len(entries)} models, {total} checkpoints")]


def _plugin_rows() -> list[Row]:
    from proteus_bench.registry import plugin_statuses

    statuses = plugin_statuses()
    broken = [
        _row(f"plugin {status.name}", "failed", f"{status.dist} {status.version}: {status.error}")
        for status in statuses
        if status.error is not None
    ]
    return [_row("plugins", "ok", f"{len(statuses) - len(broken)} of {len(statuses)} load"), *broken]
