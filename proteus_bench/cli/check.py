"""`check MODEL`: what a model must hold to be comparable."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from proteus_bench.cli.output import print_json, print_table


def check_command(model: str, *, as_json: bool) -> int:
    """0 when every check passed, 1 otherwise. UsageError (exit 2) for an unknown model."""
    from proteus_bench.backends import require_backend
    from proteus_bench.runner.models import parse

    spec = parse(model)
    require_backend(spec)
    from proteus_bench.backends.local import LocalBackend
    from proteus_bench.backends.weights import find_weights
    from proteus_models.check import check_model

    backend = LocalBackend(spec, find_weights(spec).seeds[0])
    rows: list[dict[str, Any]] = [asdict(row) for row in check_model(backend.model)]
    passed = all(row["passed"] for row in rows)
    if as_json:
        print_json({"model": str(spec), "passed": passed, "checks": rows})
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
    print_table(f"check {spec}", ("", "check", "worst", "allowed", "what was compared"), table, right=(2, 3))
    print(f"{spec}: {'all checks passed' if passed else 'NOT conformant'}")
    return 0 if passed else 1


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
