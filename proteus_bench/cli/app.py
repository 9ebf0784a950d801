"""The commands and their options. Bodies import what they need, so that --help stays fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from proteus_bench.cli.leaderboard_app import leaderboard_group, report
from proteus_bench.cli.train_app import shards, train

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]

_HELP = """Does opening a fixed-state memory block by block help? Trained models, tasks, statistics and a leaderboard.

Start with: proteus-bench run --model titans+proteus --suite niah16k --limit 5"""


def build_app(argv: Sequence[str]) -> typer.Typer:
    """The Typer application. Task plugins are imported only when ``argv`` asks for ``generate``."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    app.command("run")(_run)
    app.command("compare")(_compare)
    app.command("plan")(_plan)
    app.command("probe")(_probe)
    app.command("list")(_list)
    app.command("check")(_check)
    app.command("cost")(_cost)
    app.command("train")(train)
    app.command("shards")(shards)
    app.add_typer(_generate(argv), name="generate")
    app.command("report")(report)
    app.add_typer(leaderboard_group(), name="leaderboard")
    app.command("plugins")(_plugins)
    app.command("doctor")(_doctor)
    return app


def _version(value: bool) -> None:
    if value:
        from proteus_bench import __version__

        typer.echo(f"proteus-bench {__version__}")
        raise typer.Exit()


def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


