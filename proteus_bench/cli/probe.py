"""`probe NAME`: the run of the probe's suite, the state side beside it, probe.json and a report with plots."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from proteus_bench.cli.output import print_json, print_table
from proteus_bench.errors import PartialRunError, UsageError
from proteus_bench.spec import RunSpec

DOCUMENT, REPORT = "probe.json", "report.html"


def probe_command(
    name: str, spec: RunSpec, *, length: int | None, contexts: int, dry_run: bool, as_json: bool
) -> int:
    """0 when everything is there, 1 when cells failed. ``spec.suite`` is the probe's name. contexts 0: no state side."""
    from proteus_bench.cli.run import OUT_ROOT, _print_plan
    from proteus_bench.probes.suite import check_probe
    from proteus_bench.runner.plan import make_plan
    from proteus_bench.store import FolderLock, RunFolder

    check_probe(name)
    if spec.out is not None and not dry_run:
        RunFolder(Path(spec.out)).prepare()
    print(f"preparing probe {name} of {spec.model}", file=sys.stderr)
    gates, notes = None, []
    if name == "gating":
        from proteus_bench.probes.gating import gating

        compared = gating(spec)
        spec, gates, notes = compared.spec, compared.comparison, list(compared.notes)
    if length is not None:
        spec, left = _at_length(name, spec, length, Path(spec.out or OUT_ROOT))
        notes += [f"{task} does not fit into {length} tokens and is left out" for task in left]
    plan = make_plan(spec)
    plan = _with_notes(plan, notes)
    folder = RunFolder(Path(spec.out) if spec.out is not None else Path(OUT_ROOT) / plan.default_folder())
    workers = spec.workers or plan.default_workers()
    if dry_run:
        _print_plan(plan, folder, workers, as_json)
        return 0
    folder.prepare()
    with FolderLock(folder.path):
        folder.claim(plan.document())
        return _run(name, plan, folder, workers, contexts, gates, as_json)


def _at_length(name: str, spec: RunSpec, length: int, folder: Path) -> tuple[RunSpec, list[str]]:
    from proteus_bench.backends import opened
    from proteus_bench.probes.suite import suite_at
    from proteus_bench.runner.models import methods_of

    if length < 128:
        raise UsageError(f"--length must be at least 128, not {length}")
    method = methods_of(spec)[0][0]
    tokenizer = opened(method.spec, method.seeds[0], spec.settings()).tokenizer
    path, left = suite_at(name, length, tokenizer, folder / "suites")
    return spec.model_copy(update={"suite": path}), left


def _with_notes(plan: Any, notes: list[str]) -> Any:
    import dataclasses

    return dataclasses.replace(plan, notes=(*notes, *plan.notes))


def _run(name: str, plan: Any, folder: Any, workers: int, contexts: int, gates: Any, as_json: bool) -> int:
    from proteus_bench.probes.document import probe_document
    from proteus_bench.probes.jobs import States, run_all, state_jobs
    from proteus_bench.probes.report import render_report
    from proteus_bench.probes.text import records
    from proteus_bench.runner import document as doc
    from proteus_bench.runner.execute import execute
    from proteus_bench.store import write_bytes, write_json

    done = execute(plan, folder, workers)
    cells, comparisons = doc.cell_results(plan, done.rows), doc.comparisons_of(plan, done.rows)
    doc.write_items(plan, folder, done.rows)
    doc.write_timing(plan, folder, done, workers)
    doc.write_tokenizers(plan, folder)
    run = doc.run_document(plan, folder, done, cells, comparisons)
    write_json(folder.run_path, run)
    states = States({}, {})
    if contexts:
        (folder.path / "state").mkdir(exist_ok=True)
        states = run_all(state_jobs(name, plan, folder.path, contexts), workers)
    whole = {key: rows for key, rows in done.rows.items() if len(rows) == plan.questions(key)}
    found = records(whole, _item_maker(plan))
    document = probe_document(name, plan, run["run_id"], found, states, gates)
    write_json(folder.path / DOCUMENT, document)
    write_bytes(folder.path / REPORT, render_report(document).encode("utf-8"))
    if as_json:
        print_json({key: value for key, value in document.items() if key != "courses"})
    else:
        _show(document)
        print(f"run folder: {folder.path} ({DOCUMENT}, {REPORT}, run.json, items.parquet)")
    if done.failures or states.defects:
        print(f"proteus-bench: {len(done.failures)} of {len(plan.cells)} cells failed", file=sys.stderr)
        return 1
    missing = sum(plan.questions(key) - len(rows) for key, rows in done.rows.items())
    if missing:
        raise PartialRunError(f"{missing} questions are missing; repeat the command to resume")
    return 0


