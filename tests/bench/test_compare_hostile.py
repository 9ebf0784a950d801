"""A run folder is a stranger's until it is checked: truncated, edited, duplicated and mismatched ones get one line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from proteus_bench.compare import compare_runs
from proteus_bench.compare.load import load_runs
from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.schedules import Capacity, Uniform
from proteus_bench.stats import PairingError
from proteus_bench.store import digest
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.log import _line
from proteus_bench.store.run_file import run_id_of

PLACE = ("t.one", 4096)
UNIFORM = Capacity(schedule=Uniform(blocks=16, span=4096), axis="value")


def scores(seeds=3, items=6, flip=0):
    return {PLACE: np.array([[float((s + i + flip) % 2) for i in range(items)] for s in range(seeds)])}


def static(**more):
    return {"label": "titans", "scores": scores(), **more}


def scheduled(**more):
    return {"label": "titans+proteus", "scores": scores(flip=1), "capacity": UNIFORM, **more}


def one_line(done, code, *parts):
    lines = done.stderr.splitlines()
    assert done.returncode == code and len(lines) == 1 and done.stdout == "", done
    assert lines[0].startswith("proteus-bench: ") and all(part in lines[0] for part in parts), lines[0]
    assert lines[0].isprintable()


def reseal(folder: Path, change) -> None:
    """Change run.json and make its addresses right again, as a cheat would."""
    run = json.loads((folder / "run.json").read_text())
    change(run)
    for record in run["records"]:
        record["record_id"] = digest(record["identity"])
    run["run_id"] = run_id_of([record["record_id"] for record in run["records"]])
    (folder / "run.json").write_text(json.dumps(run))


def rewrite(folder: Path, change, seed: int = 0) -> None:
    """Change the rows of one log, with good checksums and a good hash in run.json."""
    run = json.loads((folder / "run.json").read_text())
    cell = run["records"][seed]["cells"][0]
    path = folder / cell["file"]
    rows = [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]
    changed = change(rows)
    path.write_bytes(b"".join(_line(row) for row in (rows if changed is None else changed)))
    cell["sha256"] = file_digest(path)
    cell["rows"] = len(rows if changed is None else changed)
    (folder / "run.json").write_text(json.dumps(run))


@pytest.fixture
def folder(make_run):
    return make_run("run", static(), scheduled())


def first_log(folder: Path) -> Path:
    return folder / json.loads((folder / "run.json").read_text())["records"][0]["cells"][0]["file"]


def test_a_run_that_did_not_end_and_a_folder_that_is_none(cli, folder, tmp_path):
    (folder / "run.json").unlink()
    one_line(cli("compare", str(folder)), 3, "run.json does not exist")
    one_line(cli("compare", str(tmp_path / "nowhere")), 3, "run.json does not exist")
    (folder / "run.json").write_text("{")
    one_line(cli("compare", str(folder)), 3, "not valid JSON")
    (folder / "run.json").write_text('{"a": 1, "a": NaN}')
    one_line(cli("compare", str(folder)), 3, "JSON")


def test_truncated_and_changed_logs_are_refused(cli, folder):
    log = first_log(folder)
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    one_line(cli("compare", str(folder)), 3, "titans seed 0, t.one at 4096", "does not match its sha256")
    log.write_bytes(whole[: whole.index(b"\n") + 1])
    one_line(cli("compare", str(folder)), 3, "sha256")
    log.unlink()
    one_line(cli("compare", str(folder)), 3, "no file of the run folder")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "an item is missing"),
        (lambda rows: [*rows, rows[0]], "a question stands twice"),
        (lambda rows: [{**rows[0], "strict": 1.5}, *rows[1:]], "not a number between 0 and 1"),
        (lambda rows: [{**rows[0], "strict": True}, *rows[1:]], "not a number between 0 and 1"),
        (lambda rows: [{**rows[0], "strict": 1.0}, *rows[1:]], "not the mean of its rows"),
        (lambda rows: [{**rows[0], "logprob": "x"}, *rows[1:]], "log-probability is not a number"),
        (lambda rows: [{k: v for k, v in rows[0].items() if k != "item"}, *rows[1:]], "does not name its item"),
        (lambda rows: [{**rows[0], "item": ["a"]}, *rows[1:]], "does not name its item"),
    ],
)
def test_rows_that_were_edited_are_refused(cli, folder, change, message):
    rewrite(folder, change)
    one_line(cli("compare", str(folder)), 3, "titans seed 0", message)


@pytest.mark.parametrize("file", ["../outside.jsonl", "/etc/passwd", "cells", "link.jsonl"])
def test_no_file_outside_of_the_folder_is_read(cli, folder, tmp_path, file):
    log = first_log(folder)
    (tmp_path / "outside.jsonl").write_bytes(log.read_bytes())
    (folder / "link.jsonl").symlink_to(log)

    def change(run):
        run["records"][0]["cells"][0]["file"] = file

    reseal(folder, change)
    one_line(cli("compare", str(folder)), 3, "no file of the run folder")


def _escape(run):
    run["records"][0]["label"] = "titans\u001b[31m"


def _bidi(run):
    run["records"][0]["cells"][0]["task"] = "t\u202eone"


def _other_seed(run):
    run["records"][0]["identity"]["seed"] = 7


def _other_capacity(run):
    run["records"][0]["capacity"]["axis"] = "key"


def _twice(run):
    run["records"][1] = run["records"][0]


def _cell_twice(run):
    run["records"][0]["cells"].append(run["records"][0]["cells"][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_escape, "cannot be printed"),
        (_bidi, "cannot be printed"),
        (_other_seed, "of another seed"),
        (_other_capacity, "of another capacity"),
        (_twice, "stands twice"),
        (_cell_twice, "stands twice"),
    ],
)
def test_records_that_were_edited_are_refused(cli, folder, change, message):
    reseal(folder, change)
    one_line(cli("compare", str(folder)), 3, message)


def test_an_id_that_was_not_recomputed_is_refused(cli, folder):
    run = json.loads((folder / "run.json").read_text())
    run["records"][0]["identity"]["dtype"] = "float16"
    (folder / "run.json").write_text(json.dumps(run))
    one_line(cli("compare", str(folder)), 3, "not its identity's hash")


def test_huge_lengths_cost_nothing(make_run):
    place = ("t.one", 10**15)
    far = {place: scores()[PLACE]}
    report = compare_runs([make_run("run", static(scores=far), scheduled(scores=far))])
    assert "100.0%" in report.suites[0].capacity[0]


def test_unfinished_cells_are_named_and_left_out_only_on_demand(cli, make_run):
    two = {("t.one", 4096): scores()[PLACE], ("t.two", 4096): scores()[PLACE]}
    folder = make_run("run", static(scores=two), scheduled(scores=two))

    def change(run):
        run["records"][3]["cells"][1].update(status="failed", score=None, n=0, rows=0)

    reseal(folder, change)
    one_line(cli("compare", str(folder)), 3, "t.two at 4096 of titans+proteus seed 0 is failed", "--common")
    done = cli("compare", str(folder), "--common", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["comparisons"][0]["n_seeds"] == 2
    assert any("is failed" in note for note in document["notes"]["made4k"])


def test_other_suites_versions_and_scorers_cannot_be_paired(cli, make_run):
    base = make_run("base", static())
    for name, settings, words in (
        ("suite", {"suite": "made8k"}, ("made4k", "made8k", "different suites cannot be paired")),
        ("version", {"version": "2"}, ("cannot be paired: versions 1 and 2 of suite made4k",)),
        ("scorer", {"scorer": "2"}, ("cannot be paired: versions 1 and 2 of scorer strict",)),
    ):
        other = make_run(name, scheduled(), **settings)
        one_line(cli("compare", str(base), str(other)), 3, *words)


def test_other_items_under_one_name_are_never_paired(make_run):
    other = make_run("other", scheduled(text="another tokenizer"))
    with pytest.raises(PairingError, match="other item hash") as caught:
        compare_runs([make_run("base", static()), other], common=True)
    assert caught.value.exit_code == 3


def test_nothing_in_common_is_refused_in_each_direction(make_run):
    base = make_run("base", static())
    late = make_run("late", scheduled(seeds=(7, 8, 9)))
    with pytest.raises(PairingError, match="share no seed"):
        compare_runs([base, late], common=True)
    with pytest.raises(PairingError, match="seeds 7, 8, 9 are there for titans\\+proteus only"):
        compare_runs([base, late])
    elsewhere = make_run("task", scheduled(scores={("t.nine", 4096): scores()[PLACE]}))
    with pytest.raises(PairingError, match="share no task"):
        compare_runs([base, elsewhere], common=True)
    fewer = make_run("fewer", scheduled(scores=scores(items=4)))
    with pytest.raises(PairingError, match="6 items for titans, 4 of them for both"):
        compare_runs([base, fewer])
    assert compare_runs([base, fewer], common=True).suites[0].lines[0].verdict.items == 4


def test_one_method_is_nothing_to_compare(make_run):
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_runs([make_run("base", static())])


def test_two_results_of_one_measurement_are_refused(make_run):
    first, second = make_run("a", static(), scheduled()), make_run("b", static(scores=scores(flip=1)))
    with pytest.raises(InvalidFileError, match="different results of one measurement"):
        load_runs([first, second])


def test_a_comparison_needs_no_torch(folder, environment):
    code = (
        "import sys; from proteus_bench.cli import invoke\n"
        f"code = invoke(['compare', {str(folder)!r}, '--json'])\n"
        "sys.exit(code or 10 * bool({'torch', 'transformers', 'statsmodels'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(None), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "proteus-bench/compare@1"
