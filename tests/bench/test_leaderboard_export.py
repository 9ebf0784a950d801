"""The leaderboard in other forms, and what a submitter may say."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from proteus_bench.errors import BenchError
from proteus_bench.leaderboard import Options, add_runs, verify


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def board(run_folder: Path, tmp_path: Path, tiny_suite: str) -> Path:
    add_runs([run_folder], tmp_path / "board", Options(suites=(Path(tiny_suite),)))
    return tmp_path / "board"


def test_csv_has_one_line_a_row_and_cell(board: Path, cli) -> None:  # type: ignore[no-untyped-def]
    done = cli("leaderboard", "export", str(board), "--to", "csv", "--out", "x")
    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader((board.parent / "x" / "leaderboard.csv").open(encoding="utf-8")))
    assert len(lines) == 2 * (1 + 2)
    assert {line["task"] for line in lines} == {"all", "niah.single_1", "niah.multiquery"}


def test_every_eval_ever_documents_have_their_required_fields_and_strings(board: Path, tmp_path: Path) -> None:
    """The rules of that schema which a validator checked once (docs/leaderboard.md): required keys, and text-only details."""
    from proteus_bench.leaderboard.export import export

    written = export(board, "eee", tmp_path / "eee", "1700000000")
    assert len(written) == 2
    again = export(board, "eee", tmp_path / "eee2", "1700000000")
    assert [p.read_bytes() for p in written] == [p.read_bytes() for p in again]
    for path in written:
        document = json.loads(path.read_text())
        assert set(document) == {
            "schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "eval_library", "model_info",
            "evaluation_results",
        }  # fmt: skip
        _only_text_in_details(document)
        for result in document["evaluation_results"]:
            ci = result["score_details"]["uncertainty"]["confidence_interval"]
            assert ci["lower"] <= result["score_details"]["score"] <= ci["upper"] and ci["confidence_level"] == 0.95
            assert result["metric_config"]["lower_is_better"] is False
        assert path.parent.parent.name == "proteus-bench" and path.stem[14] == "4"


def _only_text_in_details(value: object) -> None:
    if isinstance(value, dict):
        for key, child in value.items():
            if key in ("additional_details", "details"):
                assert all(isinstance(text, str) for text in child.values()), child
            _only_text_in_details(child)
    elif isinstance(value, list):
        for child in value:
            _only_text_in_details(child)


def test_an_unknown_export_is_a_usage_error(board: Path, cli) -> None:  # type: ignore[no-untyped-def]
    done = cli("leaderboard", "export", str(board), "--to", "eeee")
    assert done.returncode == 2 and "did you mean 'eee'" in done.stderr


def test_what_a_submitter_says_is_checked(cli, run_folder: Path) -> None:  # type: ignore[no-untyped-def]
    for args in (["--link", "javascript:alert(1)"], ["--link", "http://x.org"], ["--note", "a\x1b[31mb"], ["--note", "\u202eb"]):
        done = cli("leaderboard", "submit", str(run_folder), "--out", "b", *args)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
    with pytest.raises(BenchError):
        verify(Path("nowhere"))
