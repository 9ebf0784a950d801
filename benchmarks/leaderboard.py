"""How long a leaderboard takes: verifying 100 runs x 4,000 items (V0 to V2), and a page of 1,000 entries.

    python benchmarks/leaderboard.py [--runs 100] [--entries 1000] [--keep FOLDER]

Runs are made here: real items of the suite niah4k cut to 500 a task (8 tasks), and answers that are right by chance of a
made-up skill. Entries have made-up scores. Times are CPU seconds of one process.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from proteus_bench.leaderboard import Options, build_leaderboard, verify
from proteus_bench.leaderboard.entry import block_of, cell_interval, entry_id, overall_block
from proteus_bench.leaderboard.item_scores import parse_scores
from proteus_bench.leaderboard.items import Book
from proteus_bench.leaderboard.schema import ENTRY, EntryCell
from proteus_bench.runner.items import plan_suite
from proteus_bench.runner.results import cell_result
from proteus_bench.schedules import Capacity, Uniform
from proteus_bench.score import SCORER_ID, SCORER_VERSION, score_answer
from proteus_bench.site import board_page
from proteus_bench.store import CellKey, RunFolder, canonical_json, digest, write_json
from proteus_bench.store.log import _line
from proteus_bench.store.run_file import SCHEMA, run_id_of

TASKS = (
    "niah.single_1", "niah.single_2", "niah.single_3", "niah.multikey_1", "niah.multiquery", "niah.multivalue",
    "niah.multikey_2", "niah.multikey_3",
)  # fmt: skip
LENGTH = 1024


def suite_file(folder: Path, items: int, length: int = LENGTH, tasks: tuple[str, ...] = TASKS) -> Path:
    """A suite of its own: the frozen ones have 100 items a task."""
    path = folder / "bench.toml"
    names = ", ".join(f'"{task}"' for task in tasks)
    path.write_text(
        f'id = "bench"\nversion = "1"\ndescription = "for the benchmark"\ndata_seed = 0\nsplit = "test"\nlength = {length}\n'
        f"n = {items}\ntasks = [{names}]\n"
    )
    return path


def make_run(folder: Path, suite: Path, label: str, skill: float, weights: str, book: Book, seeds: int = 1) -> Path:
    """A run folder of one method whose answers are right with probability ``skill``: everything in it adds up."""
    plan = plan_suite(str(suite))
    tokenizer = _tokenizer(book)
    capacity = _capacity("+" not in label)
    records = []
    for seed in range(seeds):
        identity = {
            "suite": plan.block(), "scorer": {"id": SCORER_ID, "version": SCORER_VERSION}, "model": label.partition("+")[0],
            "schedule": label.partition("+")[2] or "static", "size": "micro", "seed": seed, "trained_schedule": "proteus",
            "checkpoint_sha256": digest([label, seed, weights]), "config_sha256": _sha({}),
            "tokenizer_sha256": tokenizer.fingerprint, "capacity": capacity, "dtype": "float32", "device": "cpu",
            "backend": "local", "batch_tokens": 4096, "items": [[t, n, c] for (t, n), c in plan.counts.items()],
        }  # fmt: skip
        cells = [_cell(folder, label, seed, task, length, count, skill, weights, plan, tokenizer, book)
                 for (task, length), count in plan.counts.items()]  # fmt: skip
        records.append(
            {
                "record_id": digest(identity), "identity": identity, "model": identity["model"],
                "schedule": identity["schedule"], "label": label, "seed": seed, "status": "complete", "backend": "local",
                "trained_schedule": "proteus", "n_params": 759052, "state_bytes": 205824, "train_length": 8192,
                "capacity": capacity, "config": {}, "recipe": {}, "cells": cells,
            }
        )  # fmt: skip
    write_json(
        folder / "run.json",
        {
            "schema": SCHEMA, "run_id": run_id_of([r["record_id"] for r in records]), "status": "complete", "spec": {},
            "suite": plan.block(), "scorer": {"id": SCORER_ID, "version": SCORER_VERSION}, "notes": [],
            "records": records, "comparisons": [], "environment": {"proteus_bench": "0"},
        },
    )  # fmt: skip
    return folder


def _capacity(static: bool) -> dict[str, Any]:
    held = Capacity.static("value", 8192) if static else Capacity(schedule=Uniform(blocks=16, span=8192), axis="value")
    return held.as_dict()


def _sha(value: Any) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _tokenizer(book: Book) -> Any:
    from proteus_bench.leaderboard.items import zoo_tokenizers
    from proteus_tasks.tokenizers import FileTokenizer

    return book.tokenizer(FileTokenizer.from_path(zoo_tokenizers()[0]).fingerprint)


def _cell(
    folder: Path, label: str, seed: int, task: str, length: int, count: int, skill: float, weights: str, plan: Any,
    tokenizer: Any, book: Book,
) -> dict[str, Any]:  # fmt: skip
    rng = np.random.Generator(np.random.PCG64(int(digest([label, seed, task, length, weights])[:15], 16)))
    rows = []
    for index, facts in enumerate(book.facts(plan, tokenizer, task, length, count)):
        for slot, question in enumerate(facts.scored.questions):
            right = rng.random() < skill
            ids = tokenizer.encode(" " + ", ".join(question.golds) if right else " 1")[: question.max_new_tokens]
            output, logprob = tokenizer.decode(ids), -float(rng.exponential(1 if right else 9)) - 0.01
            scores = score_answer(facts.scored, slot, output, logprob=logprob, gold_tokens=facts.gold_tokens[slot])
            rows.append(
                {
                    "index": index, "question": slot, "item": facts.id, "item_sha256": facts.sha256,
                    "prompt_sha256": facts.prompts[slot], "context_tokens": length - 40, "reached": facts.reached,
                    "depths": list(facts.needles), "golds": list(question.golds), "output": output, "output_ids": list(ids),
                    "gold_tokens": facts.gold_tokens[slot], "logprob": logprob, "strict": scores.strict,
                    "compat": scores.compat,
                }
            )  # fmt: skip
    key = CellKey(label, task, length, seed)
    path = RunFolder(folder).cell_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(_line, rows)))
    result = cell_result(key, rows, complete=True)
    return {
        "task": task, "length": length, "status": result.status, "n": result.n, "rows": result.rows,
        "score": result.interval.mean, "ci_low": result.interval.lo, "ci_high": result.interval.hi,
        "ci_method": result.interval.method, "compat": result.compat, "logprob": result.logprob, "error": None,
        "items_sha256": result.items_sha256, "file": str(path.relative_to(folder)),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip


SCHEDULES = ("static", "proteus", "stretched(factor=2)", "geometric", "late", "bottleneck", "proteus(blocks=4)")
BACKBONES = ("titans", "gdn", "comba", "swla", "retnet", "deltanet", "titans-mlp", "titans-mac")


def made_entry(number: int, length: int, items: int = 100, seeds: int = 3) -> dict[str, Any]:
    """An entry with made-up scores that adds up."""
    rng = np.random.Generator(np.random.PCG64(number))
    backbone, schedule = BACKBONES[number // len(SCHEDULES) % len(BACKBONES)], SCHEDULES[number % len(SCHEDULES)]
    label = backbone if schedule == "static" else f"{backbone}+{schedule}"
    skill = 0.25 + 0.5 * ((number * 0.61803) % 1) - 0.06 * np.log2(length / 4096)
    suite = {"name": f"made{length // 1024}k", "version": "1", "sha256": digest(["made", length])}
    records = [
        {
            "seed": s, "record_id": digest([number, length, s]), "run_id": digest([number // len(SCHEDULES), length]),
            "checkpoint_sha256": digest([number, s]), "predictions_sha256": digest([number, length, s, "p"]), "status": "complete",
        }
        for s in range(seeds)
    ]  # fmt: skip
    identity = {"suite": suite, "records": sorted(r["record_id"] for r in records)}
    level = rng.normal(0, 0.05, (seeds, 1))
    cells = []
    for k, task in enumerate(TASKS):
        p = np.clip(skill + level + 0.3 * np.cos(k) + rng.normal(0, 0.1, (1, items)), 0, 1)
        scores = [" ".join(f"{v:g}" for v in row) for row in (rng.random((seeds, items)) < p).astype(float)]
        depths = [{"part": part, "score": round(float(np.clip(skill + part / 20, 0, 1)), 3), "n": 30} for part in range(10)]
        cells.append(
            {
                **block_of(cell_interval(parse_scores(scores)), [parse_scores(scores)]), "task": task, "length": length,
                "logprob": round(-9 * (1 - skill), 4), "items_sha256": digest([task, length]), "depths": depths, "scores": scores,
            }
        )  # fmt: skip
    static = schedule == "static"
    capacity = _capacity(static)
    opening = [1.0] * 32 if static else [round(min(1.0, (i + 1) * length / 8192 / 32), 3) for i in range(32)]
    return {
        "schema": ENTRY, "id": entry_id(identity), "identity": identity, "label": label, "model": backbone,
        "schedule": schedule, "size": "micro", "suite": suite, "scorer": {"id": SCORER_ID, "version": SCORER_VERSION},
        "tokenizer_sha256": "0" * 64, "seeds": list(range(seeds)), "tier": "V2", "ranked": True, "reason": "",
        "n_params": 759052 + 1000 * (number % 50), "state_bytes": 205824, "train_length": 8192,
        "trained_schedule": schedule.partition("(")[0], "capacity": capacity, "active": round(float(np.mean(opening)), 4),
        "opening": opening, "records": records,
        "statement": {"submitter": None, "link": None, "note": None, "configs_tried": 1 + number % 9},
        "cost": {"seconds_per_item": round(0.3 * length / 4096 + 0.01 * (number % 13), 3), "tokens_per_second": 13000.0},
        "overall": overall_block([EntryCell.model_validate(cell) for cell in cells]), "cells": cells,
    }  # fmt: skip


def write_entries(folder: Path, count: int, lengths: tuple[int, ...] = (4096,)) -> None:
    """``count`` entries a length."""
    (folder / "entries").mkdir(parents=True, exist_ok=True)
    for length in lengths:
        for number in range(count):
            entry = made_entry(number, length)
            write_json(folder / "entries" / f"{entry['id']}.json", entry)


def main() -> None:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--items", type=int, default=500, help="items a task, 8 tasks")
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="write the made leaderboard here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        if args.entries:
            board(folder / "board", args.entries)
        if args.runs:
            runs(Path(name), args.runs, args.items)


def board(folder: Path, count: int) -> None:
    """Time the build and the page."""
    write_entries(folder, count)
    begun = time.process_time()
    built = build_leaderboard(folder)
    middle = time.process_time()
    page = board_page(built.board)
    end = time.process_time()
    (folder / "index.html").write_text(page, encoding="utf-8")
    print(f"{count} entries: read, checked, all pairs tested, leaderboard.json written in {middle - begun:.2f} s")
    print(f"{count} entries: page in {end - middle:.2f} s, {len(page.encode()) / 1e6:.2f} MB")


def runs(folder: Path, count: int, items: int) -> None:
    """Time V0 to V2 of many runs, items made once by the verifier as well."""
    suite, book = suite_file(folder, items), Book()
    made = [make_run(folder / f"run{i}", suite, "titans+proteus", 0.3 + 0.4 * i / count, str(i), book) for i in range(count)]
    fresh = Book((suite,))
    options = Options(level=2, suites=(suite,))
    begun, rows = time.process_time(), 0
    for run in made:
        found = verify(run, options, fresh)
        assert found.ok, found.refused
        rows += found.rows
    print(f"{count} runs x {8 * items} items ({rows} rows): V0 to V2 in {time.process_time() - begun:.1f} s")


if __name__ == "__main__":
    main()
