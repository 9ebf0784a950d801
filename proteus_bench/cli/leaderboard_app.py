"""The options of `leaderboard` and `report`. Bodies import what they need, so that --help stays fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
Into = Annotated[Path, typer.Option(help="The leaderboard's folder.")]
Level = Annotated[int, typer.Option(min=0, max=4, help="0 form, 1 sums, 2 scores, 3 answers, 4 training.")]
Suites = Annotated[list[Path] | None, typer.Option("--suite", help="A suite file beside the installed ones.")]
Tokenizers = Annotated[list[Path] | None, typer.Option("--tokenizer", help="A tokenizer.json beside the zoo's.")]
Submitter = Annotated[str | None, typer.Option(help="Who submits.")]
Link = Annotated[str | None, typer.Option(help="An https address of a paper or of code.")]
Note = Annotated[str | None, typer.Option(help="One line for readers.")]
Tried = Annotated[int | None, typer.Option(min=1, help="How many configurations were tried before this one.")]
Items = Annotated[int, typer.Option(min=1, max=10_000, help="V3: items a record that are asked again.")]
SampleSeed = Annotated[int | None, typer.Option(min=0, help="V3: draws the items; default: by chance, and printed.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Take away what stands there, once the new entries have passed.")]
BOARD = Path("leaderboards")


def leaderboard_group() -> typer.Typer:
    """submit, verify, merge, build, add, retire, export."""
    group = typer.Typer(help="Verified entries and their page.", no_args_is_help=True, rich_markup_mode=None)
    group.callback()(lambda: None)
    for name, command in (
        ("submit", _submit), ("verify", _verify), ("merge", _merge), ("build", _build), ("add", _add),
        ("retire", _retire), ("export", _export),
    ):  # fmt: skip
        group.command(name)(command)
    return group


def _submit(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    out: Annotated[Path, typer.Option(help="The bundle: a new folder, or a name that ends in .zip.")],
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Put the weights in, for V3.")] = False,
    submitter: Submitter = None,
    link: Link = None,
    note: Note = None,
    configs_tried: Tried = None,
    json: Json = False,
) -> None:
    """Put run folders into one bundle, with hashes."""
    from proteus_bench.cli.leaderboard import statement_of, submit_command

    said = statement_of(submitter, link, note, configs_tried)
    submit_command(runs, out, said, checkpoints=checkpoints, as_json=json)


def _verify(
    path: Annotated[Path, typer.Argument(help="A bundle, a run folder, an entry, or a leaderboard's folder.")],
    level: Level = 2,
    suite: Suites = None,
    tokenizer: Tokenizers = None,
    items: Items = 4,
    sample_seed: SampleSeed = None,
    recipe: Annotated[Path | None, typer.Option(help="V4: the recipe that is trained again.")] = None,
    work: Annotated[Path | None, typer.Option(help="V4: where it is trained; default runs-out/retrained.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="V4: the training seed.")] = 0,
    json: Json = False,
) -> None:
    """Check a submission up to a level; exit 1 with the reasons when it is refused, 3 when it is malformed."""
    from proteus_bench.cli.leaderboard import options_of, verify_command

    options = options_of(level, suite, tokenizer, items, sample_seed, recipe, work, seed)
    raise typer.Exit(verify_command(path, options, as_json=json))


def _merge(
    bundle: Annotated[Path, typer.Argument(help="A bundle.")],
    into: Into = BOARD,
    level: Level = 2,
    suite: Suites = None,
    tokenizer: Tokenizers = None,
    items: Items = 4,
    sample_seed: SampleSeed = None,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """Verify a bundle, add its entries and rebuild leaderboard.json. Refuses changed values of what stands."""
    from proteus_bench.cli.leaderboard import added_command, options_of
    from proteus_bench.leaderboard import merge

    options = options_of(level, suite, tokenizer, items, sample_seed)
    added_command(merge(bundle, into, options, fresh), into, as_json=json)


def _add(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    into: Into = BOARD,
    level: Level = 2,
    suite: Suites = None,
    tokenizer: Tokenizers = None,
    submitter: Submitter = None,
    link: Link = None,
    note: Note = None,
    configs_tried: Tried = None,
    fresh: Fresh = False,
    json: Json = False,
) -> None:
    """submit, verify and merge of your own run folders in one."""
    from proteus_bench.cli.leaderboard import added_command, options_of, statement_of
    from proteus_bench.leaderboard import add_runs

    said = statement_of(submitter, link, note, configs_tried)
    merged = add_runs(runs, into, options_of(level, suite, tokenizer), said, fresh)
    added_command(merged, into, as_json=json)


def _build(
    folder: Annotated[Path, typer.Argument(help="The leaderboard's folder.")] = BOARD,
    out: Annotated[Path | None, typer.Option(help="Folder of the page; default 'site' inside.")] = None,
    json: Json = False,
) -> None:
    """Rebuild leaderboard.json and the page from the entries. The same entries give the same bytes."""
    from proteus_bench.cli.leaderboard import build_command

    build_command(folder, out, as_json=json)


def _retire(
    name: Annotated[str, typer.Argument(metavar="ID", help="The id of an entry.")],
    reason: Annotated[str, typer.Option(help="Why; it is shown in the archive.")],
    into: Into = BOARD,
) -> None:
    """Move an entry into the archive."""
    from proteus_bench.cli.leaderboard import retire_command

    retire_command(name, into, reason)


def _export(
    folder: Annotated[Path, typer.Argument(help="The leaderboard's folder.")] = BOARD,
    to: Annotated[str, typer.Option(help="csv or eee (Every Eval Ever 0.3.0).")] = "csv",
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("runs-out/export"),
    timestamp: Annotated[str | None, typer.Option(help="eee: seconds since 1970; default now.")] = None,
    json: Json = False,
) -> None:
    """Write the leaderboard in another form."""
    from proteus_bench.cli.leaderboard import export_command

    export_command(folder, to, out, timestamp, as_json=json)


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option(help="The page; default report.html in the run folder.")] = None,
    json: Json = False,
) -> None:
    """Write a page of plots for one run: a single HTML file that needs nothing else."""
    from proteus_bench.cli.leaderboard import report_command

    report_command(run, out, as_json=json)
