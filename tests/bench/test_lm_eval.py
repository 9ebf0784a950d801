"""lm-eval itself runs our models and our suites; its models answer our suites; all ways to ask give equal numbers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from outside import TOLERANCE, same, save, save_own

from proteus_bench.backends import open_backend
from proteus_bench.errors import BenchError, UsageError
from proteus_bench.runner.cell import _answer, asks_of
from proteus_bench.runner.items import make_item, plan_suite
from proteus_bench.runner.models import parse
from proteus_bench.runner.perplexity import perplexity_of
from proteus_tasks import TASKS, fixtures_commonsense
from proteus_tasks.commonsense import SETS

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
pytestmark = pytest.mark.hf
N = 12


@pytest.fixture(autouse=True)
def _place(tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def ours(tiny_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gdn+proteus` of the tiny zoo in a folder of transformers."""
    return save_own(tmp_path_factory.mktemp("ours") / "ckpt", tiny_zoo, "gdn+proteus")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("llama") / "ckpt")


def evaluate(model: Any, tasks: list[Any], **arguments: Any) -> dict[str, dict[str, Any]]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    arguments.setdefault("task_manager", TaskManager(include_defaults=False))
    found = lm_eval.simple_evaluate(model=model, tasks=tasks, bootstrap_iters=100, verbosity="ERROR", **arguments)
    return {**found["results"], **(found.get("groups") or {})}


def harness_tasks(names: list[str], n: int = N) -> list[Any]:
    """lm-eval's own tasks on the first rows of the fixtures."""
    import datasets
    import lm_eval
    from lm_eval.tasks import TaskManager

    root, made = Path(lm_eval.__file__).parent / "tasks", []
    for name in names:
        definition = SETS[name]
        table = datasets.Dataset.from_list([dict(row) for row in fixtures_commonsense.rows(definition.task, "test")[:n]])

        def given(table: Any = table, **_: Any) -> dict[str, Any]:
            return dict.fromkeys(("train", "validation", "test"), table)

        manager = TaskManager(include_path=str(root / definition.folder), include_defaults=False)
        group = {"group": "some", "task": [{"task": definition.task, "custom_dataset": given}]}
        made.append(manager.load([group])["tasks"][definition.task])
    return made


def test_one_model_asked_in_three_ways_gives_equal_answers(ours: Path) -> None:
    names = ("gdn+proteus", f"hf:{ours}", f"lm-eval:hf(pretrained={ours},dtype=float32)")
    backends = [open_backend(parse(name), 0) for name in names]
    for task in ("niah.multiquery", "ppl.prose", "commonsense.wikitext-fixture"):
        items = [TASKS[task].item(i, length=400, tokenizer=backends[0].tokenizer) for i in range(2)]
        contexts, questions = [item.context for item in items], [asks_of(item) for item in items]
        first, *others = [backend.reply(contexts, questions) for backend in backends]
        for other in others:
            same(first, other)
    assert len({backend.info.tokenizer_sha256 for backend in backends}) == 1
    assert [backend.info.backend for backend in backends] == ["local", "hf", "lm-eval"]
    assert backends[1].info.sha256 == backends[2].info.sha256


def test_a_transformer_asked_in_two_ways_gives_equal_answers(llama: Path) -> None:
    left, right = (open_backend(parse(name), 0) for name in (f"hf:{llama}", f"lm-eval:hf(pretrained={llama})"))
    items = [TASKS["niah.multiquery"].item(i, length=300, tokenizer=left.tokenizer) for i in range(2)]
    contexts, questions = [item.context for item in items], [asks_of(item) for item in items]
    same(left.reply(contexts, questions), right.reply(contexts, questions))
    assert left.info.max_length == right.info.max_length == 600


def test_lm_eval_runs_our_model_by_name_as_it_runs_the_folder(ours: Path) -> None:
    import proteus_bench.lm_eval  # noqa: F401  registers `proteus`

    tasks = ["lambada", "piqa", "winogrande", "wikitext"]
    mine = evaluate("proteus", harness_tasks(tasks), model_args="model=gdn+proteus,seed=0", batch_size=5)
    theirs = evaluate("hf", harness_tasks(tasks), model_args={"pretrained": str(ours)}, batch_size=1, device="cpu")
    assert set(mine) == {SETS[name].task for name in tasks}
    for task, values in mine.items():
        for metric, value in values.items():
            if isinstance(value, float) and "stderr" not in metric:
                assert value == pytest.approx(theirs[task][metric], rel=1e-4), (task, metric)


