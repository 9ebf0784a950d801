"""The micro tokenizer: BPE over whole words, digits one by one. Built once from the train split, stored as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
VOCAB = 3072
# a word with its space | one digit with its space | a newline | one other sign with its space | a space
SPLIT = r" ?[A-Za-z]+| ?[0-9]|\n| ?[^\sA-Za-z0-9]|\s"


class MicroTokenizer:
    """encode/decode over a tokenizer file; `fingerprint` is the sha256 of its canonical JSON."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.fingerprint = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    @staticmethod
    def from_file(path: Path) -> MicroTokenizer:
        return MicroTokenizer(Tokenizer.from_file(str(path)))

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """As `encode`, on all cores."""
        return [e.ids for e in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def begin_id(self) -> int:
        """What stands before a document."""
        return self.id(BOS)

    @property
    def end_ids(self) -> frozenset[int]:
        """What a model may end a text with."""
        return frozenset([self.id(EOS)])

    def token(self, id: int) -> str:
        return str(self._tokenizer.id_to_token(id))

    def id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return found


def build(texts: Iterable[str], words: Iterable[str], vocab: int = VOCAB) -> Tokenizer:
    """Train on `texts`; every word of `words` becomes one token, with and without the space before it.

    Only words of the train split's texts and the key words of every split are seen, never a test document.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    boosted = " ".join(words)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *(" " + boosted for _ in range(400))], trainer)
    return tokenizer
