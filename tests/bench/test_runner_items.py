"""Texts to tokens: pieces equal the whole, answers stop where an answer ends."""

from pathlib import Path

import numpy as np
import pytest

from proteus_bench.backends import encoding
from proteus_bench.errors import InvalidFileError
from proteus_bench.runner import items
from proteus_models.tokenizer import MicroTokenizer
from proteus_tasks.haystack import documents

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def tokenizer() -> MicroTokenizer:
    return MicroTokenizer.from_file(ROOT / "models" / "zoo" / "tokenizer.json")


def test_a_long_text_in_pieces_has_the_tokens_of_the_whole(
    tokenizer: MicroTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(document.text for document in documents("test"))[:150_000]
    whole = np.array(tokenizer.encode(text), dtype=np.int32)
    for size in (999, 20_000):
        monkeypatch.setattr(encoding, "PIECE_CHARS", size)
        assert np.array_equal(encoding.encode_long(tokenizer, text), whole)
    monkeypatch.setattr(encoding, "PIECE_CHARS", 10)
    unbroken = "1" * 500  # no seam: encoded at once
    assert encoding.encode_long(tokenizer, unbroken).tolist() == tokenizer.encode(unbroken)


def test_line_ends_and_full_stops_end_an_answer_and_digits_do_not(tokenizer: MicroTokenizer) -> None:
    stops = encoding.stop_ids(tokenizer)
    assert {tokenizer.encode(text)[-1] for text in ("a\n", "a.", "7.", ".")} <= stops
    assert not stops & set(tokenizer.encode(" 1234567, 89-ab word"))


def test_strings_that_end_an_answer(tokenizer: MicroTokenizer) -> None:
    texts = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    for strings in (("l", " h"), ("line",), ()):  # "line" is the name of a rule as well
        wanted = {i for i, text in enumerate(texts) if text.startswith(strings)}
        assert encoding.ids_that_begin_with(tokenizer, strings) == wanted
    assert encoding.stop_ids(tokenizer, "line") == {i for i, text in enumerate(texts) if "\n" in text}
    assert encoding.cut_at_stop(" 4 . 5\n6", "sentence") == " 4" and encoding.cut_at_stop(" 4 . 5\n6", "line") == " 4 . 5"
    assert encoding.cut_at_stop(" 4 ", "none") == " 4 "


def test_a_continuation_has_the_tokens_that_it_adds_to_its_prompt(tokenizer: MicroTokenizer) -> None:
    prompt = "The key of the harbor is 4." * 40
    assert encoding.continuation_ids(tokenizer, prompt, " 19 mills") == tokenizer.encode(" 19 mills")
    merged = encoding.continuation_ids(tokenizer, "The har", "bor opens")  # the seam is inside a word
    assert tokenizer.decode(merged) == "bor opens"
    assert encoding.continuation_ids(tokenizer, "", "The harbor") == tokenizer.encode("The harbor")


def test_a_whole_cell_must_have_the_items_that_the_suite_froze(tokenizer: MicroTokenizer) -> None:
    from proteus_bench.runner.results import items_digest

    suite = items.plan_suite("niah4k")
    fingerprint = tokenizer.fingerprint
    made = [
        items.make_item(suite, "niah.single_2", 4096, tokenizer, i) for i in range(suite.counts["niah.single_2", 4096])
    ]
    rows = [{"index": i, "item_sha256": item.sha256} for i, item in enumerate(made)]
    assert items_digest(rows) == suite.hashes[fingerprint]["niah.single_2"]


def test_an_invalid_suite_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("id = 3")
    with pytest.raises(ValueError) as caught:
        items.plan_suite(str(path))
    assert getattr(caught.value, "exit_code", None) == InvalidFileError.exit_code
