"""`hf:PATH` answers as whole forward passes do, whatever its cache is; refuses what it cannot read; its runs hold together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from outside import TOLERANCE, definition, same, save, save_own

from proteus_bench.backends import Ask, Settings, open_backend
from proteus_bench.errors import BenchError, InvalidFileError, UsageError
from proteus_bench.runner.cell import asks_of
from proteus_bench.runner.models import parse
from proteus_tasks import TASKS

pytestmark = pytest.mark.hf
KINDS = ("llama", "sliding", "gpt2", "mamba", "mamba2")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    found = {kind: save(root / kind, kind) for kind in KINDS}
    return {**found, "chat": save(root / "chat", chat=True), "begin": save(root / "begin", begin=True)}


def backend(folder: Path, **settings: Any) -> Any:
    return open_backend(parse(f"hf:{folder}"), 0, Settings(**{"train_length": 600, **settings}))


def asked(opened: Any, task: str = "niah.multiquery", n: int = 3, length: int = 300) -> tuple[list[Any], list[list[Ask]]]:
    items = [TASKS[task].item(i, length=length, tokenizer=opened.tokenizer) for i in range(n)]
    return [item.context for item in items], [asks_of(item) for item in items]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_whole_forward_passes(folders: dict[str, Path], kind: str) -> None:
    opened = backend(folders[kind])
    assert opened._reader.cached is (not kind.startswith("mamba"))
    contexts, questions = asked(opened, n=2)
    for context, asks, replies in zip(contexts, questions, opened.reply(contexts, questions), strict=True):
        for ask, reply in list(zip(asks, replies, strict=True))[:2]:
            prompt = context + ask.text + ask.answer_prefix
            ids = opened.tokenizer.encode(prompt)
            text, value = definition(opened.model, opened.tokenizer, ids, ask, prompt, frozenset([2]))
            assert reply.output == text and abs(reply.gold_logprob - value) <= TOLERANCE


def test_an_answer_does_not_depend_on_the_batch(folders: dict[str, Path]) -> None:
    opened = backend(folders["sliding"])
    contexts, questions = asked(opened)
    contexts[1] = contexts[1][100:]
    alone = [opened.reply([context], [[ask]])[0] for context, asks in zip(contexts, questions, strict=True) for ask in asks]
    together = [[reply] for row in opened.reply(contexts, questions) for reply in row]
    same(alone, together)


def test_a_cache_that_forgets_is_not_used(folders: dict[str, Path]) -> None:
    from proteus_bench.backends.hf_model import CachedModel

    opened = backend(folders["llama"])
    contexts, questions = asked(opened, n=1)
    right = opened.reply(contexts, questions)
    forward = opened.model.forward

    def forgetful(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    opened.model.forward = forgetful
    opened._reader = CachedModel(opened.model)
    assert not opened._reader.cached
    same(opened.reply(contexts, questions), right)


def test_a_context_is_read_once_however_many_questions_it_has(folders: dict[str, Path]) -> None:
    opened = backend(folders["llama"])
    contexts, questions = asked(opened, n=1)
    read = []
    inner = opened._reader._read

    def counted(ids_BT: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        read.append(ids_BT.numel())
        return inner(ids_BT, *args, **kwargs)

    opened._reader._read = counted
    opened.reply(contexts, questions)
    context = len(opened.tokenizer.encode(contexts[0]))
    assert len(questions[0]) == 4 and sum(n >= context for n in read) == 1


@pytest.mark.parametrize("name", ["gdn+proteus", "titans"])
def test_our_model_in_a_folder_answers_as_in_the_zoo(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
    ours = open_backend(parse(name), 0)
    theirs = backend(save_own(tmp_path / "ours", tiny_zoo, name), train_length=None)
    assert theirs.tokenizer.fingerprint == ours.tokenizer.fingerprint
    assert (theirs.info.n_params, theirs.info.state_bytes, theirs.info.train_length) == (
        ours.info.n_params, ours.info.state_bytes, ours.info.train_length,
    )  # fmt: skip
    assert theirs.info.capacity == ours.info.capacity and theirs.info.max_length is None
    contexts, questions = asked(ours, length=512)
    same(ours.reply(contexts, questions), theirs.reply(contexts, questions))


def test_a_schedule_can_be_put_on_our_folder_and_on_no_other(
    tiny_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]
) -> None:
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(tiny_zoo))
    folder = save_own(tmp_path / "ours", tiny_zoo, "gdn+proteus")
    ours = open_backend(parse("gdn+static(weights=proteus)"), 0)
    theirs = open_backend(parse(f"hf:{folder}+static"), 0, Settings())
    contexts, questions = asked(ours, length=512)
    same(ours.reply(contexts, questions), theirs.reply(contexts, questions))
    with pytest.raises(UsageError, match="only models of proteus-bench"):
        open_backend(parse(f"hf:{folders['llama']}+proteus"), 0, Settings())


def test_a_long_document_is_read_in_windows(folders: dict[str, Path]) -> None:
    from proteus_bench.backends.prompted import windows

    opened = backend(folders["llama"])
    text = " ".join(f"harbor {n} opens." for n in range(700))
    ids = opened.tokenizer.encode(text)
    assert len(ids) > 3 * opened.info.max_length
    parts = windows(1, ids, 600)
    assert [t for _, part in parts for t in part] == ids and all(len(b) + len(p) <= 601 for b, p in parts)
    total = 0.0
    for before, part in parts:
        logits = opened.model(input_ids=torch.tensor([before + part]), use_cache=False).logits.double().log_softmax(-1)
        total += float(logits[0, len(before) - 1 : -1].gather(1, torch.tensor(part)[:, None]).sum().detach())
    reply = opened.reply([""], [[Ask("", "", text, 0)]])[0][0]
    assert reply.gold_logprob == pytest.approx(total, abs=0.05) and reply.gold_tokens == len(ids)


def test_chat_mode_asks_through_the_template_and_items_leave_room_for_it(folders: dict[str, Path]) -> None:
    opened, plain = backend(folders["chat"], chat=True), backend(folders["chat"])
    made = opened.tokenizer
    assert plain.tokenizer.special_tokens == 0 < made.special_tokens
    assert made.fingerprint == f"{plain.tokenizer.fingerprint}+{made.special_tokens}"
    item = TASKS["niah.single_1"].item(0, length=300, tokenizer=made)
    question = item.questions[0]
    ids = made.prompt_ids(item.context, question.text, question.answer_prefix)
    wanted = f"[user] {item.context}{question.text}\n[assistant]{question.answer_prefix.lstrip()}"
    assert ids == made.encode(wanted)
    assert len(ids) + question.max_new_tokens <= item.reached <= 300
    ask = asks_of(item)[0]
    text, value = definition(opened.model, made, ids, ask, wanted, frozenset([2]))
    reply = opened.reply([item.context], [[ask]])[0][0]
    assert reply.output == text and abs(reply.gold_logprob - value) <= TOLERANCE
    assert (opened.info.settings, plain.info.settings) == ({"prompting": "chat"}, {"prompting": "base"})


def test_a_begin_token_stands_before_the_prompt_and_counts(folders: dict[str, Path]) -> None:
    opened = backend(folders["begin"])
    assert opened.tokenizer.special_tokens == 1 and opened.tokenizer.fingerprint.endswith("+1")
    assert opened.tokenizer.prompt_ids("The harbor", " opens", "") == [1, *opened.tokenizer.encode("The harbor opens")]
    contexts, questions = asked(opened, n=1)
    ask, prompt = questions[0][0], contexts[0] + questions[0][0].text + questions[0][0].answer_prefix
    text, value = definition(opened.model, opened.tokenizer, [1, *opened.tokenizer.encode(prompt)], ask, prompt, frozenset([2]))
    reply = opened.reply(contexts, questions)[0][0]
    assert reply.output == text and abs(reply.gold_logprob - value) <= TOLERANCE


def test_folders_that_cannot_be_read_are_one_line(tmp_path: Path, folders: dict[str, Path]) -> None:
    bad = save(tmp_path / "bad")
    (bad / "model.safetensors").write_bytes(b"nonsense")
    foreign = save(tmp_path / "foreign")
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    bare = save(tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    for folder, kind, text in (
        (tmp_path / "none", UsageError, "no folder with a config.json"),
        (bad, InvalidFileError, "no causal language model"),
        (foreign, InvalidFileError, "unheard_of"),
        (bare, InvalidFileError, "tokenizer"),
    ):
        with pytest.raises(kind, match=text) as caught:
            backend(folder)
        assert isinstance(caught.value, BenchError) and "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="--train-length"):
        backend(folders["mamba"], train_length=None)
    with pytest.raises(UsageError, match="no chat template"):
        backend(folders["llama"], chat=True)


def test_a_type_that_flash_linear_attention_brings_is_read_with_it(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own kernels need a GPU: a package of its name and shape stands for it, with a type that transformers lacks."""
    package = tmp_path / "site" / "fla" / "models"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM\n"
        "class C(LlamaConfig):\n    model_type = 'gated_linear'\n"
        "class M(LlamaForCausalLM):\n    config_class = C\n"
        "AutoConfig.register('gated_linear', C)\nAutoModelForCausalLM.register(C, M)\n"
    )
    folder = save(tmp_path / "gla")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gated_linear"}))
    with pytest.raises(InvalidFileError, match="gated_linear"):
        backend(folder)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    contexts, questions = asked(backend(folder), n=1)
    same(backend(folder).reply(contexts, questions), backend(folders["llama"]).reply(contexts, questions))


