"""`lm-eval:NAME(arguments)`: any model of lm-eval answers our suites, in text.

The tokenizer that items are fitted to is the model's own where it shows a fast one; otherwise every byte counts as a token, which
is never too few.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from proteus_bench.backends.base import Ask, Reply, Settings
from proteus_bench.backends.encoding import continuation_ids, cut_at_stop, stop_strings
from proteus_bench.backends.external import (
    CONFIG,
    OWN,
    external_info,
    external_weights,
    folder_config,
    size_name,
    train_length_of,
    weights_digest,
)
from proteus_bench.errors import BenchError, EnvironmentFault, UsageError, unknown
from proteus_bench.grammar import ModelSpec
from proteus_bench.store.canonical import digest

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)(?:\((.*)\))?", re.DOTALL)
_SECRET = re.compile(r"key|token|.*api_?key|.*(auth|access|hf)_?token|.*secret.*|.*password.*", re.IGNORECASE)


class HarnessBackend:
    """One lm-eval model. UsageError for a type that lm-eval does not have and for arguments that it refuses, EnvironmentFault for
    what is missing here."""

    def __init__(self, spec: ModelSpec, seed: int, settings: Settings) -> None:
        kind, arguments = parse_name(spec.name)
        folder = _folder(arguments)
        self.model = _create(str(spec), kind, arguments, settings)
        self.chat = settings.chat
        self._tokenizer = _tokenizer(self.model, settings)
        config = folder_config(folder) if folder is not None else _shown_config(self.model)
        inner: Any = getattr(self.model, "model", None)
        n_params = sum(p.numel() for p in inner.parameters()) if hasattr(inner, "parameters") else 0
        limit = getattr(self.model, "max_length", None)
        self.info = external_info(
            spec, seed, settings, external_weights(spec), config, tokenizer=self._tokenizer,
            model=":".join([spec.source, kind, *_short_name(arguments)]),
            size=spec.size or (size_name(n_params) if n_params else "unknown"), n_params=n_params, state_bytes=0,
            train_length=train_length_of(config, settings, str(spec)),
            max_length=limit if isinstance(limit, int) else None,
            dtype=str(getattr(inner, "dtype", "unknown")).removeprefix("torch."),
            device=str(getattr(self.model, "device", None) or "unknown").partition(":")[0],
            sha256=digest({"kind": kind, "arguments": arguments}) if folder is None else weights_digest(folder),
            extra={"kind": kind, "arguments": arguments},
        )  # fmt: skip

    @property
    def tokenizer(self) -> Any:
        """The model's own, or bytes."""
        return self._tokenizer

    def reply(self, contexts: Sequence[str], questions: Sequence[Sequence[Ask]]) -> list[list[Reply]]:
        """See `base.Backend.reply`."""
        pairs = [(context, ask) for context, asks in zip(contexts, questions, strict=True) for ask in asks]
        begun = time.perf_counter()
        prompts = [self._prompt(context, ask) for context, ask in pairs]
        golds = self._golds(prompts, [ask for _, ask in pairs])
        texts = self._texts(prompts, [ask for _, ask in pairs])
        share = (time.perf_counter() - begun) / max(1, len(pairs))
        replies = iter(
            [
                self._reply(context, ask, prompt, gold, text, share)
                for (context, ask), prompt, gold, text in zip(pairs, prompts, golds, texts, strict=True)
            ]
        )
        return [[next(replies) for _ in asks] for asks in questions]

    def _prompt(self, context: str, ask: Ask) -> str:
        content = context + ask.text
        if not self.chat or not content + ask.answer_prefix:
            return content + ask.answer_prefix
        message = [{"role": "user", "content": content}]
        return str(self.model.apply_chat_template(message, add_generation_prompt=True)) + ask.answer_prefix.lstrip()

    def _gold(self, ask: Ask) -> str:
        """Nothing stands before the first word of a turn."""
        return ask.gold.lstrip() if self.chat and not ask.answer_prefix.strip() else ask.gold

    def _golds(self, prompts: Sequence[str], asks: Sequence[Ask]) -> list[tuple[float, bool | None]]:
        """(nats, whether greedy) of each gold."""
        texts = [self._gold(ask) for ask in asks]
        plain = [i for i, prompt in enumerate(prompts) if prompt]
        whole = [i for i, prompt in enumerate(prompts) if not prompt]
        found: dict[int, tuple[float, bool | None]] = {}
        if plain:
            answers = self._call("loglikelihood", [(prompts[i], texts[i]) for i in plain])
            found |= {i: (float(value), bool(greedy)) for i, (value, greedy) in zip(plain, answers, strict=True)}
        if whole:
            values = self._call("loglikelihood_rolling", [(texts[i],) for i in whole])
            found |= {i: (float(value), None) for i, value in zip(whole, values, strict=True)}
        return [found[i] for i in range(len(asks))]

    def _call(self, kind: str, arguments: Sequence[tuple[Any, ...]]) -> Any:
        """The answers to requests of one kind, without a bar for every batch where the model can do without."""
        from lm_eval.api.instance import Instance

        method = getattr(self.model, kind)
        requests = [Instance(request_type=kind, doc={}, arguments=pair, idx=i) for i, pair in enumerate(arguments)]
        quiet = {"disable_tqdm": True} if "disable_tqdm" in inspect.signature(method).parameters else {}
        return method(requests, **quiet)

    def _texts(self, prompts: Sequence[str], asks: Sequence[Ask]) -> list[str]:
        wanted = [i for i, ask in enumerate(asks) if ask.max_new_tokens > 0]
        if not wanted:
            return [""] * len(asks)
        settings = [
            {
                "until": [*stop_strings(asks[i].stop), *(asks[i].until or ())],
                "max_gen_toks": asks[i].max_new_tokens,
                "do_sample": False,
            }
            for i in wanted
        ]
        pairs = [(prompts[i], setting) for i, setting in zip(wanted, settings, strict=True)]
        texts = dict(zip(wanted, self._call("generate_until", pairs), strict=True))
        return [texts.get(i, "") for i in range(len(asks))]

    def _reply(
        self, context: str, ask: Ask, prompt: str, gold: tuple[float, bool | None], text: str, seconds: float
    ) -> Reply:
        """Its tokens are not known: text that was decoded need not encode to what was generated."""
        tokenizer = self._tokenizer
        return Reply(
            output=cut_at_stop(text, ask.stop),
            output_ids=[],
            gold_logprob=gold[0],
            gold_tokens=len(continuation_ids(tokenizer, prompt, self._gold(ask))),
            context_tokens=max(1, len(tokenizer.encode(context))),
            seconds=seconds,
            gold_is_greedy=gold[1],
        )


