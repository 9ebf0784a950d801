"""`compare`: exact pairs, corrected verdicts, equal capacity said, one function shown once, gates, and its documents."""

import csv
import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus_bench.compare import compare_runs
from proteus_bench.compare.analyse import words
from proteus_bench.compare.export import document, to_csv, to_markdown
from proteus_bench.compare.gates import parse_gate
from proteus_bench.errors import UsageError
from proteus_bench.schedules import Bottleneck, Capacity, Random, Stretched, Uniform
from proteus_bench.stats import PairingError

SPAN = 4096
PLACES = [("t.one", SPAN), ("t.two", SPAN)]


def capacity(schedule=Uniform, **settings):
    own = {key: settings.pop(key) for key in ("few", "until", "factor", "seed") if key in settings}
    return Capacity(schedule=schedule(blocks=16, span=SPAN, **own), axis="value", **settings)


def scores(rate, seeds=3, items=20, stream=0, places=PLACES):
    """Binary scores that share the difficulty of items: a higher rate solves a superset."""
    rng = np.random.default_rng([stream, items])
    hard = {place: rng.random(items) for place in places}
    noise = np.random.default_rng([stream, int(rate * 1e6)])
    return {p: (hard[p][None, :] + 0.1 * noise.random((seeds, items)) < rate).astype(float) for p in places}


def static(rate=0.9, **more):
    return {"label": "titans", "scores": scores(rate, **more)}


def uniform(rate=0.5, **more):
    return {"label": "titans+proteus", "scores": scores(rate, **more), "capacity": capacity()}


def stretched(rate=0.48, trained="proteus", **more):
    made = {"label": "titans+stretched(factor=2)", "scores": scores(rate, **more)}
    return {**made, "capacity": capacity(Stretched, factor=2.0), "trained": trained}


def heads(report):
    return {(x.family, x.verdict.a, x.verdict.b): x for s in report.suites for x in s.lines if x.headline}


def test_schedules_are_compared_with_static_and_with_uniform(make_run):
    report = compare_runs([make_run("r", uniform(), stretched(), static())])
    lines = heads(report)
    assert set(lines) == {
        ("against static", "titans+proteus", "titans"),
        ("against static", "titans+stretched(factor=2)", "titans"),
        ("against uniform", "titans+stretched(factor=2)", "titans+proteus"),
    }
    assert lines["against static", "titans+proteus", "titans"].outcome == "worse"
    assert lines["against uniform", "titans+stretched(factor=2)", "titans+proteus"].outcome == "not_separable"
    assert [m.candidate.name for m in report.suites[0].methods][:2] == ["titans", "titans+proteus"]
    rest = [x for x in report.suites[0].lines if not x.headline]
    assert len(rest) == 6 and {x.correction for x in rest} == {"bh"} and {x.task for x in rest} == {"t.one", "t.two"}


def test_the_difference_is_that_of_the_paired_scores(make_run):
    a, b = uniform(), static()
    line = heads(compare_runs([make_run("r", a, b)]))["against static", "titans+proteus", "titans"]
    expected = np.mean([(a["scores"][p] - b["scores"][p]).mean() for p in PLACES])
    assert line.verdict.primary.mean == pytest.approx(expected) and line.verdict.seeds == 3 and line.verdict.items == 40
    # nats: the rows say score + seed + index, so that the paired difference is that of the scores
    assert line.logprob.mean == pytest.approx(expected)


def test_runs_of_several_folders_are_paired_and_their_seeds_put_together(make_run):
    whole = compare_runs([make_run("r", uniform(), static())])
    rows = scores(0.9)
    one = make_run("one", {"label": "titans", "scores": {p: rows[p][:2] for p in PLACES}, "seeds": (0, 1)})
    two = make_run("two", {"label": "titans", "scores": {p: rows[p][2:] for p in PLACES}, "seeds": (2,)}, uniform())
    split = compare_runs([one, two, two])
    key = ("against static", "titans+proteus", "titans")
    assert heads(split)[key].verdict == heads(whole)[key].verdict
    assert any("given twice" in note for note in split.suites[0].notes)


def test_the_same_results_in_two_folders_change_nothing(make_run):
    first, copy = make_run("a", uniform(), static()), make_run("b", uniform(), static())
    assert heads(compare_runs([first])).keys() == heads(compare_runs([first, copy])).keys()
    assert document(compare_runs([first]))["comparisons"] == document(compare_runs([first, copy]))["comparisons"]


def test_other_weights_under_one_name_are_another_method(make_run):
    old, new = make_run("old", static(0.5)), make_run("new", static(0.9) | {"weights": "again"})
    report = compare_runs([old, new])
    assert [m.candidate.name for m in report.suites[0].methods] == ["titans [old]", "titans [new]"]
    ((_, a, b),) = heads(report)
    assert {a, b} == {"titans [old]", "titans [new]"}


