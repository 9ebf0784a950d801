"""`generate niah`: the Typer sub-command of the needle tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from . import haystack as haystacks
from .errors import LengthBudgetError, TaskError, nearest
from .item import Item
from .niah import VARIANTS, NiahTask
from .output import prepare, write_items
from .tokenizers import Tokenizer, resolve


def app() -> typer.Typer:
    """The application behind `generate niah`."""
    application = typer.Typer(add_completion=False, help="Needle-in-a-haystack items as JSON lines with a manifest.")
    application.callback(invoke_without_command=True)(niah)
    return application


def niah(
    variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")],
    length: Annotated[int, typer.Option(help="Tokens of an item, the answer budget included.")],
    out: Annotated[Path, typer.Option(help="Folder for items.jsonl and manifest.json.")],
    n: Annotated[int, typer.Option(min=1, help="Items (with --depths: items at each depth).")] = 500,
    tokenizer: Annotated[str, typer.Option(help="bytes, micro, or the path of a tokenizer.json.")] = "micro",
    depths: Annotated[int | None, typer.Option(min=2, max=1001, help="A grid of this many depths from 0 to 1.")] = None,
    split: Annotated[str, typer.Option(help="train, tune or test.")] = "test",
    seed: Annotated[int, typer.Option(min=0, help="Data seed.")] = 0,
    haystack: Annotated[Path | None, typer.Option(help="A text file in place of the shipped prose.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest on standard output.")] = False,
) -> None:
    """Needle-in-a-haystack items as JSON lines with a manifest."""
    try:
        manifest = _generate(variant, length, out, n, tokenizer, depths, split, seed, haystack)
    except TaskError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        typer.echo(json.dumps(manifest, sort_keys=True))
    else:
        spread = f"{manifest['reached_min']}-{manifest['reached_max']} of {length} tokens"
        typer.echo(f"{manifest['items']} items of {manifest['task']} ({spread}) in {out}", err=True)


def _generate(
    variant: str,
    length: int,
    out: Path,
    n: int,
    tokenizer: str,
    depths: int | None,
    split: str,
    seed: int,
    haystack: Path | None,
) -> dict[str, Any]:
    task = VARIANTS.get(variant.removeprefix("niah."))
    if task is None:
        raise TaskError(f"unknown variant '{variant}'{nearest(variant, VARIANTS)}; known: {', '.join(VARIANTS)}")
    haystacks.check_split(split)
    if haystack is not None and task.haystack != "prose":
        raise TaskError(f"{task.id} has no prose haystack: --haystack does not apply")
    encoder = resolve(tokenizer)
    source = haystacks.from_file(str(haystack)) if haystack is not None else None
    grid = [None] if depths is None else [i / (depths - 1) for i in range(depths)]
    prepare(out)
    request = {
        "task": task.id, "version": task.version, "length": length, "n": n, "depths": None if depths is None else grid,
        "split": split, "data_seed": seed, "tokenizer": encoder.fingerprint,
        "haystack_sha256": source.sha256 if source is not None else None,
    }  # fmt: skip
    try:
        items = _items(task, n, grid, length, encoder, split, seed, source)
        return write_items(out, items, request)
    except LengthBudgetError as error:
        # One item's minimum would send the user from one refusal to the next: the minimum of all of them does not.
        least = task.minimum_length(n, tokenizer=encoder, data_seed=seed, split=split, haystack=source)
        raise LengthBudgetError(error.task, length, max(least, error.minimum)) from error


def _items(
    task: NiahTask,
    n: int,
    grid: list[float] | list[None],
    length: int,
    tokenizer: Tokenizer,
    split: str,
    seed: int,
    source: haystacks.Haystack | None,
) -> Iterator[Item]:
    for depth in grid:
        yield from task.items(
            n, length=length, tokenizer=tokenizer, data_seed=seed, split=split, depth=depth, haystack=source
        )
