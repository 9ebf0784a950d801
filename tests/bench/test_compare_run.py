"""Real runs of the tiny zoo: `run --schedules` ends in a comparison, `compare` repeats it, `plan` reads its variances."""

import json

import pytest

from proteus_bench.store import read_log

SCHEDULES = "uniform,stretched(factor=2),proteus(gate=write),surprise(tau=0.1)"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the one run of this file lies, with what it printed (empty until it was made)."""
    return {"folder": tmp_path_factory.mktemp("ran") / "run"}


@pytest.fixture
def ran(cli, tiny_suite, place):
    """A run with schedules: its folder, its JSON document, and what the repeated command shows."""
    if "shown" not in place:
        args = ("run", "--model", "titans+proteus", "--suite", tiny_suite, "--schedules", SCHEDULES, "--limit", "2")
        args += ("--workers", "1", "--out", str(place["folder"]))
        first, again = cli(*args, "--json"), cli(*args)
        assert first.returncode == 0 and again.returncode == 0, first.stderr + again.stderr
        place.update(document=json.loads(first.stdout), shown=again.stdout)
    return place["folder"], place["document"], place["shown"]


def test_a_run_with_schedules_ends_in_a_comparison_that_compare_repeats(cli, ran):
    folder, document, shown = ran
    assert set(document) == {"cells", "comparisons", "compare"}
    found = document["compare"]
    names = ["titans", "titans+proteus", "titans+stretched(factor=2)", "titans+surprise(tau=0.1)"]
    assert [m["method"] for m in found["methods"]] == names
    lent = {m["schedule"]: (m["own_weights"], m["weights"]) for m in found["methods"]}
    assert lent == {
        "static": (True, "titans"),
        "proteus": (True, "titans+proteus"),
        "stretched(factor=2)": (False, "titans+proteus"),
        "surprise(tau=0.1)": (False, "titans+proteus"),
    }
    assert {c["family"] for c in found["comparisons"]} == {"against static", "against uniform"}
    again = json.loads(cli("compare", str(folder), "--json").stdout)
    assert again["comparisons"] == found["comparisons"]
    same = [note for notes in again["notes"].values() for note in notes if "is the same function as" in note]
    assert len(same) == 2 and any("titans+uniform" in n for n in same) and any("gate=write" in n for n in same)
    for part in ("against static", "against uniform (proteus)", "weights of", "budgets differ", "memory open along"):
        assert part in shown, part
    assert shown.count("is the same function as titans+proteus") == 2


def test_the_budget_of_a_schedule_that_reads_the_data_is_measured(ran):
    folder, document, _ = ran
    (surprise,) = [m for m in document["compare"]["methods"] if m["schedule"].startswith("surprise")]
    run = json.loads((folder / "run.json").read_text())
    shares = []
    for record in run["records"]:
        for cell in record["cells"] if record["schedule"].startswith("surprise") else ():
            rows = {row["item"]: row["unlocks"] for row in read_log(folder / cell["file"])}
            shares += [(512 + sum(513 - t for t in times if t <= 512)) / (16 * 512) for times in rows.values()]
    assert surprise["active_fraction"]["512"] == pytest.approx(sum(shares) / len(shares))
    assert 0 < surprise["active_fraction_span"] < 0.54  # its own cap over the span of 256


def test_the_comparison_of_a_run_is_that_of_its_own_record(ran):
    folder, document, _ = ran
    run = json.loads((folder / "run.json").read_text())
    old = {(c["a"], c["b"], c["task"]): c["diff"] for c in run["comparisons"]}
    new = {(c["a"], c["b"], c["task"]): c["diff"] for c in document["compare"]["comparisons"]}
    shared = old.keys() & new.keys()
    assert len(shared) >= 6 and all(old[key] == pytest.approx(new[key], abs=1e-12) for key in shared)


def test_runs_of_two_backbones_are_compared_in_two_folders(cli, tiny_suite, tmp_path):
    for model in ("titans", "gdn"):
        args = ("--suite", tiny_suite, "--limit", "2", "--workers", "1", "--no-twin", "--out", model)
        assert cli("run", "--model", model, *args).returncode == 0
    done = cli("compare", "titans", "gdn", "--json")
    assert done.returncode == 0, done.stderr
    (line, *_) = json.loads(done.stdout)["comparisons"]
    assert (line["a"], line["b"], line["family"]) == ("gdn", "titans", "against titans")
    assert line["equal_capacity"] is False  # other sizes are said
    assert cli("compare", "gdn").returncode == 2


def test_a_plan_from_a_pilot_and_from_given_deviations(cli, ran):
    folder, _, _ = ran
    done = cli("plan", str(folder), "--difference", "5", "--json")
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)["plans"]
    assert len(plans) == 5 and all(p["pilot_seeds"] == 2 and p["tasks"] == 2 for p in plans)
    deviations = ("--seed-sd", "3", "--item-sd", "30", "--residual-sd", "40")
    given = cli("plan", *deviations, "--seeds", "8", "--items", "500", "--difference", "6")
    assert given.returncode == 0 and "8 seeds" in given.stdout and "500 items" in given.stdout
    assert "6 points with 8 seeds: " in given.stdout
    pair = ("--a", "titans+proteus", "--b", "titans")
    assert "titans+proteus - titans: differences in points" in cli("plan", str(folder), *pair).stdout


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--seed-sd", "-1"),
        ("--item-sd", "30", "--seeds", "x"),
        ("--item-sd", "30", "--seeds", "1"),
        ("--item-sd", "30", "--items", "99999999999"),
        ("--item-sd", "30", "--power", "2"),
        ("--item-sd", "30", "--difference", "0"),
        ("run", "--item-sd", "30"),
    ],
)
def test_a_plan_without_sense_is_a_usage_error(cli, args):
    done = cli("plan", *args)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and done.stdout == "", done


def test_a_pilot_of_one_item_is_refused(cli, tiny_suite):
    args = ("--suite", tiny_suite, "--limit", "1", "--workers", "1", "--out", "one")
    assert cli("run", "--model", "titans+proteus", *args).returncode == 0
    done = cli("plan", "one")
    assert done.returncode == 2 and "two items" in done.stderr
    assert cli("compare", "one").returncode == 0
