"""Token shards: what is written, goes on after a break, is refused when damaged; and the rows that a training reads from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus import DOCUMENTS, TOKENIZER, words, write_corpus, write_texts

from proteus_bench.errors import BenchError, InvalidFileError, UsageError
from proteus_models import zoo
from proteus_models.train_shards import TextSource, read_manifest, verify, write_shards
from proteus_models.train_tokens import TokenRows


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def shards(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(texts, tmp_path_factory.mktemp("shards") / "s")


def test_shards_hold_every_document_closed_by_the_end_token(texts: Path, shards: Path) -> None:
    made, tokenizer = verify(shards), zoo.tokenizer()
    flat = np.concatenate([np.fromfile(shards / s.file, made.dtype) for s in made.shards])
    assert len(made.shards) > 2 and made.tokens == len(flat) and all(s.tokens >= 4000 for s in made.shards[:-1])
    documents = np.split(flat, np.flatnonzero(flat == made.end) + 1)
    assert len(documents) == DOCUMENTS + 1 and len(documents[-1]) == 0
    assert all(tokenizer.decode(d[:-1].tolist()) == words(n) for n, d in enumerate(documents[:-1]))


def test_a_broken_off_writing_goes_on_to_the_same_bytes(texts: Path, shards: Path, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["file"] == "shard-00001.bin":
            raise Stopped

    source = TextSource(files=(str(texts),))
    with pytest.raises(Stopped):
        write_shards(source, TOKENIZER, "<eos>", tmp_path, shard_tokens=4000, report=stop)
    (tmp_path / "shard.tmp").write_bytes(b"torn")
    with pytest.raises(InvalidFileError):
        read_manifest(tmp_path)
    started: list[str] = []
    again = write_shards(
        source, TOKENIZER, "<eos>", tmp_path, shard_tokens=4000, report=lambda row: started.append(row["file"])
    )
    assert started[0] == "shard-00002.bin" and again == read_manifest(shards)
    assert all((tmp_path / s.file).read_bytes() == (shards / s.file).read_bytes() for s in again.shards)
    with pytest.raises(UsageError, match="another source"):
        write_shards(source, TOKENIZER, "<eos>", tmp_path, shard_tokens=4001)


def test_the_datasets_library_streams_the_same_shards(texts: Path, shards: Path, tmp_path: Path) -> None:
    source = TextSource(name="json", files=(str(texts),))
    made = write_shards(source, TOKENIZER, "<eos>", tmp_path, shard_tokens=4000, tokens=8000)
    assert [s.sha256 for s in made.shards] == [s.sha256 for s in read_manifest(shards).shards[:2]]
    more = write_shards(source, TOKENIZER, "<eos>", tmp_path, shard_tokens=4000)
    assert [s.sha256 for s in more.shards] == [s.sha256 for s in read_manifest(shards).shards]


def test_damaged_shards_and_wrong_sources_are_refused(texts: Path, shards: Path, tmp_path: Path) -> None:
    write_shards(TextSource(files=(str(texts),)), TOKENIZER, "<eos>", tmp_path, shard_tokens=4000)
    first = tmp_path / "shard-00000.bin"
    good = first.read_bytes()
    first.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    with pytest.raises(InvalidFileError, match="sha256"):
        verify(tmp_path)
    first.write_bytes(good[:-2])
    with pytest.raises(InvalidFileError, match="size"):
        read_manifest(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"txt": "a"}\n')
    cases: list[tuple[dict[str, Any], Path, str, type[BenchError], str]] = [
        ({"files": (str(tmp_path / "x.jsonl"),)}, TOKENIZER, "<eos>", InvalidFileError, "field 'text'"),
        ({"files": (str(tmp_path / "none.txt"),)}, TOKENIZER, "<eos>", InvalidFileError, "none.txt"),
        ({"files": (str(texts),)}, TOKENIZER, "</s>", UsageError, "no token '</s>'"),
        ({"files": (str(texts),)}, texts, "<eos>", InvalidFileError, "not a tokenizer"),
    ]
    for n, (source, tokenizer, end, error, message) in enumerate(cases):
        with pytest.raises(error, match=message):
            write_shards(TextSource(**source), tokenizer, end, tmp_path / str(n), shard_tokens=4000)
    with pytest.raises(InvalidFileError, match="vocabulary"):
        TokenRows(shards, vocab_size=3071, documents=False, seed=0)
    with pytest.raises(InvalidFileError, match="no shard holds a row"):
        TokenRows(shards, vocab_size=3072, documents=False, seed=0).rows("lm", 0, 1, 10**6)


def test_rows_are_the_text_once_an_epoch_in_an_order_of_the_seed(shards: Path) -> None:
    rows, made = TokenRows(shards, vocab_size=3072, documents=False, seed=1), read_manifest(shards)
    total = sum((s.tokens - 1) // 64 for s in made.shards)
    epoch = rows.rows("lm", 0, total, 64)
    flats = [np.fromfile(shards / s.file, made.dtype).astype(np.int64) for s in made.shards]
    wanted = np.concatenate([f[: (len(f) - 1) // 64 * 64].reshape(-1, 64) for f in flats])
    assert sorted(map(tuple, epoch.ids)) == sorted(map(tuple, wanted))
    assert np.array_equal(epoch.ids[:, 1:], epoch.labels[:, :-1]) and epoch.counts() == (epoch.ids.size, 0)
    assert np.array_equal(rows.rows("lm", 3, 7, 64).ids, epoch.ids[21:28])
    second = rows.rows("lm", 1, total, 64)
    assert sorted(map(tuple, second.ids)) == sorted(map(tuple, wanted)) and not np.array_equal(second.ids, epoch.ids)
    other = TokenRows(shards, vocab_size=3072, documents=False, seed=2).rows("lm", 0, total, 64)
    assert not np.array_equal(other.ids, epoch.ids)


def test_with_documents_rows_restart_behind_every_end_and_do_not_foretell_it(shards: Path) -> None:
    rows, end = TokenRows(shards, vocab_size=3072, documents=True, seed=1), read_manifest(shards).end
    made = rows.rows("lm", 0, 30, 64)
    assert made.starts is not None and sum(map(len, made.starts)) > 20
    for ids, kinds, starts in zip(made.ids, made.kinds, made.starts, strict=True):
        assert starts == [t for t in range(1, 64) if ids[t - 1] == end]
        assert kinds.tolist() == [int(i != end) for i in ids]
