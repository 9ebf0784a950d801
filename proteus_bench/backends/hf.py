"""`hf:PATH`: any causal language model in a folder that transformers can read, scored like our own models.

The prompt is encoded as one text, as other harnesses do, and the gold is what it adds to it. What the prompts of one context
have in common is read once (`hf_model`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import Answer, Ask, AskIds, BackendInfo, Reply, Settings
from proteus_bench.backends.encoding import continuation_ids, stop_ids
from proteus_bench.backends.external import (
    CONFIG,
    OWN,
    checkpoint_folder,
    external_weights,
    position_limit,
    size_name,
    train_length_of,
)
from proteus_bench.backends.tokens import reply_of
from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.grammar import ModelSpec
from proteus_bench.store.canonical import canonical_json, digest, file_digest
from proteus_bench.store.folder import read_json


class HFBackend:
    """One folder, or one ``seed<k>`` of it. Raises UsageError for a folder, device or chat template that is not there,
    InvalidFileError for files that transformers cannot read."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings) -> None:
        from proteus_bench.backends.hf_model import CachedModel
        from proteus_bench.backends.hf_tokenizer import HFTokenizer

        folder = checkpoint_folder(spec, seed)
        config = {key: value for key, value in read_json(folder / CONFIG).items() if key != "_name_or_path"}
        if config.get("model_type") == OWN:
            import proteus_models.hf  # noqa: F401  makes transformers know the type
        weights = external_weights(spec)
        train_length = train_length_of(config, settings, str(spec))
        self._tokenizer = HFTokenizer(folder, chat=settings.chat)
        self.model = _load(folder, settings)
        if not weights.exact:
            self.model.set_capacity(weights.capacity)
        self._reader = CachedModel(self.model)
        self._ends = self._tokenizer.end_ids | _end_ids(self.model.generation_config)
        n_params = sum(parameter.numel() for parameter in self.model.parameters())
        self.info = BackendInfo(
            model=f"{spec.source}:{Path(spec.name).expanduser().resolve().name}",
            schedule=spec.schedule or weights.trained,
            size=spec.size or size_name(n_params),
            seed=seed,
            n_params=n_params,
            state_bytes=int(self.model.model.init_state(1).nbytes) if config.get("model_type") == OWN else 0,
            train_length=train_length,
            max_length=position_limit(config),
            dtype=str(self.model.dtype).removeprefix("torch."),
            device=self.model.device.type,
            sha256=weights_digest(folder),
            config_sha256=hashlib.sha256(canonical_json(config)).hexdigest(),
            tokenizer_sha256=self._tokenizer.fingerprint,
            memory=weights.memory,
            trained_schedule=weights.trained,
            capacity=weights.capacity.as_dict(),
            config=config,
            backend=spec.source,
            settings={"prompting": "chat" if settings.chat else "base"},
        )

    @property
    def tokenizer(self) -> Any:
        """The folder's own, in the form that suites need."""
        return self._tokenizer

    def memory_model(self) -> Any:
        """The memory for the state side of probes, of our own models; None for others."""
        if self.info.config.get("model_type") != OWN:
            return None
        from proteus_models.exposed import expose

        return expose(self.model.model)

    def close(self) -> None:
        """Free the weights."""
        import torch

        del self.model, self._reader
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """See `base.Backend.reply`. A document longer than the model's context is read in windows."""
        from proteus_bench.backends.recurrent import answer_recurrent

        rows: list[list[int]] = []
        asked: list[list[AskIds]] = []
        places: list[list[list[tuple[int, int]]]] = []  # by context and question: where its answers will stand
        for context, asks in zip(contexts, questions, strict=True):
            prompts = [self._tokenizer.prompt_ids(context, ask.text, ask.answer_prefix) for ask in asks]
            shared = _shared([prompt for prompt in prompts if prompt])
            rows.append(shared)
            asked.append([])
            places.append([])
            home = len(rows) - 1
            for ask, prompt in zip(asks, prompts, strict=True):
                if prompt:
                    places[-1].append([(home, len(asked[home]))])
                    asked[home].append(self._ask_ids(context, ask, prompt[len(shared) :]))
                    continue
                places[-1].append([])
                for before, window in self._document(ask.gold):
                    places[-1][-1].append((len(rows), 0))
                    rows.append(before[:-1])
                    asked.append([AskIds(before[-1:], window, 0)])
        answers = answer_recurrent(self._reader, rows, asked)
        lengths = [max(1, len(self._tokenizer.encode(context))) for context in contexts]
        return [
            [
                _joined(self._tokenizer, [(asked[r][c], answers[r][c]) for r, c in parts], length)
                for parts in of_context
            ]
            for of_context, length in zip(places, lengths, strict=True)
        ]

    def _ask_ids(self, context: str, ask: Ask, prompt_ids: list[int]) -> AskIds:
        tokenizer = self._tokenizer
        gold_ids = continuation_ids(tokenizer, *tokenizer.seam(context, ask.text, ask.answer_prefix, ask.gold))
        stops = stop_ids(tokenizer, ask.stop) | self._ends
        return AskIds(prompt_ids, gold_ids, ask.max_new_tokens, stops)

    def _document(self, text: str) -> list[tuple[list[int], list[int]]]:
        """(what stands before, tokens) of the windows of a document behind the begin token."""
        return windows(self._tokenizer.begin_id, self._tokenizer.encode(text), self.info.max_length)


