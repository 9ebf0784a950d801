"""The tokenizer of a transformers folder as suites and back ends need it: special tokens counted, chat template applied."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_tasks.tokenizers import FileTokenizer

# Tokens by which a seam between template and text may differ from what was counted.
_SEAM_SLACK = 2


class HFTokenizer(FileTokenizer):
    """Same ids as the tokenizer of a folder, or as one that is loaded. `special_tokens`: what its rules, or its chat template,
    put round a prompt.

    chat: a prompt is a user's turn and the answer prefix begins the assistant's. InvalidFileError for a folder without a fast
    tokenizer, UsageError for chat without a template.
    """

    def __init__(self, source: Any, chat: bool = False) -> None:
        from tokenizers import Tokenizer

        self.whole: Any = _of_folder(source) if isinstance(source, Path) else source
        name = source if isinstance(source, Path) else getattr(source, "name_or_path", "the model")
        backend = getattr(self.whole, "backend_tokenizer", None)
        if backend is None:
            raise InvalidFileError(f"{name} has no tokenizer.json, by which its items could be made again")
        if chat and not self.whole.chat_template:
            raise UsageError(f"{name} has no chat template: ask in base mode")
        self.chat = chat
        # What stands round a text, pads and limits are the prompt's business: one vocabulary, one fingerprint.
        bare = {"post_processor": None, "padding": None, "truncation": None}
        inner = Tokenizer.from_str(json.dumps(json.loads(backend.to_str()) | bare))
        plain, full = inner.encode("a", add_special_tokens=False).ids, self.whole("a")["input_ids"]
        self._front = full[: full.index(plain[0])] if plain and plain[0] in full else []
        self._inner = inner
        super().__init__(inner, self._overhead() if chat else len(self._front))

    def _overhead(self) -> int:
        return len(self.prompt_ids("a", " b", "")) - len(self.encode("a b")) + _SEAM_SLACK

    @property
    def definition(self) -> str:
        """The text of a tokenizer.json with the same ids, for a run folder: whoever checks a run makes its items again."""
        return str(self._inner.to_str())

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size())

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The end-of-text token."""
        return frozenset(() if self.whole.eos_token_id is None else [self.whole.eos_token_id])

    @property
    def begin_id(self) -> int:
        """What stands before a document: the begin token, the end token where there is none (as in lm-eval)."""
        found = self.whole.bos_token_id if self.whole.bos_token_id is not None else self.whole.eos_token_id
        if found is None:
            raise UsageError("this tokenizer has neither a begin nor an end token: it cannot score documents")
        return int(found)

    def decode(self, ids: Any) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=True))

    def prompt_ids(self, context: str, text: str, prefix: str) -> list[int]:
        """The whole prompt with what stands round it; [] for an empty one."""
        if not context + text + prefix:
            return []
        if not self.chat:
            return [*self._front, *self.encode(context + text + prefix)]
        return self.encode(self._turn(context + text) + prefix.lstrip())

    def seam(self, context: str, text: str, prefix: str, gold: str) -> tuple[str, str]:
        """(the end of the prompt, gold as it follows there): nothing stands before the first word of a turn."""
        if not self.chat:
            return (context[-1000:] + text + prefix), gold
        return ("\n" + prefix.lstrip(), gold) if prefix.strip() else ("\n", gold.lstrip())

    def _turn(self, content: str) -> str:
        message = [{"role": "user", "content": content}]
        return str(self.whole.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def _of_folder(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a foreign file: transformers and its readers may raise anything
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidFileError(f"{folder} has no tokenizer that transformers can read: {reason}"[:400]) from error
