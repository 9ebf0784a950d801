"""`vllm:PATH` and `vllm:http://...` in our runner: the log-probabilities of our own models and of transformers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import decoder

from proteus_bench.backends import Ask, Settings, forget, open_backend
from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.runner.models import parse
from proteus_bench.store import read_log
from proteus_models.tokenizer import MicroTokenizer, build

pytestmark = pytest.mark.vllm
OWN = "titans+uniform(blocks=4)"
SUITE = """id = "tiny256"
version = "1"
description = "for tests"
data_seed = 0
split = "test"
length = 256
n = 2
tasks = ["niah.single_1", "niah.multiquery"]
"""
CONTEXTS = ["The key of the harbor is 1 2 3 4 5 6 7. The sea was calm, and nobody spoke.", "Fellow citizens of the House."]
ASKS = [Ask(" The key of the harbor is", "", " 1 2 3 4", 5), Ask(" Who spoke?", " It was", " the sea.", 4, "line")]


@pytest.fixture(scope="module")
def own_zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`titans+uniform` at random weights under a tokenizer that was trained here."""
    from proteus_models.checkpoint import save_checkpoint
    from proteus_tasks import haystack

    path = tmp_path_factory.mktemp("zoo")
    build(haystack.sentences("train")[:3000], [], 700).save(str(path / "tokenizer.json"))
    vocab = MicroTokenizer.from_file(path / "tokenizer.json").vocab_size
    model = decoder("titans", "value", vocab=vocab)
    save_checkpoint(path / "titans+uniform" / "seed0", model, {"name": "titans+uniform", "seed": 0, "status": "complete"})
    return path


@pytest.fixture(scope="module")
def folder(own_zoo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model and tokenizer saved for transformers."""
    from proteus_models import zoo
    from proteus_models.hf import fast_tokenizer, from_decoder

    path = tmp_path_factory.mktemp("saved") / "tiny"
    from_decoder(zoo.load("titans", "uniform", root=own_zoo).model).save_pretrained(path)
    fast_tokenizer(own_zoo / "tokenizer.json").save_pretrained(path)
    return path


@pytest.fixture
def run(own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[Any, dict[str, Any]]]:
    """`run(model, *flags)`: the rows of a run of the command line, by item and question."""
    from proteus_bench.cli import invoke

    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(own_zoo))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(SUITE)

    def call(model: str, *flags: str) -> dict[Any, dict[str, Any]]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        wanted = ["run", "--model", model, "--suite", "suite.toml", "--no-twin", "--workers", "1", "--out", str(out), *flags]
        assert invoke(wanted) == 0
        forget()
        logs = [path for path in (out / "cells").glob("*.jsonl") if not path.name.endswith(".seconds.jsonl")]
        return {(row["item"], row["question"]): row for log in logs for row in read_log(log)}

    return call


def same(found: dict[Any, dict[str, Any]], mine: dict[Any, dict[str, Any]], told_ids: bool = True) -> None:
    """A plain server tells no ids: a text has several spellings, and half a letter at its end is left out."""
    assert found.keys() == mine.keys() and len(mine) >= 8
    for key, row in found.items():
        assert row["logprob"] == pytest.approx(mine[key]["logprob"], abs=1e-4)
        assert row["strict"] == mine[key]["strict"]
        if told_ids:
            assert row["output_ids"] == mine[key]["output_ids"]
        else:
            short, long = sorted((row["output"], mine[key]["output"]), key=len)
            assert short and long.startswith(short)


def test_the_engine_scores_as_the_zoo_and_transformers_do(run: Any, folder: Path) -> None:
    mine = run(OWN)
    same(run(f"hf:{folder}"), mine)
    same(run(f"vllm:{folder}", "--engine", "max_model_len=400,max_num_batched_tokens=64,max_num_seqs=3"), mine)


def test_a_schedule_in_the_models_name_reaches_the_engine(run: Any, folder: Path) -> None:
    model = f"{folder}+late(blocks=4)"
    found = run(f"vllm:{model}", "--engine", "max_model_len=400")
    same(found, run(f"hf:{model}"))
    assert [row["logprob"] for row in found.values()] != [row["logprob"] for row in run(OWN).values()]


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    """The address of vLLM's own OpenAI-compatible server of the model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    options = ["--max-model-len", "400", "--max-num-batched-tokens", "64", "--max-num-seqs", "4"]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "tiny"]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port), *options], env=env)
    address = f"http://127.0.0.1:{port}/v1"
    try:
        for _ in range(600):
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"{address}/models", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def test_vllms_own_server_scores_alike(run: Any, server: str, folder: Path) -> None:
    mine = run(OWN)
    same(run(f"vllm:{server}"), mine)
    same(run(f"openai:{server}#tiny"), mine, told_ids=False)
    limited = open_backend(parse(f"vllm:{server}"), 0)
    assert limited.info.max_length == 400 and limited.info.settings["logprobs"] == "echo"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama at random weights with a begin token and a chat template."""
    from tokenizers import processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from proteus_tasks import haystack

    path = tmp_path_factory.mktemp("llama")
    inner = build(haystack.sentences("train")[:3000], [], 700)
    inner.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}User:{{ m['content'] }}\nModel:{% endfor %}"
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def test_anybodys_model_in_base_and_chat_mode(stranger: Path) -> None:
    for chat in (False, True):
        settings = Settings(chat=chat)
        asks = [ASKS, ASKS[:1]]
        theirs = open_backend(parse(f"hf:{stranger}"), 0, settings)
        expected = theirs.reply(CONTEXTS, asks)
        backend = open_backend(parse(f"vllm:{stranger}"), 0, settings)
        found = backend.reply(CONTEXTS, asks)
        document = [[Ask("", "", "The sea was calm. " * 90, 0)]]
        windows = [one.reply([""], document)[0][0].gold_logprob for one in (theirs, backend)]
        backend.close()
        assert (backend.info.max_length, backend.info.sha256) == (512, theirs.info.sha256)
        for one, other in zip([r for row in found for r in row], [r for row in expected for r in row], strict=True):
            assert one.gold_logprob == pytest.approx(other.gold_logprob, abs=1e-3)
            assert (one.output_ids, one.gold_is_greedy, one.gold_tokens) == (
                other.output_ids, other.gold_is_greedy, other.gold_tokens,
            )  # fmt: skip
        assert windows[0] is not None and windows[1] == pytest.approx(windows[0], rel=0.02)  # windows differ by two tokens


def test_what_vllm_cannot_do_is_one_line(folder: Path, tmp_path: Path) -> None:
    def refused(*engine: str, kind: type[Exception] = UsageError, message: str) -> None:
        with pytest.raises(kind, match=message) as caught:
            open_backend(parse(f"vllm:{folder}"), 0, Settings(engine=engine))
        assert "\n" not in str(caught.value)

    refused("max_model", message="write key=value")
    refused("no_such_option=1", message="does not know this engine option")
    refused("model=other", message="no engine option here")
    refused("data_parallel_size=2", message="--workers N")
    refused("enable_prefix_caching=true", kind=InvalidFileError, message="no prefix caching")
    with pytest.raises(UsageError, match="no folder with a config.json"):
        open_backend(parse(f"vllm:{tmp_path}"), 0)
    with pytest.raises(UsageError, match="no chat template"):
        open_backend(parse(f"vllm:{folder}"), 0, Settings(chat=True))