def test_suites_of_several_lengths_are_compared_each_on_its_own(make_run):
    folders = []
    for length in (4096, 8192):
        places = [("t.one", length), ("t.two", length)]
        made = [static(places=places), uniform(places=places)]
        folders.append(make_run(f"r{length}", *made, suite=f"s{length}"))
    report = compare_runs(folders)
    assert [s.suite["name"] for s in report.suites] == ["s4096", "s8192"] and len(heads(report)) == 1
    places = [("t.one", 512), ("t.one", 1024)]
    many = compare_runs([make_run("m", static(places=places), uniform(places=places))])
    found = [(x.task, x.length) for x in many.suites[0].lines]
    assert found == [("all", None), ("all", 512), ("all", 1024), ("t.one", 512), ("t.one", 1024)]


def test_equal_and_unequal_budgets_are_said(make_run):
    control = {"label": "titans+random", "scores": scores(0.6), "capacity": capacity(Random, seed=3)}
    half = {"label": "titans+bottleneck", "scores": scores(0.4), "capacity": capacity(Bottleneck, until=0.5)}
    report = compare_runs([make_run("r", static(), uniform(), control, half, stretched())])
    said = report.suites[0].capacity
    assert any(x.startswith("equal capacity: titans+random and titans+proteus") and "53.1%" in x for x in said)
    assert any(x.startswith("equal capacity: titans+bottleneck and titans+proteus") for x in said)
    assert any("titans+stretched(factor=2) against titans+proteus" in x and "28.1% against 53.1%" in x for x in said)
    equal = {(c["a"], c["b"]): c["equal_capacity"] for c in document(report)["comparisons"]}
    assert equal["titans+random", "titans+proteus"] is True and equal["titans+proteus", "titans"] is False
    lent = [n for n in report.suites[0].notes if "no weights of its own" in n]
    assert len(lent) == 1 and "titans+stretched(factor=2)" in lent[0] and "titans+proteus" in lent[0]


def test_a_schedule_that_is_not_installed_has_no_known_budget(make_run):
    folder = make_run("r", static(), uniform())
    text = (folder / "run.json").read_text().replace('"schedule": "uniform"', '"schedule": "unheard"')
    from proteus_bench.store import digest
    from proteus_bench.store.run_file import run_id_of

    run = json.loads(text)
    for record in run["records"]:
        record["record_id"] = digest(record["identity"])
    run["run_id"] = run_id_of([r["record_id"] for r in run["records"]])
    (folder / "run.json").write_text(json.dumps(run))
    report = compare_runs([folder])
    assert "not known" in report.suites[0].capacity[0]
    assert document(report)["comparisons"][0]["equal_capacity"] is None


def test_gates_that_are_one_function_are_shown_once_and_named(make_run):
    write = uniform() | {"label": "titans+proteus(gate=write)", "capacity": capacity(gate="write"), "trained": "proteus"}
    lent = uniform() | {"trained": "proteus"}
    report = compare_runs([make_run("r", lent, write, static())])
    assert len(report.suites[0].methods) == 2
    assert any("titans+proteus(gate=write) is the same function as titans+proteus" in n for n in report.suites[0].notes)
    deep = [m | {"model": "titans-mlp", "label": m["label"].replace("titans", "titans-mlp")} for m in (lent, write)]
    assert len(compare_runs([make_run("deep", *deep)]).suites[0].methods) == 2  # gates differ in a deep memory
    other = write | {"weights": "others"}
    assert len(compare_runs([make_run("two", lent, other)]).suites[0].methods) == 2  # other weights, other function


def test_schedules_that_agree_on_all_positions_that_were_read_are_one_function(make_run):
    wide = uniform(places=[("t.one", 64)]) | {"trained": "proteus"}
    slow = {**wide, "label": "titans+stretched(factor=2)", "capacity": capacity(Stretched, factor=2.0)}
    assert len(compare_runs([make_run("short", wide, slow)]).suites[0].methods) == 1
    far = uniform(places=[("t.one", 600)]) | {"trained": "proteus"}
    slow = {**far, "label": "titans+stretched(factor=2)", "capacity": capacity(Stretched, factor=2.0)}
    report = compare_runs([make_run("long", far, slow)])
    assert len(report.suites[0].methods) == 2
    assert "are one function here" in words(next(iter(heads(report).values())))