@pytest.mark.parametrize("name", SETS)
def test_our_scores_of_its_tasks_are_its_own(llama: Path, name: str) -> None:
    from proteus_bench.lm_eval.model import ProteusLM

    backend = open_backend(parse(f"hf:{llama}"), 0)
    (theirs,) = evaluate(ProteusLM(backend), harness_tasks([name])).values()
    task = TASKS[f"commonsense.{name}-fixture"]
    rows = _answer(backend, [task.item(i, length=512, tokenizer=backend.tokenizer) for i in range(N)], 0)[0]
    running = perplexity_of(rows)
    strict, compat = (sum(row[column] for row in rows) / N for column in ("strict", "compat"))
    if name == "wikitext":
        assert running is not None
        assert running.value == pytest.approx(theirs["word_perplexity,none"], rel=1e-6)
        assert running.bits_per_byte == pytest.approx(theirs["bits_per_byte,none"], rel=1e-6)
    elif name == "lambada":
        assert running is not None and running.value == pytest.approx(theirs["perplexity,none"], rel=1e-6)
        assert strict == theirs["acc,none"]
    else:
        normed = SETS[name].rules[0] == "choice-per-char@1"
        assert (compat if normed else strict) == pytest.approx(theirs["acc,none"])
        if "acc_norm,none" in theirs:
            assert (strict if normed else compat) == pytest.approx(theirs["acc_norm,none"])


