"""`generate niah`: the Typer sub-command of the needle tasks. Typer is imported only when the sub-command is built.

No postponed annotations here: Typer reads them, and they name a module that is local to a function.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from . import haystack as haystacks
from .errors import LengthBudgetError, TaskError, nearest
from .item import Item
from .niah import VARIANTS, NiahTask
from .output import prepare, write_items
from .tokenizers import Tokenizer, resolve


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one call, as given. `n` items at each of `depths` evenly spaced depths, or at random depths."""

    variant: str
    length: int
    out: Path
    n: int
    tokenizer: str
    depths: int | None
    split: str
    seed: int
    haystack: Path | None


def app() -> Any:
    """The Typer application behind `generate niah`."""
    import typer

    def niah(
        variant: Annotated[str, typer.Option(help=f"One of {', '.join(VARIANTS)}.")],
        length: Annotated[int, typer.Option(help="Tokens of an item, the answer budget included.")],
        out: Annotated[Path, typer.Option(help="Folder for items.jsonl and manifest.json.")],
        n: Annotated[int, typer.Option(min=1, help="Items (with --depths: items at each depth).")] = 500,
        tokenizer: Annotated[str, typer.Option(help="bytes, micro, or the path of a tokenizer.json.")] = "micro",
        depths: Annotated[int | None, typer.Option(min=2, max=1001, help="A grid of depths from 0 to 1.")] = None,
        split: Annotated[str, typer.Option(help="train, tune or test.")] = "test",
        seed: Annotated[int, typer.Option(min=0, help="Data seed.")] = 0,
        haystack: Annotated[Path | None, typer.Option(help="A text file in place of the shipped prose.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the manifest on standard output.")] = False,
    ) -> None:
        """Needle-in-a-haystack items as JSON lines with a manifest."""
        request = Request(
            variant=variant,
            length=length,
            out=out,
            n=n,
            tokenizer=tokenizer,
            depths=depths,
            split=split,
            seed=seed,
            haystack=haystack,
        )
        code = run(request, as_json)
        if code:
            raise typer.Exit(code)

    application = typer.Typer(add_completion=False, help="Needle-in-a-haystack items as JSON lines with a manifest.")
    application.callback(invoke_without_command=True)(niah)
    return application


def run(request: Request, as_json: bool) -> int:
    """Generate and report; returns the exit code."""
    try:
        manifest = generate(request)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if as_json:
        print(json.dumps(manifest, sort_keys=True))
    else:
        spread = f"{manifest['reached_min']}-{manifest['reached_max']} of {request.length} tokens"
        print(f"{manifest['items']} items of {manifest['task']} ({spread}) in {request.out}", file=sys.stderr)
    return 0


def generate(request: Request) -> dict[str, Any]:
    """Write the items and return the manifest; TaskError for anything the user can mend."""
    task = VARIANTS.get(request.variant.removeprefix("niah."))
    if task is None:
        hint = nearest(request.variant, VARIANTS)
        raise TaskError(f"unknown variant '{request.variant}'{hint}; known: {', '.join(VARIANTS)}")
    haystacks.check_split(request.split)
    if request.haystack is not None and task.haystack != "prose":
        raise TaskError(f"{task.id} has no prose haystack: --haystack does not apply")
    tokenizer = resolve(request.tokenizer)
    source = haystacks.from_file(str(request.haystack)) if request.haystack is not None else None
    grid = None if request.depths is None else [i / (request.depths - 1) for i in range(request.depths)]
    prepare(request.out)
    record = {
        "task": task.id, "version": task.version, "length": request.length, "n": request.n, "depths": grid,
        "split": request.split, "data_seed": request.seed, "tokenizer": tokenizer.fingerprint,
        "haystack_sha256": source.sha256 if source is not None else None,
    }  # fmt: skip
    try:
        return write_items(request.out, _items(task, request, grid, tokenizer, source), record)
    except LengthBudgetError as error:
        # One item's minimum would send the user from one refusal to the next: the minimum of all of them does not.
        least = task.minimum_length(
            request.n, tokenizer=tokenizer, data_seed=request.seed, split=request.split, haystack=source
        )
        raise LengthBudgetError(error.task, request.length, max(least, error.minimum)) from error


def _items(
    task: NiahTask,
    request: Request,
    grid: list[float] | None,
    tokenizer: Tokenizer,
    source: haystacks.Haystack | None,
) -> Iterator[Item]:
    for depth in grid if grid is not None else [None]:
        yield from task.items(
            request.n,
            length=request.length,
            tokenizer=tokenizer,
            data_seed=request.seed,
            split=request.split,
            depth=depth,
            haystack=source,
        )