def test_holm_corrects_within_a_family_and_says_so(make_run):
    rng = np.random.default_rng(5)
    base = {p: rng.random((3, 12)) for p in PLACES}
    made = [{"label": "titans", "scores": base}]
    for k in range(8):
        shift = {p: np.clip(base[p] + 0.06 + rng.normal(0, 0.25, (3, 12)), 0, 1) for p in PLACES}
        made.append({"label": f"titans+random(seed={k})", "scores": shift, "capacity": capacity(Random, seed=k)})
    lines = list(heads(compare_runs([make_run("r", *made)])).values())
    assert {x.family_size for x in lines} == {8}
    raw, corrected = [x.p for x in lines], [x.p_adjusted for x in lines]
    assert min(corrected) == pytest.approx(min(1, 8 * min(raw)))
    lost = [x for x in lines if x.verdict.outcome == "better" and x.outcome == "not_separable"]
    assert lost and "after the correction for 8 comparisons" in words(lost[0])


def test_ranks_show_ties_as_ties(make_run):
    made = [static(0.95), uniform(0.2), stretched(0.2, stream=0)]
    ranks = {m.candidate.name: str(m.rank) for m in compare_runs([make_run("r", *made)]).suites[0].methods}
    assert ranks == {"titans": "1", "titans+proteus": "2-3", "titans+stretched(factor=2)": "2-3"}
    pair = compare_runs([make_run("two", static(), uniform())])
    assert all(m.rank is None for m in pair.suites[0].methods)


def test_one_seed_compares_checkpoints_only(make_run):
    report = compare_runs([make_run("r", static(seeds=1), uniform(0.2, seeds=1), stretched(0.1, seeds=1))])
    line = heads(report)["against static", "titans+proteus", "titans"]
    assert line.outcome == "worse" and line.verdict.claim == "checkpoints" and line.verdict.p_value is None
    assert line.p_adjusted is not None and line.p_adjusted >= line.p
    assert "nothing is claimed about the methods" in words(line)
    assert any("not ranked" in note for note in report.suites[0].notes)


def test_a_diverged_seed_counts_and_has_no_nats(make_run):
    lost = uniform() | {"logprob": None, "status": "diverged"}
    line = next(iter(heads(compare_runs([make_run("r", static(), lost)])).values()))
    assert line.verdict.seeds == 3 and line.logprob is None and "no comparison in nats" in words(line)


def test_another_reference_can_be_asked_for(make_run):
    folder = make_run("r", static(), uniform(), stretched())
    report = compare_runs([folder], against=["titans+stretched(factor=2)"])
    assert {b for _, _, b in heads(report)} == {"titans+stretched(factor=2)"}
    with pytest.raises(UsageError, match="did you mean 'titans'"):
        compare_runs([folder], against=["titns"])
    backbones = [static(), static(0.5) | {"label": "gdn", "model": "gdn"}]
    assert len(heads(compare_runs([make_run("g", *backbones)]))) == 1


@pytest.mark.parametrize(
    ("gate", "fires"),
    [
        ("titans+proteus < titans", True),
        ("titans > titans+proteus", True),
        ("titans < titans+proteus", False),
        ("titans+proteus > titans", False),
        ("titans+proteus <= titans", True),
        ("titans >= titans+proteus", True),
        ("titans <= titans+proteus", False),
        ("titans+proteus < titans by 5", True),
        ("titans+proteus < titans by 95", False),
        ("titans+proteus < titans on t.one", True),
        ("titans+stretched(factor=2) < titans+proteus", False),
    ],
)
def test_gates(make_run, cli, gate, fires):
    folder = make_run("r", static(), uniform(0.2), stretched(0.2))
    done = cli("compare", str(folder), "--fail-if", gate)
    assert done.returncode == (6 if fires else 0), done.stderr
    assert ("fires on made4k" in done.stderr) == fires and "against static" in done.stdout


@pytest.mark.parametrize("text", ["titans", "a < b < c", "< b", "a <", "a < b by x", "a <= b by 3", "a < b on t@x", ""])
def test_a_gate_that_cannot_be_read_says_how_it_is_written(text):
    with pytest.raises(UsageError):
        parse_gate(text)


@given(
    a=st.sampled_from(["titans", "gdn+stretched(factor=2)", "hf:./my model"]),
    op=st.sampled_from(["<", ">", "<=", ">="]),
    points=st.sampled_from([None, 0.5, 12]),
    task=st.sampled_from([None, "niah.single_1", "t@512"]),
)
def test_gates_read_what_they_write(a, op, points, task):
    exact = op in ("<", ">")
    tail = (f" by {points}" if points and exact else "") + (f" on {task}" if task else "")
    gate = parse_gate(f"{a} {op} titans+proteus{tail}")
    assert (gate.a, gate.op, gate.b) == (a, op, "titans+proteus")
    assert gate.points == (points if points and exact else 0)
    assert (gate.task, gate.length) == ((task or "all").split("@")[0], 512 if task == "t@512" else None)


