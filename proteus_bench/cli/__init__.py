"""The command line: one clear line and one exit code for everything that can go wrong. Imports are lazy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code (0 ok, 1 failed cells or verification, 2 usage,
    3 invalid file, 4 environment, 5 partial, 6 gate not met, 130 interrupted)."""
    sys.exit(invoke(sys.argv[1:] if argv is None else argv))


def invoke(argv: Sequence[str]) -> int:
    """The exit code of one command. An unexpected exception is a defect and keeps its traceback."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # parallelism is by processes: threads would spin against each other
    from proteus_bench.cli.app import build_app

    try:
        code = build_app(argv)(args=list(argv), prog_name="proteus-bench", standalone_mode=False)
    except KeyboardInterrupt:
        return _say("interrupted; what was done is kept", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        if type(error).__name__ == "Abort":
            return _say("interrupted; what was done is kept", INTERRUPTED)
        message = getattr(error, "format_message", None)
        if message is not None:
            return _say(message(), 2)
        exit_code = getattr(error, "exit_code", None)
        if not isinstance(exit_code, int):
            raise
        return _say(str(error), exit_code)
    if code == INTERRUPTED:  # Typer turns Ctrl-C into this code without a word
        return _say("interrupted; what was done is kept", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _say(message: str, code: int) -> int:
    """One line on stderr, without control characters: names in it may come from a hostile file."""
    line = " ".join(message.split())
    print("proteus-bench: " + "".join(c if c.isprintable() else "?" for c in line), file=sys.stderr)
    return code
