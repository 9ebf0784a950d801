"""What a schedule costs: paired in one process, computed again by whoever reads it, shown machine by machine."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from proteus_bench.cost.measure import Twins, paired, peak_bytes
from proteus_bench.errors import UsageError
from proteus_bench.leaderboard import Options, add_runs, verify
from proteus_bench.leaderboard.cost import WORDS, CostBlock, Machine, cost_block, cost_reasons, read_cost
from proteus_bench.leaderboard.entry import read_entry
from proteus_bench.leaderboard.export import export
from proteus_bench.site.cost_figures import cost_sections
from proteus_bench.store import read_json
from tests.bench.leaderboard_help import edit, fails, refused

Cli = Callable[..., Any]
COMMAND = ("cost", "titans+proteus", "--lengths", "256", "--pairs", "6", "--decode-tokens", "4", "--out")


@pytest.fixture(scope="module")
def measured(finished: Path, tiny_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose scheduled method has a cost. Copy it before you change it."""
    from proteus_bench.cli import invoke

    folder = tmp_path_factory.mktemp("costed")
    shutil.copytree(finished, folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
        assert invoke([*COMMAND, str(folder / "c" / "cost.json"), "--run", str(folder / "run")]) == 0
    return folder / "run"


@pytest.fixture
def costed(measured: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be spoiled."""
    shutil.copytree(measured, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def level2(tiny_suite: str) -> Options:
    return Options(level=2, suites=(Path(tiny_suite),))


def line(measure: str, seconds: list[float], static: list[float], **more: Any) -> dict[str, Any]:
    texts = {"seconds": " ".join(map(repr, seconds)), "static_seconds": " ".join(map(repr, static))}
    return {
        "measure": measure, "length": 1024, "tokens": 1024, "peak_bytes": None, "static_peak_bytes": None, "load": 0.5,
        **texts, **more,
    }  # fmt: skip


def block(*lines: dict[str, Any], cpu: str = "a cpu", **more: Any) -> CostBlock:
    machine = Machine(cpu=cpu, cores=2, threads=1, system="Linux", python="3", torch="2")
    head = {
        "label": "gdn+proteus", "seed": 0, "checkpoint_sha256": "0" * 64, "capacity": {}, "span": "own", "n_params": 1,
        "state_bytes": 64, "static_state_bytes": 64, "machine": machine, "program": "this one", "clock": "cpu", **more,
    }  # fmt: skip
    return cost_block(head, lines)


def test_twins_are_one_set_of_weights_under_two_capacities(tiny_zoo: Path) -> None:
    from proteus_models import zoo

    model = zoo.load("titans", "proteus", root=tiny_zoo).model
    twins = Twins.of(model, "titans+proteus")
    assert twins.scheduled.active(0, 256) is not None and twins.static.active(0, 256) is None
    same = zip(twins.scheduled.state_dict().values(), twins.static.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    stretched = twins.at(512)
    assert stretched.scheduled.config.capacity.span == 512 and twins.scheduled.config.capacity.span == 256
    with pytest.raises(UsageError, match=r"name one, as in titans\+proteus"):
        Twins.of(twins.static, "titans")


def test_calls_alternate_and_every_pair_is_of_neighbours() -> None:
    now, said = [0.0], []

    def call(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            said.append(name)
            now[0] += seconds * (1 + now[0])  # a machine that gets slower and slower

        return run

    ticks: list[int] = []
    a, b = paired(call("a", 0.02), call("b", 0.01), 20, lambda: now[0], lambda: ticks.append(1))
    assert said[:6] == ["a", "b", "b", "a", "a", "b"] and said.count("a") == said.count("b") == 21 and len(ticks) == 20
    assert 1.9 < sorted(x / y for x, y in zip(a, b, strict=True))[10] < 2.1 and a[-1] > 1.5 * a[0]


def test_peaks_are_the_bytes_that_live_at_once() -> None:
    def call() -> None:
        first = torch.zeros(1000, 1000)
        second = first + 1  # 8 MB
        del first
        third = second + 1  # 8 MB again
        del second, third

    assert 8_000_000 <= peak_bytes(call) < 8_001_000


def test_the_verdict_is_about_the_whole_interval() -> None:
    static = [1.0] * 21
    spread = [0.98 + 0.002 * i for i in range(21)]
    cases = {
        "saves": [x - 0.1 for x in spread], "no_extra": spread, "extra": [x + 0.1 for x in spread],
        "unsettled": [0.9 + 0.02 * i for i in range(21)],
    }  # fmt: skip
    for outcome, seconds in cases.items():
        made = block(line("train", seconds, static))
        assert (made.time, made.lines[0].outcome) == (outcome, outcome), outcome
        assert list(cost_reasons(made)) == []
    several = block(line("train", cases["saves"], static), line("decode", cases["no_extra"], static))
    assert several.time == "no_extra"
    contradicted = block(line("train", cases["saves"], static), line("decode", cases["extra"], static))
    assert contradicted.time == "extra"


def test_one_line_of_many_contradicts_only_at_the_corrected_level() -> None:
    """The sixth smallest of 21 ratios bounds one line at 95%; of ten lines it is the fourth."""
    seconds = [1.0] * 5 + [1.2] * 16
    alone = block(line("train", seconds, [1.0] * 21))
    assert alone.time == "extra"
    others = [line("prefill", [1.0] * 21, [1.0] * 21, length=1024 + i) for i in range(9)]
    assert block(line("train", seconds, [1.0] * 21), *others).time == "unsettled"


def test_memory_is_counted_and_not_sampled() -> None:
    times = [1.0] * 7
    assert block(line("train", times, times)).memory is None
    within = line("train", times, times, peak_bytes=102, static_peak_bytes=100)
    assert block(within).memory == "no_extra"
    assert block({**within, "peak_bytes": 104}).memory == "extra"
    assert block(within, state_bytes=128).memory == "extra"


def test_figures_of_two_machines_stand_apart() -> None:
    times = [1.0 + 0.01 * i for i in range(7)]
    blocks = [block(line("train", times, times), cpu=cpu) for cpu in ("fast cpu", "slow cpu", "fast cpu")]
    sections = cost_sections([*blocks, None])
    assert ["fast cpu" in s["reading"] for s in sections] == [True, False]
    assert [len(s["table"][1]) for s in sections] == [1, 1]  # one measurement that is shown twice is one
    assert cost_sections([None]) == []


def test_a_cost_reaches_the_leaderboard_the_page_and_the_report(
    cli: Cli, costed: Path, level2: Options, tmp_path: Path
) -> None:
    found = verify(costed, level2)
    assert found.ok, found.refused
    (made,) = [entry for entry in found.entries if entry.paired_cost is not None]
    assert made.label == "titans+proteus" and made.paired_cost is not None
    assert [(x.measure, x.length) for x in made.paired_cost.lines] == [("train", 256), ("prefill", 256), ("decode", 256)]
    assert made.paired_cost.memory is not None and all(x.n == 6 and x.peak_bytes for x in made.paired_cost.lines)
    add_runs([costed], tmp_path / "board", level2)
    row = next(
        row for row in read_json(tmp_path / "board" / "leaderboard.json")["boards"][0]["rows"] if row["paired_cost"]
    )
    assert row["label"] == "titans+proteus" and "seconds" not in row["paired_cost"]["lines"][0]
    assert cli("leaderboard", "build", str(tmp_path / "board")).returncode == 0
    assert verify(tmp_path / "board", level2).ok
    page = (tmp_path / "board" / "site" / "index.html").read_text()
    assert cli("report", str(costed)).returncode == 0
    report = (costed / "report.html").read_text()
    cpu = made.paired_cost.machine.cpu
    for text in (page, report):
        assert text.count("What a schedule costs</h2>") == 1 and cpu in text and "titans+proteus: " in text
    scores, costs = export(tmp_path / "board", "csv", tmp_path / "csv")
    lines = list(csv.DictReader(costs.open(encoding="utf-8")))
    assert [(x["measure"], x["length"], x["pairs"]) for x in lines] == [(m, "256", "6") for m in ("train", "prefill", "decode")]
    assert [float(x["ratio"]) for x in lines] == [x.ratio for x in made.paired_cost.lines] and scores.name == "leaderboard.csv"
    documents = [json.loads(path.read_text()) for path in export(tmp_path / "board", "eee", tmp_path)]
    said = [document["model_info"]["additional_details"].get("cost_time") for document in documents]
    assert [text for text in said if text] == [WORDS[made.paired_cost.time]]


def test_a_cost_that_comes_later_joins_its_entry(
    finished: Path, costed: Path, level2: Options, tmp_path: Path
) -> None:
    board = tmp_path / "board"
    first = add_runs([finished], board, level2)
    later = add_runs([costed], board, level2)
    assert {one.state for one in first.added} == {"added"}
    assert {one.model: one.state for one in later.added} == {"titans+proteus": "costed", "titans": "there"}
    held = [read_entry(path) for path in (board / "entries").glob("*.json")]
    assert [entry.label for entry in held if entry.paired_cost is not None] == ["titans+proteus"]
    assert verify(board, level2).ok


def test_costs_that_do_not_add_up_are_refused(costed: Path) -> None:
    path = costed / "cost.json"
    kept = path.read_text()

    def lie(change: Callable[[dict[str, Any]], None]) -> Any:
        path.write_text(kept)
        edit(path, lambda data: change(data["costs"][0]))
        return verify(costed, Options(level=1))

    fails(lie(lambda b: b["lines"][0].update(ratio=0.5)), 1, "ratio is 0.5, its seconds give")
    fails(lie(lambda b: b["lines"][0].update(ci_high=1.0)), 1, "ci_high is 1.0")
    fails(lie(lambda b: b["lines"][1].update(tokens_per_second=1e6)), 1, "tokens_per_second")
    fails(lie(lambda b: b["lines"][2].update(seconds="1 1 1 1 1 1")), 1, "its seconds give")
    fails(lie(lambda b: b.update(time="saves" if b["time"] != "saves" else "extra")), 1, "its cost is called")
    fails(lie(lambda b: b["lines"].append(b["lines"][0])), 1, "stands twice")
    fails(lie(lambda b: b.update(checkpoint_sha256="0" * 64)), 1, "of other weights")
    fails(lie(lambda b: b.update(label="titans")), 1, "of other weights or of another capacity")
    fails(lie(lambda b: b.update(state_bytes=1)), 1, "of other weights")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seconds", "1 1 1 1 1 1e999"), ("seconds", "1 1 1 1 1 -1"), ("seconds", "1 1"), ("seconds", "1 1 1 1 1 0"),
        ("seconds", "1 1 1 1 1 .e"), ("ratio", 1e999), ("n", 6.0), ("outcome", "free"), ("more", 1),
    ],
)  # fmt: skip
def test_malformed_costs_are_one_clear_line(costed: Path, key: str, value: Any) -> None:
    path = costed / "cost.json"
    text = json.dumps(json.loads(path.read_text()))
    edit(path, lambda data: data["costs"][0]["lines"][0].update({key: value}))
    assert path.read_text() != text
    refused(lambda: verify(costed, Options(level=0)))


def test_a_repeated_command_measures_nothing_again_and_a_changed_one_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    ask = (*COMMAND, "c/cost.json", "--lengths", "256,300")
    first = cli(*ask, "--measures", "decode", "--json")
    kept = (tmp_path / "c" / "cost.json").read_bytes()
    assert json.loads(first.stdout)["costs"][0]["label"] == "titans+proteus"
    again = cli(*ask, "--measures", "decode")
    assert again.returncode == 0 and (tmp_path / "c" / "cost.json").read_bytes() == kept
    assert again.stderr.count("stands in") == 2
    more = cli(*ask, "--measures", "decode,prefill", "--lengths", "256")
    assert more.stderr.count("stands in") == 1
    (tmp_path / "old.json").write_bytes(kept)
    files = (tmp_path / "old.json", tmp_path / "c" / "cost.json")
    old, new = ({(x.measure, x.length): x for x in read_cost(path)[0].lines} for path in files)
    assert new.keys() - old.keys() == {("prefill", 256)} and all(new[place] == old[place] for place in old)
    assert re.search(r"titans\+proteus: .* in time against its static twin", more.stdout)


def test_the_control_has_two_static_twins(cli: Cli, tmp_path: Path) -> None:
    name = "titans+proteus(gate=none,weights=proteus)"
    done = cli("cost", name, "--lengths", "256", "--measures", "prefill", "--pairs", "21", "--out", "c/cost.json", "--json")
    (made,) = json.loads(done.stdout)["costs"]
    (line,) = made["lines"]
    assert made["label"] == name and made["capacity"]["gate"] == "none" and made["memory"] == "no_extra"
    assert line["peak_bytes"] == line["static_peak_bytes"]


def test_a_plan_measures_nothing(cli: Cli, tmp_path: Path) -> None:
    ask = (*COMMAND, "c/cost.json", "--lengths", "256,300", "--dry-run")
    done = cli(*ask, "--json")
    plan = json.loads(done.stdout)
    assert plan["calls"] == 2 * 6 * (6 + 2) and plan["lengths"] == [256, 300]
    assert not (tmp_path / "c").exists()
    assert re.search(r"6 pairs each: 96 calls", cli(*ask).stdout)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--pairs", "5"), "at least 6"), (("--lengths", "x"), "parted by commas"), (("--lengths", "64"), "from 128 on"),
        (("--measures", "tran"), "did you mean 'train'"), (("--span", "long"), "unknown span"), (("--seed", "7"), "no seed 7"),
    ],
)  # fmt: skip
def test_bad_requests_are_one_line(cli: Cli, flags: tuple[str, ...], words: str) -> None:
    done = cli("cost", "titans+proteus", *flags)
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert cli("cost", "titans").returncode == cli("cost", "hf:.").returncode == 2


def test_a_run_of_other_models_gets_no_cost(cli: Cli, finished: Path) -> None:
    done = cli("cost", "gdn+proteus", "--lengths", "256", "--run", str(finished))
    assert done.returncode == 2 and "does not hold gdn+proteus with seed 0" in done.stderr
    assert not (finished / "cost.json").exists()