def test_a_gate_on_a_pair_that_is_not_compared_is_judged_too(make_run, cli):
    folder = make_run("r", static(), static(0.2) | {"label": "gdn", "model": "gdn"}, uniform())
    done = cli("compare", str(folder), "--fail-if", "gdn < titans", "--json")
    assert done.returncode == 6 and json.loads(done.stdout)["gates"][0]["fired"]
    assert cli("compare", str(folder), "--fail-if", "gdm < titans").returncode == 2
    assert cli("compare", str(folder), "--fail-if", "gdn < titans on nothing").returncode == 2


def test_a_method_that_is_not_shown_can_be_named(make_run, cli):
    lent = uniform(0.2) | {"trained": "proteus"}
    write = {**lent, "label": "titans+proteus(gate=write)", "capacity": capacity(gate="write")}
    folder = str(make_run("r", lent, write, static()))
    name = "titans+proteus(gate=write)"
    assert cli("compare", folder, "--fail-if", f"{name} < titans").returncode == 6
    assert cli("compare", folder, "--fail-if", f"{name} < titans+proteus").returncode == 0
    same = cli("compare", folder, "--fail-if", f"{name} <= titans+proteus")
    assert same.returncode == 6 and "both are one function" in same.stderr
    against = json.loads(cli("compare", folder, "--against", name, "--json").stdout)["comparisons"]
    assert {(c["a"], c["b"]) for c in against} == {("titans", "titans+proteus")}
    assert cli("plan", folder, "--a", name, "--b", "titans").returncode == 0


def test_a_gate_that_no_suite_can_judge_is_an_error_and_no_pass(make_run, cli):
    one = make_run("one", static(), uniform(), suite="s1")
    gdn = [m | {"label": m["label"].replace("titans", "gdn"), "model": "gdn"} for m in (static(), uniform())]
    two = make_run("two", *gdn, suite="s2")
    done = cli("compare", str(one), str(two), "--fail-if", "gdn < titans")
    assert done.returncode == 2 and "no suite holds both" in done.stderr
    assert cli("compare", str(one), str(two), "--fail-if", "titans < titans+proteus").returncode == 0
    report = compare_runs([one, two], against=["titans"])
    assert "titans was not run on s2" in report.suites[1].notes and not report.suites[1].lines


def test_the_documents_agree_and_are_pure(make_run, cli):
    folder = make_run("r", static(), uniform(), stretched())
    first, second = (cli("compare", str(folder), "--json").stdout for _ in range(2))
    assert first == second
    found = json.loads(first)
    rows = list(csv.DictReader(io.StringIO(cli("compare", str(folder), "--csv").stdout)))
    assert [(r["a"], r["task"]) for r in rows] == [(c["a"], c["task"]) for c in found["comparisons"]]
    assert [float(r["diff"]) for r in rows] == [c["diff"] for c in found["comparisons"]]
    text = cli("compare", str(folder), "--markdown").stdout
    assert text.count("| all |") == 3 and "stretched(factor=2) - static" in text
    assert cli("compare", str(folder), "--csv", "--json").returncode == 2


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_its_terminal(make_run, width):
    from rich.console import Console

    from proteus_bench.compare.table import print_report

    names = [static() | {"label": "gdn", "model": "gdn"}, static(), uniform(), stretched()]
    for made in ([static(), uniform(), stretched()], names):
        sink = io.StringIO()
        report = compare_runs([make_run(f"r{len(made)}", *made)])
        print_report(Console(file=sink, width=width, markup=False, highlight=False), report)
        text = sink.getvalue()
        assert max(map(len, text.splitlines())) <= width and "…" not in text
        assert "95% interval" in text and "budgets differ" in text and "not separable" in text


def test_names_are_never_markup_formula_or_link(make_run):
    bad = static(0.5) | {"label": "=cmd|'[red]<b>`x`", "model": "gdn"}
    report = compare_runs([make_run("r", static(), bad)])
    assert "\\[red\\]&lt;b&gt;\\`x\\`" in to_markdown(report) and "<b>" not in to_markdown(report)
    first = list(csv.reader(io.StringIO(to_csv(report))))[1]
    assert not any(cell.startswith("=") for cell in first) and any(cell.startswith("'=") for cell in first)


def test_pairs_need_both_sides(make_run):
    with pytest.raises(PairingError, match="seed 2 is there for titans only; --common"):
        compare_runs([make_run("a", static(), uniform(seeds=2))])
    report = compare_runs([make_run("b", static(), uniform(seeds=2))], common=True)
    assert next(iter(heads(report).values())).verdict.seeds == 2
    assert any("left out: seed 2" in note for note in report.suites[0].notes)
    assert any("two seeds" in note for note in report.suites[0].notes)
