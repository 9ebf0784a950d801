"""Our own recurrent models, on the CPU in float32: the scored reference of the micro track."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from proteus_bench.backends.base import DEFAULT, Answer, AskIds, BackendInfo, Ids, Settings, Tokenizer
from proteus_bench.backends.tokens import TokenBackend
from proteus_bench.backends.weights import find_weights
from proteus_bench.errors import BenchError, UsageError
from proteus_bench.grammar import ModelSpec
from proteus_bench.store.canonical import canonical_json


class LocalBackend(TokenBackend):
    """One zoo checkpoint under one capacity. Raises InvalidFileError for a bad checkpoint, UsageError for a capacity
    that the model cannot have (an axis it lacks, blocks that do not divide it)."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings = DEFAULT) -> None:
        import torch

        from proteus_kernels import dispatch
        from proteus_models import zoo

        _refuse(settings)

        torch.set_num_threads(1)  # parallelism is by processes; two threads spin against each other on a busy machine
        weights = find_weights(spec)
        override = None if weights.exact else weights.capacity
        try:
            loaded = zoo.load(weights.name, weights.trained, weights.size, seed, capacity=override, root=weights.root)
        except BenchError:
            raise
        except ValueError as error:
            raise UsageError(f"{spec}: {error}") from error
        self.model = loaded.model
        self._tokenizer: Tokenizer = loaded.tokenizer
        config = loaded.model.config.as_dict()
        # another kernel has other last bits, so a run that was made with one is another run
        kernels = {op: backend for op, backend in dispatch.chosen("cpu").items() if backend != "chunk"}
        self.info = BackendInfo(
            model=spec.name,
            schedule=spec.schedule or "static",
            size=weights.size,
            seed=seed,
            n_params=sum(parameter.numel() for parameter in loaded.model.parameters()),
            state_bytes=int(loaded.model.init_state(1).nbytes),
            train_length=weights.train_length,
            max_length=None,
            dtype="float32",
            device="cpu",
            sha256=loaded.sha256,
            config_sha256=hashlib.sha256(canonical_json(config)).hexdigest(),
            tokenizer_sha256=loaded.tokenizer.fingerprint,
            memory=weights.memory,
            trained_schedule=weights.trained,
            capacity=weights.capacity.as_dict(),
            config=config,
            recipe=loaded.card,
            settings={"kernels": kernels} if kernels else {},
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the checkpoint was trained with."""
        return self._tokenizer

    def memory_model(self) -> Any:
        """The memory for the state side of probes (`probes.memory`); None for a model without a fixed state."""
        from proteus_models.exposed import expose

        return expose(self.model)

    def answer(self, contexts: Sequence[Ids], questions: Sequence[Sequence[AskIds]]) -> list[list[Answer]]:
        """See `backends.recurrent.answer_recurrent`."""
        from proteus_bench.backends.recurrent import answer_recurrent

        return answer_recurrent(self.model, contexts, questions)


def _refuse(settings: Settings) -> None:
    """UsageError for what a model of the zoo cannot do."""
    if settings.device == "cuda" or settings.dtype not in ("auto", "float32") or settings.chat:
        raise UsageError("models of the zoo are scored on the CPU in float32, without a chat template")
