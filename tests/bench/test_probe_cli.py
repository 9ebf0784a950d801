"""`probe NAME`: one folder with everything, the same bytes when repeated, one line for everything that can be wrong."""

import json
import re
from html.parser import HTMLParser

import pytest

from proteus_bench.probes.report import render_report

SMALL = ("--length", "600", "--limit", "2", "--contexts", "1", "--seeds", "1", "--workers", "1")
"""About the shortest length that holds two sets of sixteen facts."""


class Tags(HTMLParser):
    """Counts tags, and remembers whatever could load or run something."""

    def __init__(self):
        super().__init__()
        self.counts, self.active = {}, []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.active += [(tag, name) for name, _ in attrs if name.startswith("on") or name in ("src", "href", "style")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_zoo):
    """Where the module's runs are kept."""
    return tmp_path_factory.mktemp("probes")


def ran(cli, runs, name):
    """The folder of a probe that some test of this module has run, or this one now does."""
    if not (runs / name / "probe.json").exists():
        done = cli("probe", name, "--model", "titans+proteus", "--out", str(runs / name), *SMALL)
        assert done.returncode == 0, done.stderr
    return runs / name


def results(folder):
    """All result files; times are no results, and a commit in between is none either."""
    kept = [path for path in sorted(folder.rglob("*")) if path.is_file() and "seconds" not in path.name]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in kept if path.name not in ("timing.json", ".lock")}
    run = json.loads(found["run.json"])
    return {**found, "run.json": {key: value for key, value in run.items() if key != "environment"}}


@pytest.mark.parametrize("name", ["interference", "capacity"])
def test_a_probe_leaves_a_run_a_document_and_a_report(cli, runs, name):
    out = runs / name
    done = cli("probe", name, "--model", "titans+proteus", "--out", str(out), *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert json.loads((out / "probe.json").read_text()).items() >= document.items()
    run = json.loads((out / "run.json").read_text())
    assert run["run_id"] == document["run_id"] and {r["label"] for r in run["records"]} == {"titans", "titans+proteus"}
    names = {row["measure"] for row in document["measures"]}
    wanted = {
        "interference": {"retroactive", "proactive", "retroactive_contrast", "state_retroactive", "keys_overlap"},
        "capacity": {"recall_by_load", "pairs_held", "rewriting_cost", "stale", "state_retained", "recall_by_distance"},
    }[name]
    assert wanted | {"recall", "recall_by_block", "logprob", "state_share", "early_share"} <= names
    for row in document["measures"]:
        ends = (row["ci_low"], row["ci_high"])
        assert ends == (None, None) or ends[0] <= row["value"] <= ends[1], row
        assert row["model"] in ("titans", "titans+proteus") and (row["note"] or None not in ends)
    page = (out / "report.html").read_text()
    assert page.count('<svg class="plot"') >= 10


def test_repeating_the_command_changes_no_byte_and_computes_nothing(cli, runs):
    out = ran(cli, runs, "interference")
    before = results(out)
    assert {"probe.json", "report.html", "run.json", "items.parquet", "manifest.json"} <= set(before)
    stamps = {path: path.stat().st_mtime_ns for path in (out / "state").iterdir()}
    assert len(stamps) == 2  # one a method
    done = cli("probe", "interference", "--model", "titans+proteus", "--out", str(out), *SMALL)
    assert done.returncode == 0, done.stderr
    assert results(out) == before
    assert {path: path.stat().st_mtime_ns for path in (out / "state").iterdir()} == stamps
    assert "points" in done.stdout and "probe.json" in done.stdout


def test_gating_shows_one_of_two_gates_that_are_one_function(cli, runs):
    out = runs / "gating"
    done = cli("probe", "gating", "--model", "gdn+proteus", "--out", str(out), *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["gates"]["classes"] == [["both", "write"], ["read"], ["none"]]
    assert document["gates"]["classes_carried"] == [["both"], ["write"], ["read"], ["none"]]
    models = [method["model"] for method in document["methods"]]
    assert models == [
        "gdn+proteus", "gdn+proteus(gate=read,weights=proteus)", "gdn+proteus(gate=none,weights=proteus)", "gdn",
    ]  # fmt: skip
    assert [method["trained_schedule"] for method in document["methods"]] == ["proteus"] * 3 + ["static"]
    assert any("gate write is the same function as gate both from the start" in note for note in document["notes"])
    early = {row["model"] for row in document["measures"] if row["measure"] == "energy_before_unlock" and row["value"] > 0}
    assert early == {"gdn+proteus(gate=read,weights=proteus)"}


def test_weights_of_another_schedule_can_be_asked_for(cli):
    done = cli("run", "--model", "gdn+uniform(weights=static)", "--suite", "niah4k", "--dry-run", "--json")
    (scheduled, *_) = json.loads(done.stdout)["records"]
    assert scheduled["trained_schedule"] == "static" and scheduled["capacity"]["schedule"] == "uniform"
    wrong = cli("run", "--model", "gdn+uniform(weights=prteus)", "--suite", "niah4k", "--dry-run")
    assert wrong.returncode == 2 and "did you mean 'proteus'" in wrong.stderr


def test_a_page_loads_and_runs_nothing_and_escapes_names(cli, runs):
    document = json.loads((ran(cli, runs, "interference") / "probe.json").read_text())
    hostile = json.loads(json.dumps(document).replace("titans+proteus", "<img src=x onerror=alert(1)>"))
    page = render_report(hostile)
    tags = Tags()
    tags.feed(page)
    assert tags.active == [] and not {"img", "script", "link", "iframe"} & set(tags.counts)
    assert tags.counts["svg"] > 10 and "&lt;img src=x" in page
    policy = re.search(r"default-src 'none'; style-src 'sha256-[A-Za-z0-9+/=]{44}'", page)
    assert policy is not None and page.count("<style>") == 1


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("capcity", "--model", "titans"), 2, "did you mean 'capacity'"),
        (("gating", "--model", "titans"), 2, "has no gate"),
        (("capacity", "--model", "titns"), 2, "did you mean 'titans'"),
        (("capacity", "--model", "titans", "--length", "100"), 2, "at least 128"),
        (("capacity",), 2, "--model"),
    ],
)
def test_bad_input_is_one_line(cli, args, code, message):
    done = cli("probe", *args)
    assert done.returncode == code and message in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_short_length_leaves_out_what_does_not_fit_and_says_so(cli, runs):
    args = ("--model", "titans", "--out", str(runs / "short"), "--seeds", "1", "--dry-run")
    done = cli("probe", "capacity", *args, "--length", "160")
    assert done.returncode == 0 and "capacity.mqar_16 does not fit into 160 tokens" in done.stdout
    assert "capacity.mqar_4 at 160" in done.stdout
    none = cli("probe", "interference", *args, "--length", "128")
    assert none.returncode == 2 and "the smallest length that holds one is" in none.stderr