def _shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """What all prompts begin with, less so much that something is left of each."""
    if not prompts:
        return []
    size = min(map(len, prompts)) - 1
    first = list(prompts[0])
    for other in prompts[1:]:
        size = next((i for i in range(size) if first[i] != other[i]), size)
    return first[:size]


def windows(begin_id: int, ids: list[int], limit: int | None) -> list[tuple[list[int], list[int]]]:
    """A document in parts that a model of ``limit`` tokens can read: (tokens before, tokens to predict), each token once.

    The rolling windows of lm-eval: a part has as many tokens as fit behind one token before it; the last one is given as
    much before it as fits.
    """
    if limit is None or len(ids) <= limit:
        return [([begin_id], ids)]
    parts = [([begin_id], ids[:limit])]
    for start in range(limit, len(ids), limit):
        end = min(start + limit, len(ids))
        parts.append((ids[end - limit - 1 : start], ids[start:end]))
    return parts


def _joined(tokenizer: Any, parts: list[tuple[AskIds, Answer]], context_tokens: int) -> Reply:
    """One reply of the windows of a document; of one answer otherwise."""
    ask = replace(parts[0][0], gold_ids=[token for part, _ in parts for token in part.gold_ids])
    logprob = sum(answer.gold_logprob for _, answer in parts)
    answer = replace(parts[0][1], gold_logprob=logprob, seconds=sum(found.seconds for _, found in parts))
    return reply_of(tokenizer, ask, answer, context_tokens)


def weights_digest(folder: Path) -> str:
    """sha256 of the weights: of the file where there is one, over the names and hashes of several."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files:
        raise InvalidFileError(f"{folder} holds no weights (*.safetensors, *.bin)")
    if len(files) == 1:
        return file_digest(files[0])
    return digest({path.name: file_digest(path) for path in files})


def _load(folder: Path, settings: Settings) -> Any:
    """The model in evaluation mode. Code that lies in the folder is never run."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise EnvironmentFault("no CUDA device is here")
    device = "cuda" if has_gpu and settings.device != "cpu" else "cpu"
    dtype: Any = "auto" if device == "cuda" else torch.float32
    if settings.dtype != "auto":
        dtype = getattr(torch, settings.dtype)
    showing = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidFileError(f"{folder} is no causal language model that transformers can read: {reason}"[:400]) from error
    finally:
        if showing:
            logging.enable_progress_bar()
    return model.to(device).eval()


def _end_ids(generation: Any) -> frozenset[int]:
    """The tokens at which the model itself says that its text ends."""
    found = getattr(generation, "eos_token_id", None)
    return frozenset([found] if isinstance(found, int) else found or ())
