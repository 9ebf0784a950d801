"""A little corpus for tests of token shards: 200 documents of a few words, and their shards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from proteus_models import zoo
from proteus_models.train_shards import TextSource, write_shards

TOKENIZER = zoo.zoo_root() / "tokenizer.json"
DOCUMENTS = 200


def words(n: int) -> str:
    rng = np.random.default_rng(n)
    return " ".join(rng.choice(["river", "harbor", "senate", "law", "of", "the", "and"], size=20 + n % 90))


def write_texts(folder: Path) -> Path:
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": words(n)}) + "\n" for n in range(DOCUMENTS)))
    return path


def write_corpus(texts: Path, folder: Path, shard_tokens: int = 4000) -> Path:
    write_shards(TextSource(files=(str(texts),)), TOKENIZER, "<eos>", folder, shard_tokens=shard_tokens)
    return folder
