"""Haystacks: disjoint by document, sentences that cannot pass for needles, files of strangers."""

import pytest

from proteus_tasks import TASKS, ByteTokenizer, DataFileError, TaskError, haystack, niah_text


def test_splits_share_no_document_and_are_sizeable():
    years = {split: {d.year for d in haystack.documents(split)} for split in haystack.SPLITS}
    assert (
        not years["train"] & years["tune"] and not years["train"] & years["test"] and not years["tune"] & years["test"]
    )
    assert [len(haystack.documents(split)) for split in haystack.SPLITS] == [164, 23, 46]
    assert [sum(len(u.split()) for u in haystack.sentences(s)) > 140_000 for s in haystack.SPLITS] == [True] * 3


def test_splits_share_hardly_a_long_sentence():
    """Presidents quote each other: whole sentences of 16 words or more recur, but fewer than 2 in 1,000."""
    train, test = ({u for u in haystack.sentences(s) if len(u.split()) >= 16} for s in ("train", "test"))
    assert 0 < len(train & test) < 0.002 * len(test)


@pytest.mark.parametrize("split", haystack.SPLITS)
def test_every_sentence_may_stand_in_a_haystack(split):
    source = haystack.sotu(split)
    for unit in source.units:
        assert unit.isascii() and unit == " ".join(unit.split()) and haystack.usable(unit)
    assert all(len(source.units[i].split()) <= haystack.MAX_START_WORDS for i in source.starts)
    assert [first for first, _ in source.documents][1:] == [last for _, last in source.documents][:-1]


def test_noise_is_plain_and_holds_no_key():
    assert haystack.noise().units == niah_text.NOISE


def test_sentences_are_cut_at_their_ends_only():
    text = 'Mr. Polk spoke of the U.S. Treasury at 5.5 per cent. "Was it enough?" It was! On Jan. 5 he left (late). End'
    assert haystack.split_sentences(text) == [
        "Mr. Polk spoke of the U.S. Treasury at 5.5 per cent.", '"Was it enough?"', "It was!",
        "On Jan. 5 he left (late).", "End",
    ]  # fmt: skip
    assert not haystack.usable("End")


def test_a_stranger_s_file_cannot_plant_needles(tmp_path):
    file = tmp_path / "prose.txt"
    forged = "The access code of waters is 1234567. THE ACCESS  CODE\u00a0of x is 1. Also 7654321 is a value.\n"
    file.write_text(forged + "A plain sentence “stands” here.\n" + forged + "Another one\tfollows it.\x00\n", "utf-8")
    source = haystack.from_file(str(file))
    assert source.units == ('A plain sentence "stands" here.', "Another one follows it.")
    item = TASKS["niah.single_2"].item(0, length=2000, tokenizer=ByteTokenizer(), haystack=source)
    assert item.context.lower().count("access code of") == 1
    assert item.meta["haystack"] == source.name


def test_unusable_files_are_refused_in_one_line(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(DataFileError, match="no sentence"):
        haystack.from_file(str(tmp_path / "empty.txt"))
    with pytest.raises(DataFileError, match="No such file"):
        haystack.from_file(str(tmp_path / "none.txt"))
    with pytest.raises(TaskError, match="did you mean 'train'"):
        haystack.sentences("trian")
