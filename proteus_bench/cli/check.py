"""`check MODEL`: what a model must hold to be comparable."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import UsageError

_STRANGER = re.compile(r"(?!hf:|vllm:|lm-eval:|zoo:)[\w./-]+:[A-Za-z_]\w*")


def check_command(model: str, *, as_json: bool) -> int:
    """0 when every check passed, 1 otherwise. UsageError (exit 2) for an unknown model.

    `module:name` and `file.py:name` name somebody's own model: a callable that gives a `conformance.Subject`.
    """
    if _STRANGER.fullmatch(model):
        return _check_stranger(model, as_json)
    from proteus_bench.backends import require_backend
    from proteus_bench.runner.models import parse

    spec = parse(model)
    require_backend(spec)
    if spec.source != "zoo":
        raise UsageError(f"check knows models of the zoo, and module:name for your own; {spec} is neither")
    from proteus_bench.backends.local import LocalBackend
    from proteus_bench.backends.weights import find_weights
    from proteus_models.check import check_model

    backend = LocalBackend(spec, find_weights(spec).seeds[0])
    rows: list[dict[str, Any]] = [asdict(row) for row in check_model(backend.model)]
    return _report(str(spec), rows, [], as_json)


def _check_stranger(text: str, as_json: bool) -> int:
    from proteus_models.conformance import Unshown, check_subject

    try:
        found = check_subject(_load(text)())
    except UsageError:
        raise
    except Exception as error:  # a stranger's code may raise anything
        raise UsageError(f"{text} could not be checked: {type(error).__name__}: {error}".splitlines()[0][:300]) from error
    rows = [asdict(row) for row in found if not isinstance(row, Unshown)]
    return _report(text, rows, [asdict(row) for row in found if isinstance(row, Unshown)], as_json)


def _load(text: str) -> Callable[[], Any]:
    place, _, name = text.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{place} does not load: {type(error).__name__}: {error}".splitlines()[0][:300]) from error
    value = getattr(module, name, None)
    if not callable(value):
        raise UsageError(f"{place} has no callable {name!r}: check wants a function that returns the model")
    return value


def _report(model: str, rows: list[dict[str, Any]], unshown: list[dict[str, Any]], as_json: bool) -> int:
    passed = all(row["passed"] for row in rows)
    if as_json:
        print_json({"model": model, "passed": passed, "checks": rows, "not_shown": unshown})
        return 0 if passed else 1
    table = [
        (
            "ok" if row["passed"] else "FAILED",
            row["name"],
            _number(row["value"]),
            _number(row["tolerance"]),
            row["detail"],
        )
        for row in rows
    ]
    table += [("-", row["name"], "", "", f"not shown: the model has no {row['hook']}()") for row in unshown]
    print_table(f"check {model}", ("", "check", "worst", "allowed", "what was compared"), table, right=(2, 3))
    rest = f"; {len(unshown)} not shown" if unshown else ""
    print(f"{model}: {'all checks passed' if passed else 'NOT conformant'}{rest}")
    return 0 if passed else 1


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
