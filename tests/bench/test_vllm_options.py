"""What the `vllm:` back end decides before vLLM is there: options, devices of workers, what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.backends import open_backend, vllm
from proteus_bench.backends.base import AskIds
from proteus_bench.backends.served import Gold, Prompt, ServedBackend
from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.runner.models import parse


def test_options_of_the_engine_are_json_or_words() -> None:
    texts = ["max_model_len=4096", "gpu_memory_utilization=0.8", "enforce_eager=true", "quantization=fp8", "enable_lora = False"]
    assert vllm.engine_options(texts) == {
        "max_model_len": 4096, "gpu_memory_utilization": 0.8, "enforce_eager": True, "quantization": "fp8", "enable_lora": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eager", "write key=value"),
        ("=1", "write key=value"),
        ("a b=1", "write key=value"),
        ("tokenizer=x", "no engine option here"),
        ("data_parallel_size=4", "one replica: --workers N"),
    ],
)
def test_other_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vllm.engine_options([text])


def test_workers_take_turns_on_the_visible_gpus() -> None:
    assert [vllm.worker_device((i,), ["4", "6"]) for i in (1, 2, 3)] == ["4", "6", "4"]
    assert vllm.worker_device((), ["0", "1"]) is None and vllm.worker_device((1,), ["0"]) is None
    assert vllm.worker_device((1,), []) is None


def test_without_vllm_a_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name))
    with pytest.raises(EnvironmentFault, match=r"pip install 'proteus-bench\[vllm\]'"):
        open_backend(parse(f"vllm:{tmp_path}"), 0)


class _Counter(ServedBackend):
    """An engine that continues n with n+1, n+2, ... and finds a gold as long as it is in nats."""

    def __init__(self, limit: int | None) -> None:
        self.info: Any = type("Info", (), {"max_length": limit, "model": "counter"})()

    def generate(self, prompts: list[Prompt]) -> list[list[int]]:  # type: ignore[override]
        return [[ids[-1] + 1 + i for i in range(ask.max_new_tokens)] for ids, ask in prompts]

    def score(self, prompts: list[Prompt]) -> list[Gold]:  # type: ignore[override]
        return [(-float(len(ask.gold_ids)), True) for _, ask in prompts]


def test_answers_end_at_a_stop_and_belong_to_their_question() -> None:
    asks = [[AskIds([5], [9], 4, frozenset([8])), AskIds([50], [9, 9], 0)], [], [AskIds([7], [1, 2, 3], 3)]]
    found = _Counter(None).answer([[1], [2], [3]], asks)
    assert [[a.text_ids for a in row] for row in found] == [[[6, 7], []], [], [[8, 9, 10]]]
    assert [[a.gold_logprob for a in row] for row in found] == [[-1.0, -2.0], [], [-3.0]]


def test_a_prompt_that_leaves_no_room_is_refused_and_windows_leave_it() -> None:
    assert _Counter(None).window_limit is None and _Counter(10).window_limit == 8
    _Counter(10).answer([[1] * 5], [[AskIds([1] * 2, [1], 3)]])
    with pytest.raises(UsageError, match="at most 10 tokens; 11 are needed"):
        _Counter(10).answer([[1] * 5], [[AskIds([1] * 2, [1], 4)]])
    with pytest.raises(UsageError, match="11 are needed"):  # prompt, gold, and the one that an engine must generate
        _Counter(10).answer([[1] * 5], [[AskIds([1] * 2, [1] * 3, 0)]])
