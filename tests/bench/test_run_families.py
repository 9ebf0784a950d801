"""The task families run end to end: their scorers, stops, several lengths, running text, data of the user's own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from proteus_bench.runner import items
from proteus_bench.runner.perplexity import perplexity_of
from proteus_bench.store import read_log
from proteus_bench.store.run_file import read_run_file

TASKS = ("ruler.cwe", "babilong.place", "retrieval.fda-fixture.jrt.ladder", "ruler.qa_hotpot-fixture",
         "longbench.qasper-fixture.strict", "ppl.prose")  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_suites():
    items.plan_suite.cache_clear()
    yield
    items.plan_suite.cache_clear()


def suite(folder: Path, name: str, tasks, lengths) -> str:
    path = folder / f"{name}.toml"
    path.write_text(
        f'id = "{name}"\nversion = "1"\ndescription = "for tests"\ndata_seed = 0\nsplit = "test"\n'
        f"lengths = {list(lengths)}\nn = 3\ntasks = {json.dumps(list(tasks))}\n"
    )
    return str(path)


def rows_of(folder: Path) -> dict[tuple[str, int], list[dict]]:
    run = read_run_file(folder / "run.json")
    return {
        (cell.task, cell.length): read_log(folder / cell.file) for record in run.records for cell in record.cells
    }


def test_every_family_runs_with_its_own_scorers_at_several_lengths(cli, tmp_path):
    asked = suite(tmp_path, "families", TASKS, (450, 600))
    arguments = ("run", "--model", "gdn", "--suite", asked, "--seeds", "1", "--out", "out", "--workers", "1")
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout and "bits per byte" in done.stdout
    rows = rows_of(tmp_path / "out")
    assert set(rows) == {(task, length) for task in TASKS for length in (450, 600)}
    assert all(len(found) == 3 for found in rows.values())
    named = {task: rows[task, 450][0]["scorers"] for task in TASKS}
    assert named["babilong.place"] == ["unique-label@1", "babilong@1"] and named["ruler.cwe"][1] == "ruler-all@1"
    assert named["longbench.qasper-fixture.strict"] == ["any@1", "qa-f1@1"]
    for found in rows.values():
        assert all(0.0 <= row["strict"] <= 1.0 and 0.0 <= row["compat"] <= 1.0 for row in found)
    for row in rows["ppl.prose", 450]:
        assert row["output"] == "" and row["strict"] == pytest.approx(math.exp(row["logprob"] / row["gold_tokens"]))
    cells = {(c.task, c.length): c for c in read_run_file(tmp_path / "out/run.json").records[0].cells}
    assert cells["ppl.prose", 600].perplexity.ci_low < cells["ppl.prose", 600].perplexity.value
    assert cells["ruler.cwe", 600].perplexity is None and cells["ruler.cwe", 600].ci_low is not None
    before = (tmp_path / "out/run.json").read_bytes()
    assert cli(*arguments).returncode == 0 and (tmp_path / "out/run.json").read_bytes() == before


def test_a_suite_on_real_data_runs_on_a_folder_of_it_and_belongs_to_that_data(cli, tmp_path):
    rows = [
        {"text": f"Page {i}\nThe keeper lives here.\ncolour: shade{i}\n\nSummary of information above...\ncolour:",
         "key": "colour", "value": f"shade{i}"} for i in range(12)
    ]  # fmt: skip
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "swde.jsonl").write_text("\n".join(json.dumps(row) for row in rows[: 12 - len(name * 3)]))
        rows = rows[::-1]
    asked = suite(tmp_path, "mine", ["retrieval.swde.jrt.ladder", "retrieval.swde.jrt.window"], (200, 256))
    arguments = ("run", "--model", "gdn", "--suite", asked, "--seeds", "1", "--out", "out", "--workers", "1")
    missing = cli(*arguments, PROTEUS_BENCH_DATA=str(tmp_path / "empty"))
    assert missing.returncode == 3 and "no data for swde; put swde.jsonl" in missing.stderr
    assert missing.stderr.strip().count("\n") <= 1
    items.plan_suite.cache_clear()
    done = cli(*arguments, PROTEUS_BENCH_DATA=str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    identity = json.loads((tmp_path / "out/run.json").read_text())["records"][0]["identity"]
    assert set(identity["data"]) == {"retrieval.swde.jrt.ladder", "retrieval.swde.jrt.window"}
    items.plan_suite.cache_clear()
    other = cli(*arguments, PROTEUS_BENCH_DATA=str(tmp_path / "b"))
    assert other.returncode == 2 and "holds another run" in other.stderr


def test_perplexity_is_a_ratio_of_sums_with_an_interval_that_covers():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        tokens = rng.integers(100, 200, size=24)
        nats = tokens * (2.0 + 0.2 * rng.standard_normal(24))
        rows = [
            {"scorers": ["token-probability@1"] * 2, "logprob": -x, "gold_tokens": int(t), "golds": ["x" * 99]}
            for x, t in zip(nats, tokens, strict=True)
        ]
        found = perplexity_of(rows)
        assert found.value == pytest.approx(math.exp(nats.sum() / tokens.sum()))
        assert found.bits_per_byte == pytest.approx(nats.sum() / math.log(2) / 2400)
        covered += found.ci_low <= math.exp(2.0) <= found.ci_high
    low, high = stats.binom.interval(0.999, 400, 0.95)
    assert low <= covered <= high
    assert perplexity_of(rows[:1]).ci_low is None and perplexity_of([{**rows[0], "logprob": None}]) is None
    assert perplexity_of([{"logprob": -1.0, "gold_tokens": 3, "golds": ["x"]}]) is None and perplexity_of([]) is None