def _run(
    model: Annotated[str | None, typer.Option(help="[source:]name[+schedule][@size], e.g. titans+proteus.")] = None,
    suite: Annotated[str | None, typer.Option(help="A suite, e.g. niah16k; see 'list suites'.")] = None,
    schedules: Annotated[str | None, typer.Option(help="More schedules of the same model: a,b(x=1).")] = None,
    size: Annotated[str | None, typer.Option(help="Model size, e.g. micro.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="The first K training seeds; default all.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items per cell; default all of the suite.")] = None,
    twin: Annotated[bool | None, typer.Option("--twin/--no-twin", help="Run the static twin too (default).")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Context tokens prefilled together.")] = None,
    out: Annotated[str | None, typer.Option(help="Run folder; default runs-out/<model>-<suite>-<hash>.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default one per CPU.")] = None,
    executor: Annotated[str | None, typer.Option(help="Where cells run: local, or ray (a cluster).")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda; models of the zoo run on the CPU.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16, outside the zoo.")] = None,
    chat: Annotated[bool | None, typer.Option("--chat/--base", help="Ask through the chat template, or plainly.")] = None,
    train_length: Annotated[int | None, typer.Option(min=1, help="Tokens, where the model does not say.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder with the tokenizer of a server's model.")] = None,
    engine: Annotated[str | None, typer.Option(help="Options of vLLM's engine: key=value,key=value.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the same settings.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    json: Json = False,
) -> None:
    """Evaluate a model and its static twin on a suite, with intervals and a paired verdict. Resumes when repeated."""
    from proteus_bench.cli.run import run_command
    from proteus_bench.spec import load_spec, split_schedules

    flags: dict[str, Any] = {
        "model": model,
        "suite": suite,
        "size": size,
        "seeds": seeds,
        "limit": limit,
        "twin": twin,
        "out": out,
        "batch_tokens": batch_tokens,
        "workers": workers,
        "executor": executor,
        "device": device,
        "dtype": dtype,
        "chat": chat,
        "train_length": train_length,
        "tokenizer": tokenizer,
        "engine": None if engine is None else split_schedules(engine),
        "schedules": None if schedules is None else split_schedules(schedules),
    }
    raise typer.Exit(run_command(load_spec(flags, config), dry_run=dry_run, as_json=json))


def _compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
    against: Annotated[list[str] | None, typer.Option(help="Reference method; default static and uniform.")] = None,
    common: Annotated[bool, typer.Option("--common", help="Leave out what one side lacks, do not refuse.")] = False,
    fail_if: Annotated[list[str] | None, typer.Option(help="Exit 6 if shown: 'A < B [by POINTS] [on TASK]'.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown on stdout.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout.")] = False,
    json: Json = False,
) -> None:
    """Compare methods of run folders: paired on seeds and items, capacity checked, corrected, with a verdict."""
    from proteus_bench.cli.compare import compare_command, one_format

    form = one_format(json, markdown, csv)
    compare_command(runs, against=against or (), common=common, fail_if=fail_if or (), form=form)


def _plan(
    runs: Annotated[list[Path] | None, typer.Argument(help="Pilot run folders.")] = None,
    a: Annotated[str | None, typer.Option(help="First method of the pair; default all compared pairs.")] = None,
    b: Annotated[str | None, typer.Option(help="Second method of the pair.")] = None,
    difference: Annotated[float | None, typer.Option(help="Points that should be found: what do they take?")] = None,
    seeds: Annotated[str, typer.Option(help="Numbers of training seeds.")] = "3,5,8,10",
    items: Annotated[str | None, typer.Option(help="Numbers of items per task; default 50 to 500.")] = None,
    seed_sd: Annotated[float | None, typer.Option(help="Instead of a pilot: sd between seeds, points.")] = None,
    item_sd: Annotated[float | None, typer.Option(help="... between items, points.")] = None,
    residual_sd: Annotated[float | None, typer.Option(help="... left over, points.")] = None,
    power: Annotated[float, typer.Option(help="Probability of finding the difference.")] = 0.8,
    json: Json = False,
) -> None:
    """Plan a comparison: which difference a number of seeds and items can find, and what one takes."""
    from proteus_bench.cli.compare import plan_command

    plan_command(
        runs or (),
        a=a,
        b=b,
        difference=difference,
        seeds=seeds,
        items=items,
        variances=(seed_sd, item_sd, residual_sd),
        power=power,
        as_json=json,
    )


def _probe(
    name: Annotated[str, typer.Argument(help="capacity, interference or gating.")],
    model: Annotated[str | None, typer.Option(help="[source:]name[+schedule][@size], e.g. titans+proteus.")] = None,
    schedules: Annotated[str | None, typer.Option(help="More schedules of the same model: a,b(x=1).")] = None,
    size: Annotated[str | None, typer.Option(help="Model size, e.g. micro.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="The first K training seeds; default all.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Items per cell; default all of the suite.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of an item; default those of the suite.")] = None,
    contexts: Annotated[int, typer.Option(min=0, max=1000, help="Contexts whose memory is traced; 0: none.")] = 4,
    twin: Annotated[bool | None, typer.Option("--twin/--no-twin", help="Run the static twin too (default).")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Context tokens prefilled together.")] = None,
    out: Annotated[str | None, typer.Option(help="Run folder; default runs-out/<model>-<suite>-<hash>.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default one per CPU.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    json: Json = False,
) -> None:
    """Measure the mechanism: capacity, interference or gating, by answers and in the memory, with a report of plots."""
    from proteus_bench.cli.probe import probe_command
    from proteus_bench.spec import load_spec, split_schedules

    flags: dict[str, Any] = {
        "model": model,
        "suite": name,
        "size": size,
        "seeds": seeds,
        "limit": limit,
        "twin": twin,
        "out": out,
        "batch_tokens": batch_tokens,
        "workers": workers,
        "schedules": None if schedules is None else split_schedules(schedules),
    }
    spec = load_spec(flags)
    raise typer.Exit(
        probe_command(name, spec, length=length, contexts=contexts, dry_run=dry_run, as_json=json)
    )


def _cost(
    models: Annotated[list[str], typer.Argument(help="Models under a schedule, e.g. gdn+proteus.")],
    lengths: Annotated[str, typer.Option(help="Tokens of context, parted by commas.")] = "2048,8192",
    measures: Annotated[str, typer.Option(help="Of train, prefill, decode.")] = "train,prefill,decode",
    pairs: Annotated[int, typer.Option(min=1, max=10_000, help="Pairs of calls a line.")] = 21,
    decode_tokens: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens of one decoding call.")] = 128,
    span: Annotated[str, typer.Option(help="own: the model's; length: the schedule stretched to each length.")] = "own",
    wall: Annotated[bool, typer.Option("--wall", help="Seconds of the clock, not of the thread.")] = False,
    size: Annotated[str | None, typer.Option(help="Model size, e.g. micro.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Training seed of the weights.")] = 0,
    run: Annotated[list[Path] | None, typer.Option(help="Run folder that gets the figures of its methods.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where they are kept; default runs-out/cost.json.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    json: Json = False,
) -> None:
    """Measure what a schedule costs: speed, memory and state against the static twin, in pairs. Resumes when repeated."""
    from proteus_bench.cli.cost import Asked, cost_command

    asked = Asked(models, lengths, measures, pairs, decode_tokens, span, wall, size, seed, run or (), out)
    raise typer.Exit(cost_command(asked, dry_run=dry_run, as_json=json))


def _list(
    what: Annotated[str, typer.Argument(help="models, suites, schedules or tasks")],
    json: Json = False,
) -> None:
    """List models, suites, schedules or tasks."""
    from proteus_bench.cli.listing import list_command

    list_command(what, as_json=json)


def _check(
    model: Annotated[str, typer.Argument(help="A model, e.g. titans+proteus.")],
    json: Json = False,
) -> None:
    """Check a model: lock invariant, causality, chunk = definition, continuation, batch = single."""
    from proteus_bench.cli.check import check_command

    raise typer.Exit(check_command(model, as_json=json))


def _generate(argv: Sequence[str]) -> typer.Typer:
    group = typer.Typer(help="Write items of a task family to files.", no_args_is_help=True, rich_markup_mode=None)
    if argv and argv[0] == "generate":
        from proteus_bench.cli.generate import add_task_commands

        add_task_commands(group)
    else:
        group.callback()(lambda: None)
    return group


def _plugins(json: Json = False) -> None:
    """What is registered by which distribution, and what does not load."""
    from proteus_bench.cli.listing import plugins_command

    plugins_command(as_json=json)


def _doctor(json: Json = False) -> None:
    """Check versions, GPU, kernels against their definition, folders, free space and plugins."""
    from proteus_bench.cli.doctor import doctor_command

    raise typer.Exit(doctor_command(as_json=json))
