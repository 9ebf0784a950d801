"""`--fail-if`: a claim about two methods that must not be shown. ``A < B [by POINTS] [on TASK[@LENGTH]]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from proteus_bench.compare.analyse import SUITE, Line
from proteus_bench.errors import UsageError

_OPERATOR = re.compile(r"\s*(<=|>=|<|>)\s*")
_TAIL = re.compile(r"^(?P<name>.*?)(?:\s+by\s+(?P<points>\S+))?(?:\s+on\s+(?P<place>\S+))?$")
_FORM = "write A < B, A > B, A <= B or A >= B, then 'by POINTS' and 'on TASK' if wanted"


@dataclass(frozen=True)
class Gate:
    """``a op b``: < is 'a is shown worse than b', > 'shown better', <= 'not shown better', >= 'not shown worse'.

    points: with < and >, by more than so many points (the whole interval lies beyond). task: `SUITE` or a task, length:
    with a task, None for any.
    """

    text: str
    a: str
    op: str
    b: str
    points: float = 0.0
    task: str = SUITE
    length: int | None = None

    def holds(self, line: Line) -> bool:
        """Whether the line shows what the gate forbids."""
        if self.op in ("<=", ">="):
            return line.outcome != ("better" if self.op == "<=" else "worse")
        if line.outcome != ("worse" if self.op == "<" else "better"):
            return False
        end = line.verdict.primary.hi if self.op == "<" else line.verdict.primary.lo
        return end is not None and abs(end) * 100 > self.points

    def fits(self, line: Line) -> bool:
        """Whether the line is the one that the gate speaks of: the headline, or its task."""
        if (line.verdict.a, line.verdict.b) != (self.a, self.b):
            return False
        if self.task == SUITE:
            return line.headline
        return line.task == self.task and self.length in (None, line.length)


def parse_gate(text: str) -> Gate:
    """Read one gate. UsageError (exit 2) says how it is written."""
    parts = _OPERATOR.split(text.strip())
    if len(parts) != 3 or not parts[0]:
        raise UsageError(f"cannot read the gate {text[:80]!r}: {_FORM}")
    tail = _TAIL.match(parts[2])
    if tail is None or not tail["name"]:
        raise UsageError(f"cannot read the gate {text[:80]!r}: {_FORM}")
    points = _points(text, tail["points"])
    if points and parts[1] in ("<=", ">="):
        raise UsageError(f"{text[:80]!r}: 'by POINTS' goes with < and > only")
    task, _, length = (tail["place"] or SUITE).partition("@")
    if length and not re.fullmatch(r"[0-9]{1,12}", length):
        raise UsageError(f"{text[:80]!r}: a length is a number of tokens, not {length!r}")
    return Gate(text.strip(), parts[0], parts[1], tail["name"], points, task, int(length) if length else None)


def _points(text: str, raw: str | None) -> float:
    if raw is None:
        return 0.0
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", raw) or not float(raw) < 100:
        raise UsageError(f"{text[:80]!r}: points are a number from 0 to 100, not {raw!r}")
    return float(raw)