def test_lm_eval_runs_our_suites_with_a_number_for_every_error(ours: Path, tiny_suite: str, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    import proteus_models.hf  # noqa: F401  makes transformers know the type
    from proteus_bench import lm_eval as bridge

    folder = bridge.tasks_path(tmp_path / "include", [tiny_suite])
    group = f"proteus_{Path(tiny_suite).stem}"
    manager = TaskManager(include_path=folder, include_defaults=False, metadata={"model": "gdn+proteus", "seed": 0})
    by_name = evaluate("proteus", [group], model_args={"model": "gdn+proteus"}, task_manager=manager)
    by_hand = evaluate("hf", bridge.tasks(tiny_suite, tokenizer=str(ours)), model_args={"pretrained": str(ours)}, device="cpu")
    backend, plan = open_backend(parse("gdn+proteus"), 0), plan_suite(tiny_suite)
    for (task, length), count in plan.counts.items():
        name = f"{group}__{task.replace('.', '_')}__{length}"
        rows = _answer(backend, [make_item(plan, task, length, backend.tokenizer, i) for i in range(count)], 0)[0]
        means: dict[str, list[float]] = {}
        for metric in ("strict", "compat", "logprob"):
            by_item: dict[int, list[float]] = {}
            for row in rows:
                by_item.setdefault(row["index"], []).append(row[metric])
            means[metric] = [sum(values) / len(values) for values in by_item.values()]
            mean = sum(means[metric]) / count
            error = math.sqrt(sum((v - mean) ** 2 for v in means[metric]) / (count - 1) / count)
            for found in (by_name[name], by_hand[name]):
                assert found[f"{metric},none"] == pytest.approx(mean, abs=TOLERANCE)
                assert found[f"{metric}_stderr,none"] == pytest.approx(error, abs=TOLERANCE)
    assert all(isinstance(by_name[group][f"{metric}_stderr,none"], float) for metric in ("strict", "compat", "logprob"))


def test_suites_of_choices_and_of_running_text_run_inside_lm_eval(tmp_path: Path) -> None:
    from proteus_bench import lm_eval as bridge

    (tmp_path / "mixed.toml").write_text(
        'id = "mixed"\nversion = "1"\ndescription = "d"\ndata_seed = 0\nsplit = "test"\nlength = 400\nn = 5\n'
        'tasks = ["commonsense.hellaswag-fixture", "commonsense.wikitext-fixture", "ppl.prose"]\n'
    )
    suite = str(tmp_path / "mixed.toml")
    found = evaluate("proteus", bridge.tasks(suite, tokenizer="micro", limit=4), model_args={"model": "gdn"})
    backend, plan = open_backend(parse("gdn"), 0), plan_suite(suite)
    for (task, length), values in zip(plan.counts, found.values(), strict=True):
        rows = _answer(backend, [make_item(plan, task, length, backend.tokenizer, i) for i in range(4)], 0)[0]
        for metric in ("strict", "compat", "logprob"):
            assert values[f"{metric},none"] == pytest.approx(sum(row[metric] for row in rows) / 4, rel=1e-4)
            assert isinstance(values[f"{metric}_stderr,none"], float)
    assert "proteus_niah4k.yaml" in {path.name for path in Path(bridge.tasks_path(tmp_path / "all")).iterdir()}


def test_requests_of_lm_eval_that_are_unusual(ours: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    import proteus_models.hf  # noqa: F401  makes transformers know the type
    from proteus_bench.lm_eval.model import ProteusLM

    def made(kind: str, arguments: list[Any]) -> list[Any]:
        return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]

    mine, theirs = ProteusLM("gdn+proteus", batch_size="auto:4"), HFLM(pretrained=str(ours), device="cpu", batch_size=1)
    pairs = [("The Congress ", "of the United States"), ("", "The Congress shall"), ("A\nB", " C"), ("The Congress ", "of it")]
    for (a, greedy), (b, also) in zip(
        mine.loglikelihood(made("loglikelihood", pairs)), theirs.loglikelihood(made("loglikelihood", pairs)), strict=True
    ):
        assert abs(a - b) <= TOLERANCE and greedy == also
    settings = [{"until": until, "max_gen_toks": 9, "do_sample": False} for until in (["the", "\n"], [])]
    asked = [("The Congress of the", one) for one in settings]
    texts = theirs.generate_until(made("generate_until", [(c, dict(s)) for c, s in asked]))
    assert mine.generate_until(made("generate_until", asked)) == texts
    with pytest.raises(UsageError, match="greedily"):
        mine.generate_until(made("generate_until", [("The", {"until": [], "do_sample": True})]))
    with pytest.raises(UsageError, match="no chat template"):
        mine.apply_chat_template([{"role": "user", "content": "x"}])


def test_its_command_line_knows_our_model(environment: Any, tiny_zoo: Path) -> None:
    """Only that: a whole run reads the definitions of all of lm-eval's tasks first."""
    code = """
import sys
from runpy import run_module
sys.argv = ["lm_eval", "run", "--help"]
try:
    run_module("proteus_bench.lm_eval", run_name="__main__")
except SystemExit as ended:
    assert not ended.code
from lm_eval.api.registry import get_model
model = get_model("proteus").create_from_arg_string("model=gdn+proteus,seed=1", {"device": "cuda:0", "batch_size": 2})
print(model.backend.info.seed, model.max_length)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(tiny_zoo), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--model_args" in done.stdout and done.stdout.splitlines()[-1] == "1 None"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lm-eval:hff(pretrained=.)", "unknown model type of lm-eval 'hff'; did you mean 'hf'"),
        ("lm-eval:hf(pretrained)", "write key=value"),
        ("lm-eval:h f", "cannot read"),
        ("lm-eval:local-completions(model=x,api_key=y)", "into the environment"),
        ("lm-eval:proteus(model=gdn)", "name the model itself"),
        ("lm-eval:dummy", "--train-length"),
        ("lm-eval:hf(pretrained=./none)", "lm-eval:hf"),
        ("lm-eval:dummy+proteus", "only models of proteus-bench"),
    ],
)
def test_a_bad_name_of_an_lm_eval_model_is_one_line(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BenchError) as caught:
        open_backend(parse(name), 0)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_without_a_tokenizer_is_measured_in_bytes(cli: Any, tmp_path: Path, short_suite: str) -> None:
    text = Path(short_suite).read_text().replace("40", "2000")
    (tmp_path / "s.toml").write_text(text.replace('id = "tiny2000"', 'id = "s"'))
    done = cli("run", "--model", "lm-eval:dummy", "--suite", "./s.toml", "--train-length", "100", "--out", "run", "--limit", "2")
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "run.json").read_text())["records"][0]
    assert record["identity"]["tokenizer_sha256"] == "bytes" and record["train_length"] == 100
    assert all(cell["score"] == 0 for cell in record["cells"])
