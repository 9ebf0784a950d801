"""`vllm:http://...` and `openai:http://...` against a server of a real model: equal numbers, and one line for what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.backends import Ask, Settings, completions, open_backend
from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.runner.models import parse
from proteus_bench.store import read_log
from tests.bench.model_server import ModelServer

pytestmark = pytest.mark.hf
Serve = Callable[..., ModelServer]
ASK = Ask("The key of the harbor is", "", " 1234567.", 6)
CONTEXTS = ["The key of the harbor is 1234567. The sea was calm.", "Fellow citizens of the Senate and of the House."]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completions, "FIRST_PAUSE", 0.001)


@pytest.fixture(scope="module")
def sharp_zoo(tiny_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One seed of `titans+proteus` of the tiny zoo with a larger embedding: no two tokens are as good as equally likely."""
    from proteus_models import zoo
    from proteus_models.checkpoint import save_checkpoint

    path = tmp_path_factory.mktemp("sharp")
    shutil.copy(tiny_zoo / "tokenizer.json", path / "tokenizer.json")
    loaded = zoo.load("titans", "proteus", seed=0, root=tiny_zoo)
    loaded.model.embed.weight.data.mul_(8)
    save_checkpoint(path / "titans+proteus" / "seed0", loaded.model, loaded.card)
    return path