def parse_name(name: str) -> tuple[str, dict[str, Any]]:
    """``hf(pretrained=./ckpt)`` -> ("hf", {"pretrained": "./ckpt"}), arguments as lm-eval reads them. UsageError otherwise."""
    from lm_eval.utils import simple_parse_args_string

    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"cannot read lm-eval:{name}: write lm-eval:NAME(key=value,...), as for --model and --model_args")
    for part in filter(None, (match[2] or "").split(",")):
        if not re.fullmatch(r"\s*\w+\s*=.+", part, re.DOTALL):
            raise UsageError(f"cannot read {part!r} in lm-eval:{name}: write key=value")
        if _SECRET.fullmatch(part.partition("=")[0].strip()):
            raise UsageError(f"{part.partition('=')[0]}: results carry a model's name; put it into the environment, not there")
    return match[1], simple_parse_args_string(match[2])


def _create(label: str, kind: str, arguments: dict[str, Any], settings: Settings) -> Any:
    import lm_eval.models  # noqa: F401  fills the registry
    from lm_eval.api.registry import get_model, model_registry

    if kind == "proteus":
        raise UsageError(f"{label} asks proteus-bench through lm-eval: name the model itself")
    if kind not in model_registry:
        raise unknown("model type of lm-eval", kind, model_registry)
    folder = _folder(arguments)
    if folder is not None and folder_config(folder).get("model_type") == OWN:
        import proteus_models.hf  # noqa: F401  makes transformers know the type
    flags = {"device": _device(settings)}
    if settings.dtype != "auto":
        flags["dtype"] = settings.dtype
    try:
        return get_model(kind).create_from_arg_obj(arguments, {k: v for k, v in flags.items() if k not in arguments})
    except BenchError:
        raise
    except (ImportError, OSError) as error:
        raise EnvironmentFault(f"{label}: {_first_line(error)}") from error
    except Exception as error:  # lm-eval's models refuse their arguments in any way
        raise UsageError(f"{label}: {_first_line(error)}") from error


def _device(settings: Settings) -> str:
    """Said to every model: lm-eval's own default is CUDA, whether or not there is any."""
    import torch

    return settings.device if settings.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def _tokenizer(model: Any, settings: Settings) -> Any:
    from proteus_bench.backends.hf_tokenizer import HFTokenizer
    from proteus_tasks.tokenizers import ByteTokenizer

    if settings.tokenizer is not None:
        return HFTokenizer(Path(settings.tokenizer).expanduser(), settings.chat)
    found = vars(model).get("tokenizer")  # its own: a property could load one from a hub
    return ByteTokenizer() if getattr(found, "backend_tokenizer", None) is None else HFTokenizer(found, settings.chat)


def _shown_config(model: Any) -> dict[str, Any]:
    """What a model without a folder shows of itself; {} for a service."""
    limit = getattr(model, "max_length", None)
    return {"max_position_embeddings": limit} if isinstance(limit, int) else {}


def _folder(arguments: dict[str, Any]) -> Path | None:
    path = Path(str(arguments.get("pretrained", ""))).expanduser()
    return path if "pretrained" in arguments and (path / CONFIG).is_file() else None


def _short_name(arguments: dict[str, Any]) -> list[str]:
    found = arguments.get("pretrained") or arguments.get("model")
    return [Path(str(found)).name] if found else []
