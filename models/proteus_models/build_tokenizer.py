"""Writes `models/zoo/tokenizer.json`: run once as `python -m proteus_models.build_tokenizer`; the result is committed."""

from __future__ import annotations

import sys

from proteus_models.tokenizer import build
from proteus_models.zoo import zoo_root
from proteus_tasks import haystack, niah_text
from proteus_tasks.resources import data_dir


def main() -> int:
    """Train on the train split and the key words; every key word must be one token."""
    words = (data_dir() / "words.txt").read_text("ascii").split()
    wording = [niah_text.INSTRUCTION, *niah_text.NOISE, niah_text.question_all("x", 4) + niah_text.answer_prefix("x")]
    wording.append(" " + niah_text.question("x"))
    tokenizer = build([*haystack.sentences("train"), *wording * 400], words)
    split = [w for w in words if len(tokenizer.encode(" " + w).ids) != 1]
    if split:
        print(f"{len(split)} key words are more than one token, first {split[0]!r}", file=sys.stderr)
        return 1
    tokenizer.save(str(zoo_root() / "tokenizer.json"))
    print(f"{tokenizer.get_vocab_size()} tokens; all {len(words)} key words are single tokens")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
