"""`generate probes`: probe items as files. Typer is imported only when the sub-command is built.

No postponed annotations here: Typer reads them, and they name a module that is local to a function.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from ..errors import TaskError, nearest
from ..output import prepare, write_items
from ..tokenizers import resolve
from . import PROBE_TASKS


def app() -> Any:
    """The Typer application behind `generate probes`."""
    import typer

    def probes(
        task: Annotated[str, typer.Option(help="Such as capacity.mqar_16; see 'list tasks'.")],
        length: Annotated[int, typer.Option(help="Tokens of an item, the answer budget included.")],
        out: Annotated[Path, typer.Option(help="Folder for items.jsonl and manifest.json.")],
        n: Annotated[int, typer.Option(min=1, help="Items.")] = 500,
        tokenizer: Annotated[str, typer.Option(help="bytes, micro, or the path of a tokenizer.json.")] = "micro",
        split: Annotated[str, typer.Option(help="train, tune or test.")] = "test",
        seed: Annotated[int, typer.Option(min=0, help="Data seed.")] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print the manifest on standard output.")] = False,
    ) -> None:
        """Items of a probe task as JSON lines with a manifest."""
        try:
            manifest = generate(task, length, out, n, tokenizer, split, seed)
        except TaskError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        if as_json:
            print(json.dumps(manifest, sort_keys=True))
        else:
            print(f"{manifest['items']} items of {manifest['task']} in {out}", file=sys.stderr)

    application = typer.Typer(add_completion=False, help="Items of a probe task as JSON lines with a manifest.")
    application.callback(invoke_without_command=True)(probes)
    return application


def generate(task: str, length: int, out: Path, n: int, tokenizer: str, split: str, seed: int) -> dict[str, Any]:
    """Write the items and return the manifest; TaskError for anything the user can mend."""
    if task not in PROBE_TASKS:
        raise TaskError(f"unknown probe task '{task[:64]}'{nearest(task, PROBE_TASKS)}")
    source, encoder = PROBE_TASKS[task], resolve(tokenizer)
    prepare(out)
    record = {
        "task": source.id, "version": source.version, "length": length, "n": n, "split": split, "data_seed": seed,
        "tokenizer": encoder.fingerprint,
    }  # fmt: skip
    return write_items(out, source.items(n, length=length, tokenizer=encoder, data_seed=seed, split=split), record)
