"""Settings that every test shares. They are made before any numerical library is imported."""

import os

# Two threads beside another busy process spin on barriers and are far slower than one.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.pop("PROTEUS_BENCH_PLUGINS", None)
os.environ.pop("PROTEUS_KERNELS", None)
# Triton reads this when it is first imported: kernels then run on CPU tensors, one program after another. A test that
# compiles or runs them for a device starts a process without it (tests/kernels/conftest.py: `compiler_environment`).
os.environ["TRITON_INTERPRET"] = "1"

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# Deadlines fail on a loaded machine, and a test that draws new inputs on every run is not a gate.
settings.register_profile("bench", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.load_profile("bench")


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """install(file of docs, entry points): the file as a module of a stranger's distribution in `tmp_path`."""
    from proteus_bench.runner import models

    installed = []

    def install(source, points):
        info = tmp_path / f"{source.stem}_plugin-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {source.stem.replace('_', '-')}-plugin\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(points)
        (tmp_path / source.name).write_text(source.read_text("utf-8"))
        monkeypatch.syspath_prepend(str(tmp_path))
        models._tables.cache_clear()  # a process asks for the installed plugins once
        installed.append(source.stem)

    yield install
    for name in installed:
        sys.modules.pop(name, None)
    models._tables.cache_clear()


@pytest.fixture
def halfway(stranger):
    """docs/new_schedule.py, installed."""
    source = Path(__file__).resolve().parents[1] / "docs" / "new_schedule.py"
    stranger(source, "[proteus_bench.schedules]\nhalfway = new_schedule:Halfway\n")
    return source