@pytest.fixture(scope="module")
def folder(sharp_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model saved for transformers."""
    from proteus_models import zoo
    from proteus_models.hf import fast_tokenizer, from_decoder

    path = tmp_path_factory.mktemp("served") / "tiny"
    from_decoder(zoo.load("titans", "proteus", root=sharp_zoo).model).save_pretrained(path)
    fast_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def serve(folder: Path, sharp_zoo: Path) -> Serve:
    """`serve(**ways)`: see ModelServer."""
    from proteus_models import zoo

    loaded = zoo.load("titans", "proteus", root=sharp_zoo)

    def start(**ways: Any) -> ModelServer:
        return ModelServer(loaded.model, loaded.tokenizer, **({"root": str(folder)} | ways))

    return start


def rows(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    logs = [path for path in (folder / "cells").glob("*.jsonl") if not path.name.endswith(".seconds.jsonl")]
    return {(row["item"], row["question"]): row for log in logs for row in read_log(log)}


def replies(model: str, settings: Settings) -> list[Any]:
    backend = open_backend(parse(model), 0, settings)
    return [reply for row in backend.reply(CONTEXTS, [[ASK], [ASK]]) for reply in row]


def test_a_server_scores_as_the_zoo_and_transformers_do(
    cli: Any, serve: Serve, folder: Path, sharp_zoo: Path, tiny_suite: str, tmp_path: Path
) -> None:
    run = ("--suite", tiny_suite, "--limit", "2", "--no-twin", "--workers", "1")
    with serve(busy=2, dropped=1) as server:
        served = {"vllm": f"vllm:{server.address}", "openai": f"openai:{server.address}#tiny"}
        for name, model in ({"zoo": "titans+proteus", "hf": f"hf:{folder}"} | served).items():
            done = cli("run", "--model", model, *run, "--out", name, zoo=sharp_zoo)
            assert done.returncode == 0, done.stderr
    mine = rows(tmp_path / "zoo")
    assert len(mine) > 4 and server.busy == server.dropped == 0
    for name in ("hf", "vllm", "openai"):
        found = rows(tmp_path / name)
        assert found.keys() == mine.keys()
        for key, row in found.items():
            assert abs(row["logprob"] - mine[key]["logprob"]) <= 1e-4
            answer = "output" if name == "openai" else "output_ids"  # a plain server tells no ids: a text has several spellings
            assert (row[answer], row["strict"]) == (mine[key][answer], mine[key]["strict"])


def test_the_ids_sent_are_the_prompt_and_vllm_alone_is_sent_its_own_fields(serve: Serve, folder: Path) -> None:
    with serve() as server:
        for source in ("vllm", "openai"):
            server.requests.clear()
            found = replies(f"{source}:{server.address}", Settings())
            tokenizer = server.tokenizer
            sent = [body for body in server.requests if not body.get("echo")]
            assert sorted(body["prompt"] for body in sent) == sorted(tokenizer.encode(c + ASK.text) for c in CONTEXTS)
            assert all(("stop_token_ids" in body) == (source == "vllm") for body in sent)
            assert [reply.gold_is_greedy for reply in found] == [False, False]
            likeliest = [server.greedy(tokenizer.encode(c + ASK.text), 6, set()) for c in CONTEXTS]
            stops = set(next(iter(body["stop_token_ids"] for body in sent if source == "vllm"), ()))
            assert all(set(reply.output_ids) <= set(ids) for reply, ids in zip(found, likeliest, strict=True))
            assert not stops & {token for reply in found for token in reply.output_ids}


@pytest.mark.parametrize("ways", [{"echo": False}, {"ids": False}, {"ids": False, "echo": False}])
def test_without_log_probabilities_answers_are_scored_and_the_rest_is_null(
    ways: dict[str, bool], cli: Any, serve: Serve, tiny_suite: str, tmp_path: Path
) -> None:
    with serve(is_vllm=False, **ways) as server:
        model = f"openai:{server.address}"
        done = cli("run", "--model", model, "--suite", tiny_suite, "--limit", "1", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "gives no log-probabilities: only its answers are scored" in " ".join(done.stdout.split())
    assert "diverged" not in done.stdout
    assert {(row["logprob"], row["unscored"]) for row in rows(tmp_path / "run").values()} == {(None, True)}
    assert all(row["output_ids"] for row in rows(tmp_path / "run").values())


def test_a_task_of_log_probabilities_alone_is_refused_without_them(serve: Serve) -> None:
    with serve(echo=False) as server:
        backend = open_backend(parse(f"vllm:{server.address}"), 0)
        with pytest.raises(EnvironmentFault, match="asks for nothing else"):
            backend.reply(CONTEXTS[:1], [[Ask("The", "", " sea", 0)]])


def test_items_longer_than_the_server_takes_are_refused_before_any_work(cli: Any, serve: Serve, tiny_suite: str) -> None:
    with serve(max_model_len=500) as server:
        done = cli("run", "--model", f"vllm:{server.address}", "--suite", tiny_suite)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("takes at most 500 tokens; suite tiny512 has 512")
    assert all(len(body["prompt"]) < 20 for body in server.requests)  # it was asked what it can do, and nothing else


def test_a_server_that_stops_answering_ends_the_run_with_one_line(cli: Any, serve: Serve, tiny_suite: str) -> None:
    with serve() as server:
        address = server.address
    for model in (f"vllm:{address}", f"openai:{address}"):
        done = cli("run", "--model", model, "--suite", tiny_suite)
        assert done.returncode == 4 and "no answer in 4 tries" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    with serve(busy=10**6) as server:
        done = cli("run", "--model", f"vllm:{server.address}", "--suite", tiny_suite)
        assert done.returncode == 4 and "no answer in 8 tries" in done.stderr and len(server.requests) == 8


@pytest.mark.parametrize(
    ("name", "ways", "settings", "message"),
    [
        ("#other", {}, Settings(), "unknown model of .* 'other'; choose from tiny"),
        ("", {"names": ("one", "two")}, Settings(), "serves one, two: name one, ADDRESS#MODEL"),
        ("", {"names": ()}, Settings(), "serves no model"),
        ("", {"root": "some/hub-name"}, Settings(), "no folder of this machine with a tokenizer: give --tokenizer"),
        ("", {}, Settings(tokenizer="elsewhere"), "elsewhere is no folder of this machine"),
        ("", {"root": "x", "max_model_len": None}, Settings(), "give --train-length"),
        ("", {}, Settings(chat=True), "no chat template"),
        ("+proteus", {}, Settings(), "ask without it"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    name: str, ways: dict[str, Any], settings: Settings, message: str, serve: Serve
) -> None:
    with serve(**ways) as server, pytest.raises(UsageError, match=message):
        open_backend(parse(f"openai:{server.address}{name}"), 0, settings)


def test_a_tokenizer_of_another_folder_serves_a_model_that_lies_elsewhere(serve: Serve, folder: Path) -> None:
    settings = Settings(tokenizer=str(folder), train_length=256)
    with serve(root="some/hub-name") as server:
        backend = open_backend(parse(f"vllm:{server.address}"), 0, settings)
        here = open_backend(parse(f"hf:{folder}"), 0)
        for one, other in zip(backend.reply(CONTEXTS, [[ASK], []]), here.reply(CONTEXTS, [[ASK], []]), strict=True):
            assert [r.gold_logprob for r in one] == pytest.approx([r.gold_logprob for r in other], abs=1e-4)
    assert backend.info.size == "unknown" and backend.info.max_length == 1024


def test_an_address_needs_its_scheme_and_a_path_its_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="begins with http"):
        open_backend(parse("openai:localhost:8000/v1"), 0)
    with pytest.raises(UsageError, match="no folder with a config.json"):
        open_backend(parse(f"vllm:{tmp_path}"), 0)
