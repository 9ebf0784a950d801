"""A model behind an OpenAI-compatible address: `vllm:http://HOST:PORT/v1[#MODEL]`, `openai:http://HOST:PORT/v1[#MODEL]`.

Prompts go out as token ids, so that the tokens are those of every other back end; `vllm:` adds what vLLM's server knows beyond
the standard (stop tokens, the ids of the answer). Log-probabilities of the gold come from `echo`. A server is asked once what it
can do: without echo, or where prompts must be text, only answers are scored and every log-probability is null.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import Settings
from proteus_bench.backends.completions import Completions, Refused
from proteus_bench.backends.external import (
    CONFIG,
    OWN,
    count_parameters,
    end_ids,
    external_info,
    external_weights,
    folder_config,
    train_length_of,
    weights_digest,
)
from proteus_bench.backends.served import Gold, Prompt, ServedBackend
from proteus_bench.errors import EnvironmentFault, UsageError
from proteus_bench.grammar import ModelSpec
from proteus_bench.store.canonical import digest

KEYS = {"vllm": "VLLM_API_KEY", "openai": "OPENAI_API_KEY"}
"""Variables whose value is sent as a bearer token, by source."""
AT_ONCE = 16
"""Requests on their way at the same time; the server batches them."""
_SAID = ("id", "root", "owned_by", "max_model_len")  # what a server says about a model and would say again tomorrow


class ServerBackend(ServedBackend):
    """UsageError for a model that is not served or has no tokenizer here, EnvironmentFault for a server that does not answer."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings) -> None:
        from proteus_bench.backends.hf_tokenizer import HFTokenizer

        address, _, wanted = spec.name.partition("#")
        if not address.startswith(("http://", "https://")):
            raise UsageError(f"{spec}: an address begins with http:// or https://")
        self.client = Completions(address, os.environ.get(KEYS[spec.source]))
        said = {key: value for key, value in self.client.model(wanted or None).items() if key in _SAID}
        root = _folder(said.get("root"))
        config = folder_config(root) if root else {}
        limit = said.get("max_model_len")
        shown = config or ({} if limit is None else {"max_position_embeddings": limit})
        train_length = train_length_of(shown, settings, str(spec))
        if config.get("model_type") == OWN:
            import proteus_models.hf  # noqa: F401  makes transformers know the type
        folder = root if settings.tokenizer is None else _folder(settings.tokenizer)
        if folder is None:
            named = settings.tokenizer or f"what {address} serves"
            raise UsageError(f"{named} is no folder of this machine with a tokenizer: give --tokenizer FOLDER")
        self._tokenizer = HFTokenizer(folder, chat=settings.chat)
        self._ends = self._tokenizer.end_ids | end_ids(folder, config)
        self.model, self._is_vllm = str(said["id"]), spec.source == "vllm"
        self.as_ids, self.scores = self._abilities()
        n_params = count_parameters(root) if root else 0
        self.info = external_info(
            spec, seed, settings, external_weights(spec), shown, tokenizer=self._tokenizer, model=f"{spec.source}:{self.model}",
            n_params=n_params, state_bytes=0, train_length=train_length, max_length=limit,
            **({} if root else {"size": spec.size or "unknown"}), dtype="unknown", device="server",
            sha256=weights_digest(root) if root else digest(said),
            extra={"prompts": "ids" if self.as_ids else "text", "logprobs": "echo" if self.scores else "none"},
        )  # fmt: skip

    def generate(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        return self._all(self._continue, prompts)

    def score(self, prompts: Sequence[Prompt]) -> list[Gold]:
        return self._all(self._gold, prompts)

    def _all(self, work: Callable[[Prompt], Any], prompts: Sequence[Prompt]) -> list[Any]:
        self.client.stopped.clear()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            jobs = [threads.submit(work, prompt) for prompt in prompts]
            try:
                return [job.result() for job in jobs]
            except BaseException:  # Ctrl-C too: what is on its way ends, nothing else begins
                self.client.stopped.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _continue(self, prompt: Prompt) -> list[int]:
        ids, ask = prompt
        more = {"stop_token_ids": sorted(ask.stop_ids), "return_token_ids": True} if self._is_vllm else {}
        choice = self.client.complete(
            model=self.model, prompt=ids if self.as_ids else self._text(ids), max_tokens=ask.max_new_tokens, **more
        )
        found = choice.get("token_ids")
        if isinstance(found, list) and all(isinstance(token, int) for token in found):
            return found
        return list(self._tokenizer.encode(str(choice.get("text") or "")))

    def _gold(self, prompt: Prompt) -> Gold:
        ids, ask = prompt
        found = self._echo([*ids, *map(int, ask.gold_ids)])
        if found is None:
            raise EnvironmentFault(f"{self.client.address}: log-probabilities of a prompt came at first, and now they do not")
        golds = found[len(ids) : len(ids) + len(ask.gold_ids)]
        return sum(logprob for logprob, _ in golds), all(likeliest for _, likeliest in golds)

    def _echo(self, ids: list[int]) -> list[tuple[float, bool]] | None:
        """(log-probability, whether it is the likeliest) of every token of a prompt; 0.0 of the first. None: not told."""
        choice = self.client.complete(model=self.model, prompt=ids, max_tokens=1, echo=True, logprobs=1)
        told = choice.get("logprobs")
        logprobs, tops = (told.get(key) if isinstance(told, dict) else None for key in ("token_logprobs", "top_logprobs"))
        if not isinstance(logprobs, list) or not len(ids) <= len(logprobs) <= len(ids) + 1:
            return None
        if any(not isinstance(value, int | float) for value in logprobs[1 : len(ids)]):
            return None
        best = [max((top or {}).values(), default=0.0) for top in tops] if isinstance(tops, list) else [0.0] * len(logprobs)
        return [(0.0, True), *((float(v), v >= top) for v, top in zip(logprobs[1 : len(ids)], best[1:], strict=False))]

    def _abilities(self) -> tuple[bool, bool]:
        """Whether prompts may be token ids, and whether their log-probabilities are told."""
        ids = list(self._tokenizer.encode("The sea was calm, and the ships lay still."))[:8]
        try:
            return True, self._echo(ids) is not None
        except Refused as refused:
            if refused.status not in (400, 404, 405, 415, 422):
                raise
        try:  # which of the two was too much?
            self.client.complete(model=self.model, prompt=ids, max_tokens=1)
            return True, False
        except Refused:
            self.client.complete(model=self.model, prompt=self._text(ids), max_tokens=1)
            return False, False

    def _text(self, ids: list[int]) -> str:
        """A prompt as text. The server puts its begin token before it by itself."""
        bare = ids[self._tokenizer.special_tokens :] if not self._tokenizer.chat else ids
        return str(self._tokenizer.whole.decode(bare, clean_up_tokenization_spaces=False))


def _folder(name: Any) -> Path | None:
    """A checkpoint or tokenizer folder of this machine."""
    if not isinstance(name, str):
        return None
    path = Path(name).expanduser()
    return path if (path / CONFIG).is_file() or (path / "tokenizer.json").is_file() else None
