"""Suites: shipped ones are what they were, and a suite file is hostile input."""

import pytest

from proteus_tasks import NIAH_TASKS as TASKS
from proteus_tasks import ByteTokenizer, SuiteError, freeze, suites
from proteus_tasks.resources import suites_dir
from proteus_tasks.tokenizers import resolve

NAMES = ("niah4k", "niah8k", "niah16k", "niah32k")
GOOD = (
    'id = "mine"\nversion = "1"\ndescription = "d"\ndata_seed = 0\nsplit = "test"\nlength = 512\nn = 2\n'
    'tasks = ["niah.single_1"]\n'
)


def test_shipped_suites():
    assert tuple(name for name in suites.list_suites() if name.startswith("niah")) == NAMES
    for name in NAMES:
        suite = suites.load_suite(name)
        assert suite.id == name and suite.length == int(name[4:-1]) * 1024 and suite.split == "test"
        assert sorted(suite.tasks) == sorted(TASKS)
        assert set(suite.hashes) == {"bytes", resolve("micro").fingerprint}
        assert suite.cells()[0] == ("niah.single_1", suite.length, 100)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_items_are_unchanged_for_bytes(name):
    suite = suites.load_suite(name)
    tasks = suite.tasks if name in ("niah4k", "niah16k") else ("niah.single_2", "niah.multikey_2")
    assert freeze.changed_tasks(suite, ByteTokenizer(), tasks) == []


def test_frozen_items_are_unchanged_for_the_micro_tokenizer():
    assert (
        freeze.changed_tasks(suites.load_suite("niah4k"), resolve("micro"), ("niah.single_1", "niah.multiquery")) == []
    )


def test_a_changed_item_is_noticed():
    data = (suites_dir() / "niah4k.toml").read_text().replace("data_seed = 0", "data_seed = 1")
    suite = suites.parse_suite(data.encode(), "changed.toml")
    assert freeze.changed_tasks(suite, ByteTokenizer(), ("niah.single_1",)) == ["niah.single_1"]


def test_the_freezer_writes_what_the_loader_reads():
    for name in NAMES:
        suite = suites.load_suite(name)
        assert (
            freeze.render(suite, {k: dict(v) for k, v in suite.hashes.items()})
            == (suites_dir() / f"{name}.toml").read_text()
        )
    assert freeze.main(["--check", "niah5k"]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("n = 2", "n = 0"), "'n' must be in 1..100000"),
        (("n = 2", "n = true"), "'n' must be of type int"),
        (("length = 512", "length = 1e9"), "'length' must be of type int"),
        (("length = 512", "length = 99999999"), "'length' must be in"),
        (("split =", "spilt ="), "unknown key 'spilt' \\(did you mean 'split'\\?\\)"),
        (('"test"', '"tset"'), "unknown split 'tset'"),
        (("single_1", "singel_1"), "unknown task 'niah.singel_1' \\(did you mean 'niah.single_1'"),
        (('["niah.single_1"]', "[]"), "no tasks"),
        (('["niah.single_1"]', '["niah.single_1", "niah.single_1"]'), "stands twice"),
        (('["niah.single_1"]', "[[1]]"), "unknown task"),
        (('id = "mine"', 'id = "../x"'), "id must be"),
        (('id = "mine"\n', ""), "missing id"),
        (("data_seed = 0", "data_seed = -1"), "'data_seed' must be in"),
        (("length", "[length"), "not valid TOML"),
    ],
)
def test_bad_files_are_refused(change, message):
    assert suites.parse_suite(GOOD.encode(), "mine.toml").n == 2
    with pytest.raises(SuiteError, match=message) as caught:
        suites.parse_suite(GOOD.replace(*change).encode(), "mine.toml")
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "hashes",
    [
        '[hashes.bytes]\n"niah.single_1" = "xyz"',
        "[hashes.bytes]",
        "[hashes]\nbytes = 1",
        '[hashes."a b"]\n"niah.single_1" = "a"',
    ],
)
def test_bad_hashes_are_refused(hashes):
    with pytest.raises(SuiteError, match="hash"):
        suites.parse_suite((GOOD + hashes + "\n").encode(), "mine.toml")


def test_size_encoding_depth_and_paths(tmp_path):
    for data in (b"\xff\xfe", b"a = " + b"[" * 50_000):
        with pytest.raises(SuiteError, match="not valid TOML"):
            suites.parse_suite(data, "x")
    big = tmp_path / "big.toml"
    big.write_text(GOOD + "#" * suites.MAX_BYTES)
    with pytest.raises(SuiteError, match="larger than 256 KiB"):
        suites.load_suite(big)
    for name in ("niah16", "..", "", "niah4k\n"):
        with pytest.raises(SuiteError, match="unknown suite") as caught:
            suites.load_suite(name)
        assert caught.value.exit_code == 2
    with pytest.raises(SuiteError, match="no suite file"):
        suites.load_suite("../niah4k.toml")
    (tmp_path / "mine.toml").write_text(GOOD)
    assert suites.load_suite(tmp_path / "mine.toml") == suites.load_suite(str(tmp_path / "mine.toml"))