def test_a_run_of_a_folder_is_whole_and_checked(
    cli: Any, tiny_suite: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model = f"hf:{folders['chat']}"
    run = ("run", "--model", model, "--suite", tiny_suite, "--chat")
    done = cli(*run, "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["comparisons"] == [] and {cell["model"] for cell in document["cells"]} == {model}
    held = json.loads((tmp_path / "run" / "run.json").read_text())["records"][0]
    assert held["identity"]["settings"] == {"prompting": "chat"} and held["backend"] == "hf" and held["model"] == "hf:chat"
    assert all(cell["ci_low"] <= cell["score"] <= cell["ci_high"] for cell in held["cells"])
    assert all(cell["logprob_ci_low"] < cell["logprob"] < cell["logprob_ci_high"] for cell in held["cells"])
    assert len(list((tmp_path / "run" / "tokenizers").glob("*.json"))) == 1
    first = (tmp_path / "run" / "run.json").read_bytes()
    assert cli(*run, "--out", "again").returncode == 0
    second = (tmp_path / "again" / "run.json").read_bytes()
    assert json.loads(first)["records"] == json.loads(second)["records"]
    assert cli("leaderboard", "submit", "run", "--out", "bundle").returncode == 0
    checked = cli("leaderboard", "verify", "bundle", "--level", "2", "--suite", tiny_suite)
    assert checked.returncode == 0, checked.stderr + checked.stdout


def test_seeds_are_sub_folders(cli: Any, tiny_suite: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        save(tmp_path / "mine" / f"seed{seed}")
    assert cli("run", "--model", "hf:./mine", "--suite", tiny_suite, "--limit", "2", "--out", "run").returncode == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [record["seed"] for record in run["records"]] == [0, 1]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (["--suite", "niah4k"], 2, "takes at most 600 tokens; suite niah4k has 4096"),
        (["--device", "cuda"], 4, "CUDA"),
        (["--chat"], 2, "chat template"),
        (["--seeds", "3"], 2, "there are 1 seed(s)"),
        (["--dtype", "float8"], 2, "dtype"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_work(
    cli: Any, tiny_suite: str, folders: dict[str, Path], tmp_path: Path, args: list[str], code: int, text: str
) -> None:
    if "cuda" in args and torch.cuda.is_available():
        args, code, text = ["--device", "gpu"], 2, "device"
    suite = [] if "--suite" in args else ["--suite", tiny_suite]
    done = cli("run", "--model", f"hf:{folders['llama']}", *suite, *args, "--out", "run")
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "manifest.json").exists()