def test_a_model_without_a_memory_has_a_text_side(cli, tiny_zoo, tmp_path):
    """Attention alone: no state to look into, and the answers are measured all the same."""
    import shutil

    import torch

    from proteus_bench.schedules import Capacity
    from proteus_models.checkpoint import save_checkpoint
    from proteus_models.config import ModelConfig
    from proteus_models.decoder import DecoderLM
    from proteus_models.tokenizer import MicroTokenizer

    zoo = tmp_path / "attention"
    zoo.mkdir()
    shutil.copy(tiny_zoo / "tokenizer.json", zoo / "tokenizer.json")
    config = ModelConfig(
        mixer="transformer++", vocab_size=MicroTokenizer.from_file(zoo / "tokenizer.json").vocab_size, train_length=256,
        capacity=Capacity.static("value", 256), d_model=16, n_layers=1, n_heads=1, head_k=16, head_v=16, mlp_hidden=16,
    )  # fmt: skip
    torch.manual_seed(0)
    card = {"name": "transformer++", "seed": 0, "status": "complete", "train_length": 256, "tokens": 0}
    save_checkpoint(zoo / "transformer++" / "seed0", DecoderLM(config), card)
    args = ("--model", "transformer++", "--length", "600", "--limit", "1", "--contexts", "1", "--workers", "1", "--json")
    done = cli("probe", "interference", *args, zoo=zoo)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "transformer++ does not expose its memory: the text side only" in document["notes"]
    names = {row["measure"] for row in document["measures"]}
    assert "recall" in names and "retroactive" in names and not any(name.startswith("state") for name in names)
    gates = cli("probe", "gating", *args, zoo=zoo)
    assert gates.returncode == 2 and "has no gate" in gates.stderr
