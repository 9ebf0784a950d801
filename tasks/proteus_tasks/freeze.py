"""Freeze suites: `python -m proteus_tasks.freeze [--check] [SUITE...]` writes, or checks, the item hashes of the suite files.

Hashes are kept per tokenizer fingerprint: bytes, and the shipped micro tokenizer where it is installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from . import TASKS
from .errors import DataFileError, LengthBudgetError, TaskError
from .resources import micro_tokenizer_path, suites_dir
from .suites import Suite, list_suites, load_suite, task_hash
from .tokenizers import Tokenizer, resolve


def shipped_tokenizers() -> list[Tokenizer]:
    """The tokenizers for which hashes are kept."""
    return [resolve("bytes")] + ([resolve("micro")] if micro_tokenizer_path() is not None else [])


def render(suite: Suite, hashes: dict[str, dict[str, str]]) -> str:
    """The suite file's text with these hashes."""
    lines = [f"{key} = {json.dumps(getattr(suite, key))}" for key in ("id", "version", "description")]
    lines += [
        f"data_seed = {suite.data_seed}",
        f'split = "{suite.split}"',
        f"length = {suite.length}" if len(suite.lengths) == 1 else f"lengths = {json.dumps(suite.lengths)}",
        f"n = {suite.n}",
    ]
    lines += ["tasks = [", *(f'    "{task}",' for task in suite.tasks), "]"]
    for fingerprint in sorted(hashes):
        lines += ["", f'[hashes."{fingerprint}"]']
        lines += [f'"{key}" = "{hashes[fingerprint][key]}"' for key in suite.hash_keys()]
    return "\n".join(lines) + "\n"


def changed_tasks(suite: Suite, tokenizer: Tokenizer, tasks: Sequence[str] | None = None) -> list[str]:
    """Cells (hash keys) whose items are not those that the suite froze for this tokenizer; all of them where it froze none."""
    frozen = suite.hashes.get(tokenizer.fingerprint, {})
    return [
        suite.hash_key(task, length)
        for task, length, _ in suite.cells()
        if (tasks is None or task in tasks)
        and frozen.get(suite.hash_key(task, length)) != task_hash(suite, task, tokenizer, length)
    ]


def hashes_of(suite: Suite, tokenizer: Tokenizer) -> dict[str, str]:
    """The hash of every cell."""
    return {suite.hash_key(t, length): task_hash(suite, t, tokenizer, length) for t, length, _ in suite.cells()}


def _fits(suite: Suite, tokenizer: Tokenizer) -> bool:
    """Whether the suite's lengths can hold its tasks with this tokenizer: 256 facts are longer than 8,192 bytes."""
    try:
        for task, length, _ in suite.cells():
            TASKS[task].item(0, length=length, tokenizer=tokenizer, data_seed=suite.data_seed, split=suite.split)
    except LengthBudgetError as error:
        print(f"{suite.id}: not for tokenizer {tokenizer.fingerprint[:16]} ({error})")
        return False
    return True


def _missing_data(suite: Suite) -> str | None:
    """Why a suite cannot be generated here: data that is not shipped and not at hand. None when it can."""
    try:
        for task in suite.tasks:
            getattr(TASKS[task], "data_sha256", None)
    except DataFileError as error:
        return str(error)
    return None


def main(arguments: list[str]) -> int:
    """Exit code: 0 frozen or unchanged, 1 `--check` found a difference, 2 usage, 3 invalid file."""
    check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"] or list(list_suites())
    try:
        suites = [load_suite(name) for name in names]
        tokenizers = shipped_tokenizers()
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    different = 0
    for suite in suites:
        missing = _missing_data(suite)
        if missing is not None:
            print(f"{suite.id}: left as it is ({missing})")
            continue
        fitting = [tokenizer for tokenizer in tokenizers if _fits(suite, tokenizer)]
        if check:
            for tokenizer in fitting:
                for task in changed_tasks(suite, tokenizer):
                    different += 1
                    print(f"{suite.id}: {task} changed for tokenizer {tokenizer.fingerprint[:16]}")
            continue
        hashes = {tokenizer.fingerprint: hashes_of(suite, tokenizer) for tokenizer in fitting}
        (suites_dir() / f"{suite.id}.toml").write_text(render(suite, hashes), encoding="utf-8")
        print(f"{suite.id}: frozen for {', '.join(f[:16] for f in hashes)}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
