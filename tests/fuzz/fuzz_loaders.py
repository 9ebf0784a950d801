"""Coverage-guided fuzzing of everything that reads a stranger's bytes: needs the package atheris.

    python tests/fuzz/fuzz_loaders.py TARGET [-max_total_time=60] [FOLDER WITH SEEDS]

TARGET: json, log, entry, bundle, zip, suite, grammar, page or safetensors. Anything but a clean result or an error of ours with its
exit code and one line ends the run. The hypothesis tests in tests/bench/test_hostile_*.py are the part that every test run has.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / part) for part in ("", "tasks", "models", "kernels")]

with atheris.instrument_imports(include=["proteus_bench", "proteus_tasks"]):
    from proteus_bench.errors import BenchError
    from proteus_bench.grammar import parse_model
    from proteus_bench.leaderboard import Options, verify
    from proteus_bench.leaderboard.forms import check_as
    from proteus_bench.leaderboard.schema import Bundle, Entry
    from proteus_bench.registry import Registry, schedule_classes
    from proteus_bench.site.page import clean
    from proteus_bench.store import loads_strict
    from proteus_bench.store.log import parse_log
    from proteus_tasks.errors import TaskError
    from proteus_tasks.suites import parse_suite

MODELS, SCHEDULES = Registry("models").names(), schedule_classes()
FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-"))


def _zip(data: bytes) -> None:
    path = FOLDER / "b.zip"
    path.write_bytes(data)
    verify(path, Options(level=1))


def _page(data: bytes) -> None:
    shown = clean(data.decode("utf-8", "surrogatepass") if data else "")
    shown.encode("utf-8")


def _safetensors(data: bytes) -> None:
    from proteus_models.checkpoint import read_weights

    path = FOLDER / "model.safetensors"
    path.write_bytes(data)
    read_weights(path)


TARGETS: dict[str, Callable[[bytes], object]] = {
    "json": lambda data: loads_strict(data, "x"),
    "log": lambda data: parse_log(data, "x"),
    "entry": lambda data: check_as(Entry, loads_strict(data, "x"), "x"),
    "bundle": lambda data: check_as(Bundle, loads_strict(data, "x"), "x"),
    "zip": _zip,
    "suite": lambda data: parse_suite(data, "x"),
    "grammar": lambda data: parse_model(data.decode("utf-8", "replace"), models=MODELS, schedules=SCHEDULES),
    "page": _page,
    "safetensors": _safetensors,
}


def main() -> None:
    """Fuzz the target that the first argument names."""
    work = TARGETS[sys.argv.pop(1)]

    def one(data: bytes) -> None:
        try:
            work(data)
        except (BenchError, TaskError) as error:
            assert error.exit_code in (2, 3, 4) and "\n" not in str(error), error
        except UnicodeDecodeError:
            assert work is _page

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
