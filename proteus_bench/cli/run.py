"""`run`: plan, execute, save, and only then show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json
from proteus_bench.errors import PartialRunError
from proteus_bench.spec import RunSpec

OUT_ROOT = "runs-out"


def run_command(spec: RunSpec, *, dry_run: bool, as_json: bool) -> int:
    """0 when every cell is there, 1 when some failed. Errors carry their own exit codes; Ctrl-C keeps what is done."""
    from proteus_bench.runner.plan import make_plan
    from proteus_bench.store import FolderLock, RunFolder

    if spec.out is not None and not dry_run:  # an explicit folder is proven before models are loaded
        RunFolder(Path(spec.out)).prepare()
    cluster = None
    if spec.executor == "ray" and not dry_run:
        from proteus_bench.runner.ray_pool import check_ray, cluster_address

        check_ray()
        cluster = cluster_address()
    print(f"preparing {spec.model} on {spec.suite}", file=sys.stderr)
    plan = make_plan(spec)
    folder = RunFolder(Path(spec.out) if spec.out is not None else Path(OUT_ROOT) / plan.default_folder())
    workers = spec.workers or (0 if cluster else plan.default_workers())
    if dry_run:
        _print_plan(plan, folder, workers, as_json)
        return 0
    folder.prepare()
    with FolderLock(folder.path):
        folder.claim(plan.document())
        return _run(plan, folder, workers, as_json)


def _run(plan: Any, folder: Any, workers: int, as_json: bool) -> int:
    from proteus_bench.runner import document as doc
    from proteus_bench.runner.execute import execute
    from proteus_bench.store import write_json

    methods = ", ".join(f"{method.text} ({len(method.seeds)} seeds)" for method in plan.methods)
    print(f"{methods}; {len(plan.cells)} cells on {_processes(plan.spec, workers)} -> {folder.path}", file=sys.stderr)
    done = execute(plan, folder, workers)
    cells = doc.cell_results(plan, done.rows)
    comparisons = doc.comparisons_of(plan, done.rows)
    doc.write_items(plan, folder, done.rows)
    doc.write_timing(plan, folder, done, workers)
    doc.write_tokenizers(plan, folder)
    write_json(folder.run_path, doc.run_document(plan, folder, done, cells, comparisons))
    missing = sum(plan.questions(key) - len(rows) for key, rows in done.rows.items())
    compared = None if missing or done.failures else _compared(plan, folder)
    if as_json:
        print_json({**doc.json_document(plan, cells, comparisons), **_compare_document(compared)})
    else:
        _print_report(plan, cells, done.rows, comparisons, compared)
        print(f"run folder: {folder.path} (run.json, items.parquet; {done.wall_seconds:.0f} s)")
    if done.failures:
        print(f"proteus-bench: {len(done.failures)} of {len(plan.cells)} cells failed", file=sys.stderr)
        return 1
    if missing:
        raise PartialRunError(f"{missing} questions are missing; repeat the command to resume")
    return 0


def _processes(spec: RunSpec, workers: int) -> str:
    where = "" if spec.executor == "local" else " of Ray"
    return f"{workers or 'as many'} processes{where}" + ("" if workers else " as the cluster holds")


def _compared(plan: Any, folder: Any) -> Any:
    """The comparison of all schedules, when more than the static twin was asked for: `compare` on the folder."""
    if not plan.spec.schedules or len(plan.methods) < 2:
        return None
    from proteus_bench.compare import compare_runs

    return compare_runs([folder.path], common=True)


def _compare_document(compared: Any) -> dict[str, Any]:
    if compared is None:
        return {}
    from proteus_bench.compare.export import document

    return {"compare": document(compared)}


def _print_report(plan: Any, cells: Any, rows: Any, comparisons: Any, compared: Any) -> None:
    from proteus_bench.registry import stored_capacity
    from proteus_bench.render.report import Shown, print_report, report_console
    from proteus_bench.runner.items import draws_of
    from proteus_bench.runner.results import method_score, suite_mean

    scores, shown = [], []
    for method in plan.methods:
        for task, length in plan.suite.counts:
            mine = {k: r for k, r in rows.items() if (k.model, k.task, k.length) == (method.text, task, length) and r}
            whole = {k: r for k, r in mine.items() if len(r) == plan.questions(k)}
            if whole:
                scores.append(method_score(method.text, task, length, whole))
        info = plan.infos[method.text, method.seeds[0]]
        capacity = stored_capacity(info.capacity)
        longest = max(length for _, length in plan.suite.counts)
        found = [r for key, r in rows.items() if key.model == method.text and key.length == longest]
        has_memory = info.state_bytes > 0 or not capacity.is_static  # Hope-Attention has no state of fixed size, but a schedule
        traces = [row["unlocks"] for part in found for row in part if "unlocks" in row]
        shown.append(Shown(method.text, capacity, info.train_length, info.state_bytes, info.n_params, traces, has_memory))
    running = [(k, c.perplexity) for k, c in cells.items() if c.perplexity is not None]
    scored = "strict match" if not running else "probability of a token" if len(running) == len(cells) else "strict score"
    title = f"{plan.suite.name} (version {plan.suite.version}), score = {scored} x 100"
    print_report(report_console(), title, scores, [] if compared else comparisons, shown, plan.notes)
    if compared is not None:
        from proteus_bench.compare import table

        table.print_report(report_console(), compared, notes=False)
    if running:
        from proteus_bench.runner.perplexity import perplexity_lines

        print("\n".join(perplexity_lines(running, named=len(running) < len(cells))))
    for method in plan.methods:
        mine = {k: r for k, r in rows.items() if k.model == method.text and len(r) == plan.questions(k)}
        if len({(k.task, k.length) for k in mine}) == len(plan.suite.counts) > 1:
            mean = suite_mean(mine, {task: draws_of(task) for task, _ in plan.suite.counts})
            bounds = "" if mean.lo is None or mean.hi is None else f" [{100 * mean.lo:.1f}, {100 * mean.hi:.1f}]"
            print(f"{method.text}: mean of the suite {100 * mean.mean:.1f}{bounds}")


def _print_plan(plan: Any, folder: Any, workers: int, as_json: bool) -> None:
    total = sum(map(plan.questions, plan.cells))
    tokens = sum(key.length * count for key, count in plan.cells.items())
    if as_json:
        where = {"out": str(folder.path), "workers": workers}
        print_json({**plan.document(), **where, "questions": total, "tokens": tokens})
        return
    for method in plan.methods:
        weights = f"weights {method.weights.trained}@{method.weights.size}, seeds {', '.join(map(str, method.seeds))}"
        print(f"{method.text}: {weights}; {method.weights.capacity.describe()}")
    for (task, length), count in plan.suite.counts.items():
        items = min(count, plan.spec.limit or count)
        print(f"{task} at {length}: {items} of {count} items")
    for note in plan.notes:
        print(f"note: {note}")
    print(f"{len(plan.cells)} cells, {total} questions, {tokens:,} tokens on {workers} processes -> {folder.path}")
