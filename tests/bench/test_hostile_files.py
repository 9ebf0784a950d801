"""JSON, rows, names and links are hostile until they are checked; each is refused with exit 3 and one line."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proteus_bench.errors import BenchError, InvalidFileError
from proteus_bench.leaderboard import Options, build_leaderboard, submit, verify
from proteus_bench.leaderboard.checks import timing_of
from proteus_bench.leaderboard.export import csv_cell
from proteus_bench.leaderboard.forms import check_as, plain_text
from proteus_bench.leaderboard.schema import Bundle, Entry, Row, Statement
from proteus_bench.store import loads_strict, read_log
from proteus_bench.store.canonical import file_digest
from proteus_bench.store.log import _line, parse_log
from tests.bench.leaderboard_help import edit, look, manifest, refused


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Path:
    submit([finished], tmp_path / "bundle", Statement())
    return tmp_path / "bundle"


# -- JSON

HOSTILE_JSON = [
    '{"schema": NaN}', '{"schema": 1e999}', '{"schema": -Infinity}', '{"schema": 1, "schema": 2}', "[" * 200 + "]" * 200,
    '{"a": "\\ud800"}', "", "null", "[]", "3", '"x"', '{"schema": "proteus-bench/bundle@1"}', "\xff\xfe",
    '{"a": 1' + "0" * 5000 + "}", "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_JSON)
@pytest.mark.parametrize("place", ["bundle.json", "run.json", "entry", "retired", "published", "timing.json"])
def test_hostile_json_is_refused_everywhere(finished: Path, bundle: Path, tmp_path: Path, text: str, place: str) -> None:
    data = text.encode("latin-1")
    if place in ("bundle.json", "run.json"):
        path = bundle / place if place == "bundle.json" else tmp_path / "r" / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        refused(lambda: look(path.parent))
    elif place == "timing.json":
        (tmp_path / place).write_bytes(data)
        refused(lambda: timing_of(tmp_path))
    else:
        folder = tmp_path / "board" / {"entry": "entries", "retired": "archive", "published": "published"}[place]
        folder.mkdir(parents=True)
        (folder / ("0" * 16 + ".json")).write_bytes(data)
        refused(lambda: build_leaderboard(tmp_path / "board"))


@pytest.mark.parametrize("row", [
    {}, {"index": -1}, {"index": True}, {"index": 0.5}, {"strict": 2.0}, {"strict": None}, {"golds": []}, {"golds": "x"},
    {"logprob": "0"}, {"extra": 1}, {"item_sha256": "x"}, {"output_ids": [1.5]}, {"output": "x" * (1 << 21)},
])  # fmt: skip
def test_rows_of_a_wrong_form_are_refused(finished: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "r"))
    run = json.loads((folder / "run.json").read_text())
    cell = run["records"][0]["cells"][0]
    path = folder / cell["file"]
    rows = read_log(path)
    rows[0] = {**rows[0], **row} if row else {}
    path.write_bytes(b"".join(map(_line, rows)))
    cell["sha256"] = file_digest(path)
    (folder / "run.json").write_text(json.dumps(run))
    refused(lambda: look(folder), "V0")


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(JSONS)
def test_any_json_is_a_file_or_refused(value: Any) -> None:
    for kind in (Bundle, Entry, Row):
        with pytest.raises(InvalidFileError):
            check_as(kind, value, "x")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for parse in (loads_strict, parse_log):
        try:
            parse(data, "x")
        except InvalidFileError as error:
            assert "\n" not in str(error)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_run_file_with_any_changed_value_is_refused_or_still_true(finished: Path, tmp_path: Path, data: st.DataObject) -> None:
    """One value of run.json is replaced: either the verifier notices, or nothing that an entry says depends on it."""
    folder = tmp_path / "r"
    if not folder.exists():
            shutil.copytree(finished, folder)
    run = json.loads((finished / "run.json").read_text())
    holder, key = data.draw(st.sampled_from(list(_places(run))))
    holder[key] = data.draw(JSONS)
    try:
        (folder / "run.json").write_text(json.dumps(run))
        verify(folder, Options(level=1))
    except (BenchError, UnicodeEncodeError) as error:
        assert "\n" not in str(error)


def _places(value: Any) -> Any:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


# -- names, links, spreadsheets, terminals

EVIL = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</title><script>x</script>", "a\x1b[31mred\x1b]0;t\x07",
    "a\u202etxt.exe", "\ud800", "{{ 7*7 }}", "{% raw %}", "</style><b>", "&amp;<", "=cmd|' /C calc'!A0", "@SUM(1)", "\t=1+1",
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_names_are_shown_as_text_or_refused(finished: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "r"))

    def change(run: Any) -> None:
        for record in run["records"]:
            record["model"] = name

    edit(folder / "run.json", change)
    try:
        found = verify(folder, Options(level=0))
    except InvalidFileError as error:
        assert str(error).isprintable() and "\n" not in str(error)
        with pytest.raises(ValueError):
            plain_text(name)
    else:
        assert plain_text(name) and found.reached == 0


@pytest.mark.parametrize(
    "link",
    ["javascript:alert(1)", "http://x.org", "data:text/html,x", "https://x.org/\"onclick=", "//x.org", "https://", "HTTPS://x"],
)
def test_only_https_links_are_taken(bundle: Path, link: str) -> None:
    manifest(bundle, lambda m: m["statement"].update(link=link))
    refused(lambda: look(bundle), "link")


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", " =1", "\n=1", "'=1"])
def test_no_cell_of_a_csv_is_a_formula(cell: str) -> None:
    assert csv_cell(cell) == "'" + cell
    assert csv_cell(-1.5) == -1.5 and csv_cell(None) == "" and csv_cell("titans+x") == "titans+x"


def test_terminal_escapes_of_a_file_are_not_printed(cli, bundle: Path) -> None:  # type: ignore[no-untyped-def]
    manifest(bundle, lambda m: m["runs"][0]["files"][0].update(path="a\x1b[31m\nb"))
    done = cli("leaderboard", "verify", str(bundle))
    assert done.returncode == 3 and done.stderr.isascii() and "\x1b" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
