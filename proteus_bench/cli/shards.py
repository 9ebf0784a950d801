"""`shards`: token shards for language-model training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json


def shards_command(
    source: dict[str, Any], tokenizer: Path | None, end_token: str, out: Path, size: dict[str, Any], *, as_json: bool
) -> int:
    """Write or go on writing the shards of a text source. Errors: see `proteus_models.train_shards`."""
    from proteus_bench.store import FolderLock, prove_writable
    from proteus_models.train_shards import TextSource, write_shards
    from proteus_models.zoo import zoo_root

    prove_writable(out)
    with FolderLock(out):
        made = write_shards(
            TextSource(**source), tokenizer or zoo_root() / "tokenizer.json", end_token, out, report=_report, **size
        )
    return _say(made, out, as_json)


def verify_command(out: Path, *, as_json: bool) -> int:
    """Compute every hash of a folder of shards."""
    from proteus_models.train_shards import verify

    return _say(verify(out), out, as_json)


def _say(made: Any, out: Path, as_json: bool) -> int:
    documents = sum(s.documents for s in made.shards)
    if as_json:
        print_json({"folder": str(out), "shards": len(made.shards), "documents": documents, "tokens": made.tokens})
    else:
        print(f"{out}: {len(made.shards)} shards, {documents:,} documents, {made.tokens:,} tokens, hashes right")
    return 0


def _report(row: dict[str, Any]) -> None:
    print(json.dumps(row), file=sys.stderr, flush=True)