def _item_maker(plan: Any) -> Any:
    """Makes an item again, with the tokenizer of the model that answered it."""
    from proteus_bench.backends import opened
    from proteus_bench.runner.items import make_item

    by_method = {method.text: method for method in plan.methods}
    tokenizers: dict[str, Any] = {}

    def make(key: Any, index: int) -> Any:
        if key.model not in tokenizers:
            tokenizers[key.model] = opened(by_method[key.model].spec, key.seed, plan.spec.settings()).tokenizer
        return make_item(plan.suite, key.task, key.length, tokenizers[key.model], index)

    return make


def _show(document: dict[str, Any]) -> None:
    rows = document["measures"]
    recall = [row for row in rows if row["measure"] == "recall"]
    table = [
        (row["task"], row["role"], row["model"], *_numbers(row, 100), _nats(rows, row)) for row in recall
    ]
    columns = ("task", "facts", "model", "recall", "95% interval", "gold log-prob")
    print_table(f"probe {document['probe']}: strict recall x 100", columns, table, right=(3, 4, 5))
    if document["overload"]:
        falls = [(p["model"], f"{100 * p['level']:.0f}%", p["text"]) for p in document["overload"]]
        print_table("pairs at which recall falls below a level", ("model", "level", "pairs [95% interval]"), falls)
    if document["gates"]:
        gates = [
            (f"{d['a']} / {d['b']}", _error(d["fresh"]), _error(d["carried"])) for d in document["gates"]["differences"]
        ]
        print_table("gates: largest difference of logits", ("gates", "from the start", "from a used state"), gates, (1, 2))
    for sentence in document["sentences"]:
        print(sentence)
    state = [row for row in rows if row["measure"] in _STATE_WORDS]
    if state:
        lines = [(_STATE_WORDS[row["measure"]], row["model"], row["layer"], *_numbers(row, 1, 3)) for row in state]
        print_table("memory", ("measure", "model", "layer", "value", "95% interval"), lines, (2, 3, 4))
    for note in document["notes"]:
        print(f"note: {note}")


_STATE_WORDS = {
    "early_share": "share of the first quarter of the text in the final memory",
    "state_retroactive": "trace of A lost to B's facts beyond what prose erases",
    "state_proactive": "strength of B's writing lost to A's facts",
    "keys_error_joint": "read-out error of A's keys after B",
    "keys_error_alone": "read-out error of A's keys after prose",
    "keys_overlap": "squared cosine of A's and B's keys",
    "keys_overlap_prose": "squared cosine of A's keys and prose",
}


def _numbers(row: dict[str, Any], scale: float, digits: int = 1) -> tuple[str, str]:
    lo, hi = row["ci_low"], row["ci_high"]
    span = "no interval" if lo is None or hi is None else f"[{scale * lo:.{digits}f}, {scale * hi:.{digits}f}]"
    return f"{scale * row['value']:.{digits}f}", span


def _nats(rows: list[dict[str, Any]], recall: dict[str, Any]) -> str:
    place = ("model", "task", "role")
    same = [r for r in rows if r["measure"] == "logprob" and all(r[key] == recall[key] for key in place)]
    return f"{same[0]['value']:.2f}" if same else "not finite"


def _error(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"
