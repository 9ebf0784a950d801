"""`hf:PATH`: any causal language model in a folder that transformers can read, scored like our own models.

What the prompts of one context have in common is read once (`hf_model`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import Answer, AskIds, Ids, Settings
from proteus_bench.backends.external import (
    OWN,
    checkpoint_folder,
    external_info,
    external_weights,
    folder_config,
    position_limit,
    train_length_of,
    weights_digest,
)
from proteus_bench.backends.prompted import PromptedBackend
from proteus_bench.errors import EnvironmentFault, InvalidFileError
from proteus_bench.grammar import ModelSpec


class HFBackend(PromptedBackend):
    """One folder, or one ``seed<k>`` of it. Raises UsageError for a folder, device or chat template that is not there,
    InvalidFileError for files that transformers cannot read."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings) -> None:
        from proteus_bench.backends.hf_model import CachedModel
        from proteus_bench.backends.hf_tokenizer import HFTokenizer

        folder = checkpoint_folder(spec, seed)
        config = folder_config(folder)
        _register(str(config.get("model_type")))
        weights = external_weights(spec)
        train_length = train_length_of(config, settings, str(spec))
        self._tokenizer = HFTokenizer(folder, chat=settings.chat)
        self.model = _load(folder, settings)
        if not weights.exact:
            self.model.set_capacity(weights.capacity)
        self._reader = CachedModel(self.model)
        self._ends = self._tokenizer.end_ids | _end_ids(self.model.generation_config)
        self.info = external_info(
            spec, seed, settings, weights, config, tokenizer=self._tokenizer,
            n_params=sum(parameter.numel() for parameter in self.model.parameters()),
            state_bytes=int(self.model.model.init_state(1).nbytes) if config.get("model_type") == OWN else 0,
            train_length=train_length, max_length=position_limit(config),
            dtype=str(self.model.dtype).removeprefix("torch."), device=self.model.device.type, sha256=weights_digest(folder),
        )  # fmt: skip

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

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """See `tokens.TokenBackend.answer`."""
        from proteus_bench.backends.recurrent import answer_recurrent

        return answer_recurrent(self._reader, contexts, questions)


def _register(model_type: str) -> None:
    """Make transformers know a type that an installed package defines: ours, or flash-linear-attention's (GLA and others)."""
    from transformers import CONFIG_MAPPING

    if model_type == OWN:
        importlib.import_module("proteus_models.hf")
    elif model_type not in CONFIG_MAPPING and importlib.util.find_spec("fla") is not None:
        importlib.import_module("fla.models")


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
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a foreign file: transformers and its readers may raise anything
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
