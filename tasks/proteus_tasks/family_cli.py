"""`generate FAMILY`: the Typer sub-command of every family but the needles'. Typer is imported when it is built.

No postponed annotations here: Typer reads them, and they name a module that is local to a function.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from . import haystack as haystacks
from .errors import LengthBudgetError, TaskError, nearest
from .item import Item
from .output import prepare, write_items
from .task import Task
from .tokenizers import Tokenizer, resolve

DEFAULT_ITEMS = 500


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of one call, as given. `n` None: 500 items, or as many as there are."""

    task: str
    length: int
    out: Path
    n: int | None
    tokenizer: str
    split: str
    seed: int
    data_dir: Path | None


def app(family: str, tasks: Sequence[Task]) -> Any:
    """The Typer application behind `generate FAMILY`."""
    import typer

    short = {task.id.partition(".")[2]: task for task in tasks}
    listed = ", ".join(short) if len(short) <= 12 else f"{len(short)} of them, such as {', '.join(list(short)[:3])}"

    def command(
        task: Annotated[str, typer.Option(help=f"One of {listed}; `list tasks` names all.")],
        length: Annotated[int, typer.Option(help="Tokens of an item, the answer budget included.")],
        out: Annotated[Path, typer.Option(help="Folder for items.jsonl and manifest.json.")],
        n: Annotated[int | None, typer.Option(min=1, help="Items (500, or as many as there are).")] = None,
        tokenizer: Annotated[str, typer.Option(help="bytes, micro, or the path of a tokenizer.json.")] = "micro",
        split: Annotated[str, typer.Option(help="train, tune or test.")] = "test",
        seed: Annotated[int, typer.Option(min=0, help="Data seed.")] = 0,
        data_dir: Annotated[
            Path | None, typer.Option(help="Folder with the data set's files, for tasks on real data.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the manifest on standard output.")] = False,
    ) -> None:
        request = Request(
            task=task, length=length, out=out, n=n, tokenizer=tokenizer, split=split, seed=seed, data_dir=data_dir
        )
        code = run(request, short, as_json)
        if code:
            raise typer.Exit(code)

    about = f"Items of the family {family} as JSON lines with a manifest."
    command.__doc__ = about
    application = typer.Typer(add_completion=False, help=about)
    application.callback(invoke_without_command=True)(command)
    return application


def run(request: Request, tasks: dict[str, Task], as_json: bool) -> int:
    """Generate and report; returns the exit code."""
    try:
        manifest = generate(request, tasks)
    except TaskError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if as_json:
        print(json.dumps(manifest, sort_keys=True))
    else:
        spread = f"{manifest['reached_min']}-{manifest['reached_max']} of {request.length} tokens"
        print(f"{manifest['items']} items of {manifest['task']} ({spread}) in {request.out}", file=sys.stderr)
    return 0


def generate(request: Request, tasks: dict[str, Task]) -> dict[str, Any]:
    """Write the items and return the manifest; TaskError for anything the user can mend."""
    task = tasks.get(request.task) or next((task for task in tasks.values() if task.id == request.task), None)
    if task is None:
        hint = nearest(request.task, tasks)
        raise TaskError(f"unknown task '{request.task[:80]}'{hint}; known: {', '.join(tasks)}"[:600])
    haystacks.check_split(request.split)
    task = _with_data(task, request.data_dir)
    tokenizer = resolve(request.tokenizer)
    size = getattr(task, "size", lambda split: None)(request.split)
    n = request.n if request.n is not None else min(DEFAULT_ITEMS, size or DEFAULT_ITEMS)
    if size is not None and n > size:
        raise TaskError(f"{task.id} has {size} items in split '{request.split}'; {n} are asked")
    prepare(request.out)
    record = {
        "task": task.id, "version": task.version, "length": request.length, "n": n, "split": request.split,
        "data_seed": request.seed, "tokenizer": tokenizer.fingerprint,
        "data_sha256": getattr(task, "data_sha256", None),
    }  # fmt: skip
    try:
        return write_items(request.out, _items(task, request, n, tokenizer), record)
    except LengthBudgetError as error:
        # One item's minimum would send the user from one refusal to the next: the minimum of all of them does not.
        least = _minimum(task, request, n, tokenizer)
        raise LengthBudgetError(error.task, request.length, max(least, error.minimum)) from error


def _with_data(task: Task, folder: Path | None) -> Task:
    if folder is None:
        return task
    reads = is_dataclass(task) and "data_dir" in {field.name for field in fields(task)}
    if not reads or getattr(task, "fixture", False) or getattr(task, "text", "") == "prose":
        raise TaskError(f"{task.id} reads no data: --data-dir does not apply")
    return replace(task, data_dir=str(folder))  # type: ignore[type-var]


def _minimum(task: Task, request: Request, n: int, tokenizer: Tokenizer) -> int:
    least: int = task.minimum_length(  # type: ignore[attr-defined]
        n, tokenizer=tokenizer, data_seed=request.seed, split=request.split
    )
    return least


def _items(task: Task, request: Request, n: int, tokenizer: Tokenizer) -> Iterator[Item]:
    return task.items(n, length=request.length, tokenizer=tokenizer, data_seed=request.seed, split=request.split)
