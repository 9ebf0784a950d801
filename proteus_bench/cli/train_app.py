"""`train` and `shards`: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from proteus_bench.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe in TOML, of micro models or of a language model.")] = None,
    schedule: Annotated[
        list[str] | None, typer.Option(help="Micro recipe: this schedule instead of its own, beside the static twin; repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Training seed.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Where the models go; default runs-out/train/<name>.")] = None,
    data: Annotated[Path | None, typer.Option(help="Language model: the folder of token shards.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Language model: KEY=VALUE of the recipe, repeated.")] = None,
    grid: Annotated[Path | None, typer.Option(help="Instead of a recipe: a TOML of recipes and seeds.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Grid: processes; default one per CPU.")] = None,
    save_every: Annotated[float, typer.Option(min=0, help="Grid: seconds that a killed training may lose.")] = 120.0,
    own_trunks: Annotated[
        bool, typer.Option("--own-trunks", help="Micro models: train trunks that the shipped zoo has, too.")
    ] = False,
    processes: Annotated[int, typer.Option(min=1, help="Dry run of a language model: of how many processes.")] = 1,
    rate: Annotated[float | None, typer.Option(help="Dry run: tokens a second of one process.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    json: Json = False,
) -> None:
    """Train the models of a recipe, or of a grid of recipes and seeds. Repeating the command resumes.

    Under `accelerate launch -m proteus_bench train ...` a recipe is trained by all its processes together.
    """
    from proteus_bench.cli.train import train_command, train_lm_command
    from proteus_bench.cli.train_grid import grid_command
    from proteus_models.train_lm import is_lm

    if (recipe is None) == (grid is None):
        raise UsageError("train needs a recipe, or --grid FILE")
    if rate is not None and rate <= 0:
        raise UsageError("--rate is in tokens a second and positive")
    if schedule and (grid is not None or is_lm(cast(Path, recipe))):
        raise UsageError("--schedule is for a micro recipe: a grid names branches, a language model takes --set schedule=NAME")
    if grid is not None:
        how = {"workers": workers, "save_every": save_every, "rate": rate, "own_trunks": own_trunks}
        raise typer.Exit(grid_command(grid, out=out, dry_run=dry_run, as_json=json, **how))  # type: ignore[arg-type]
    assert recipe is not None
    if is_lm(recipe):
        plan = {"processes": processes, "rate": rate} if dry_run else None
        raise typer.Exit(
            train_lm_command(recipe, changes=change or (), seed=seed, out=out, data=data, plan=plan, as_json=json)
        )
    if data is not None or change:
        raise UsageError("--data and --set are for a language model: a micro recipe makes its rows, and a grid changes it")
    taken = {"schedules": schedule or (), "own_trunks": own_trunks}
    raise typer.Exit(train_command(recipe, seed=seed, out=out, dry_run=dry_run, as_json=json, **taken))  # type: ignore[arg-type]


def shards(
    out: Annotated[Path, typer.Argument(help="The folder of shards.")],
    files: Annotated[list[str] | None, typer.Option("--file", help="Text (a document) or .jsonl; may be repeated.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A data set to stream, or a loader for --file: json, parquet.")] = None,
    subset: Annotated[str | None, typer.Option(help="Its configuration, e.g. sample-100BT.")] = None,
    split: Annotated[str, typer.Option(help="Its split.")] = "train",
    field: Annotated[str, typer.Option(help="The field that holds the text.")] = "text",
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json; default the micro models'.")] = None,
    end_token: Annotated[str, typer.Option(help="The tokenizer's end-of-text token.")] = "<eos>",
    shard_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a shard, rounded up to a document.")] = 100_000_000,
    tokens: Annotated[int | None, typer.Option(min=1, help="Stop when the shards hold so many.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the hashes of a written folder and stop.")] = False,
    json: Json = False,
) -> None:
    """Write token shards with hashes from text files or a streamed data set. Repeating the command resumes."""
    from proteus_bench.cli.shards import shards_command, verify_command

    if verify:
        raise typer.Exit(verify_command(out, as_json=json))
    if not files and dataset is None:
        raise UsageError("shards needs --file FILE or --dataset NAME")
    source = {"files": tuple(files or ()), "name": dataset or "", "subset": subset, "split": split, "field": field}
    size = {"shard_tokens": shard_tokens, "tokens": tokens}
    raise typer.Exit(shards_command(source, tokenizer, end_token, out, size, as_json=json))
