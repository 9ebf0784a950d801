"""Bundles become entries, entries a leaderboard; what stands is never changed, and the same entries give the same bytes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from proteus_bench.errors import InvalidFileError, UsageError
from proteus_bench.leaderboard import Options, add_runs, build_leaderboard, merge, retire, submit, verify
from proteus_bench.leaderboard.board_schema import schema_texts
from proteus_bench.leaderboard.entry import read_entry
from proteus_bench.leaderboard.item_scores import parse_scores
from proteus_bench.leaderboard.schema import Statement

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def options(tiny_suite: str) -> Options:
    return Options(suites=(Path(tiny_suite),))


@pytest.fixture
def board(run_folder: Path, tmp_path: Path, options: Options) -> Path:
    add_runs([run_folder], tmp_path / "board", options)
    return tmp_path / "board"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.*") if p.is_file() and p.name != ".lock"}


def test_a_run_gives_one_entry_a_method_and_the_same_bytes_again(
    run_folder: Path, tmp_path: Path, options: Options
) -> None:
    board = tmp_path / "leaderboards"
    first = add_runs([run_folder], board, options)
    assert [(a.model, a.new, a.rankable) for a in first.added] == [("titans+proteus", True, True), ("titans", True, True)]
    before = files(board)
    assert all(not a.new for a in add_runs([run_folder], board, options).added)
    (board / "leaderboard.json").unlink()
    build_leaderboard(board)
    assert files(board) == before
    (one,) = json.loads((board / "leaderboard.json").read_text())["boards"]
    assert {row["label"] for row in one["rows"]} == {"titans", "titans+proteus"}
    assert all(row["seeds"] == [0, 1] and row["tier"] == "V2" and row["ranked"] for row in one["rows"])


def test_the_numbers_of_an_entry_are_those_of_its_run(board: Path, run_folder: Path) -> None:
    run = json.loads((run_folder / "run.json").read_text())
    for path in (board / "entries").glob("*.json"):
        entry = read_entry(path)
        records = [r for r in run["records"] if r["label"] == entry.label]
        for cell in entry.cells:
            scores = [c["score"] for r in records for c in r["cells"] if c["task"] == cell.task]
            assert parse_scores(cell.scores).mean(axis=1).tolist() == pytest.approx(scores)
            assert cell.score == pytest.approx(np.mean(scores), abs=1e-8)
        assert entry.overall.score == pytest.approx(np.mean([cell.score for cell in entry.cells]), abs=1e-8)
        assert entry.cost is not None and entry.cost.seconds_per_item > 0
        share = entry.active
        assert share is not None and (share == 1.0) == (entry.schedule == "static")
        assert entry.opening is not None and entry.opening == sorted(entry.opening)
        # every multiquery question has one gold whose depth the items know, though the rows list all needles
        assert sum(b.n for c in entry.cells for b in c.depths if c.task == "niah.multiquery") == 2 * 4 * 4


def test_submit_verify_merge_is_add(run_folder: Path, tmp_path: Path, options: Options, board: Path) -> None:
    for name in ("bundle", "bundle.zip"):
        into = tmp_path / f"board-{name}"
        submit([run_folder], tmp_path / name, Statement())
        assert verify(tmp_path / name, options).reached == 2
        merge(tmp_path / name, into, options)
        assert files(into) == files(board)


def test_a_bundle_is_one_file_for_one_content(run_folder: Path, tmp_path: Path) -> None:
    ids = {submit([run_folder], tmp_path / name, Statement(configs_tried=3)) for name in ("a.zip", "b.zip", "folder")}
    assert len(ids) == 1
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert submit([run_folder], tmp_path / "c.zip", Statement(configs_tried=4)) not in ids
    with pytest.raises(UsageError, match="there already"):
        submit([run_folder], tmp_path / "a.zip", Statement())
    with pytest.raises(UsageError, match="given twice"):
        submit([run_folder, run_folder], tmp_path / "d.zip", Statement())


def _change_entry(path: Path, change) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_other_values_under_the_same_identity_are_refused(board: Path, run_folder: Path, options: Options) -> None:
    path = sorted((board / "entries").glob("*.json"))[0]
    scores = "1 1 1 1"

    def change(data: dict) -> None:
        data["cells"][0]["scores"] = [scores, scores]

    _change_entry(path, change)
    before = files(board)
    with pytest.raises(InvalidFileError, match="its item scores give"):
        add_runs([run_folder], board, options)
    assert files(board) == before


def test_an_honest_entry_with_other_values_is_not_overwritten(
    board: Path, run_folder: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sorted((board / "entries").glob("*.json"))[0]
    _change_entry(path, lambda data: data["cells"][0].update(logprob=-1.5))
    with pytest.raises(InvalidFileError, match="another cells .* not overwritten"):
        add_runs([run_folder], board, options)


def test_an_entry_under_a_wrong_name_is_refused(board: Path) -> None:
    path = next((board / "entries").glob("*.json"))
    path.rename(path.with_name("0" * 16 + ".json"))
    with pytest.raises(InvalidFileError, match="its name is not its id"):
        build_leaderboard(board)


def test_a_run_of_an_unknown_suite_reaches_v1_and_does_not_rank(run_folder: Path, tmp_path: Path) -> None:
    found = verify(run_folder, Options(level=2))
    assert found.reached == 1 and "is not installed here" in found.refused[0][1]
    merged = add_runs([run_folder], tmp_path / "board", Options(level=1))
    assert {a.reason for a in merged.added} == {"checked to V1 only"}


def test_a_higher_tier_replaces_a_lower_one_and_not_the_reverse(
    run_folder: Path, tmp_path: Path, options: Options
) -> None:
    board = tmp_path / "board"
    add_runs([run_folder], board, Options(level=1))
    assert {a.state for a in add_runs([run_folder], board, options).added} == {"raised"}
    before = files(board)
    assert {a.state for a in add_runs([run_folder], board, Options(level=1)).added} == {"there"}
    assert files(board) == before


def test_removed_rows_are_reported(board: Path) -> None:
    path = sorted((board / "entries").glob("*.json"))[0]
    path.unlink()
    assert build_leaderboard(board).removed == (path.stem,)
    assert build_leaderboard(board).removed == ()


def test_a_retired_entry_is_in_the_archive_with_its_reason_and_does_not_come_back(
    board: Path, run_folder: Path, options: Options
) -> None:
    name = sorted((board / "entries").glob("*.json"))[0].stem
    built = retire(name, board, "trained on the test split")
    assert built.removed == ()
    assert [(r.id, r.reason) for r in built.board.retired] == [(name, "trained on the test split")]
    with pytest.raises(InvalidFileError, match="was retired"):
        add_runs([run_folder], board, options)
    for bad in ("nothere", "../x"):
        with pytest.raises(UsageError):
            retire(bad, board, "x")
    assert len(add_runs([run_folder], board, options, fresh=True).added) == 2
    assert json.loads((board / "leaderboard.json").read_text())["retired"] == []


def test_rows_of_an_old_scorer_move_to_the_archive(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus_bench.leaderboard.build.SCORER_VERSION", "2")
    built = build_leaderboard(board).board
    assert built.boards == []
    (old,) = built.archive
    assert "strict version 1; this is strict version 2" in old.archived
    assert all(row.rank_best is None and not row.ranked for row in old.rows)


def test_no_old_version_of_a_suite_is_live() -> None:
    from proteus_bench.leaderboard.build import _version

    assert sorted(["10", "9", "1.2", "1.10"], key=_version) == ["1.2", "1.10", "9", "10"]


def test_the_committed_schemas_are_those_of_the_models() -> None:
    texts = schema_texts()
    assert {p.name: p.read_text("utf-8") for p in (ROOT / "schemas").glob("*.json")} == texts
    for name, text in texts.items():
        schema = json.loads(text)
        assert schema["additionalProperties"] is False, name


def test_published_numbers_are_shown_and_never_ranked(board: Path) -> None:
    shutil.copytree(ROOT / "leaderboards" / "published", board / "published")
    document = json.loads((build_leaderboard(board).path).read_text())
    (printed,) = document["published"]
    values = {(r["model"], r["task"], r["length"]): r["value"] for r in printed["rows"]}
    assert values["titans+proteus", "s-niah-2", 16384] == 74.2 and values["titans", "s-niah-2", 16384] == 69.4
    assert "no interval" in printed["conditions"] and "seeds" in printed["not_reported"]
    for row in printed["rows"]:
        assert not {"rank_best", "ranked", "ci_low"} & set(row)
        assert (row["value"] is None) != (row["gain"] is None)
    assert all("s-niah" not in c["task"] for b in document["boards"] for r in b["rows"] for c in r["cells"])


def test_the_committed_leaderboard_stands(tmp_path: Path) -> None:
    """Every entry comes out of its bundle, and leaderboard.json out of the entries. (The page also changes with its style.)"""
    shutil.copytree(ROOT / "leaderboards", tmp_path / "board", ignore=shutil.ignore_patterns("site", ".lock"))
    found = verify(tmp_path / "board", Options(level=1))
    assert found.ok, found.refused
    assert len(found.entries) >= 2


def test_rebuilding_elsewhere_gives_the_same_bytes(board: Path, environment) -> None:  # type: ignore[no-untyped-def]
    """Another time zone, locale, hash seed and working directory."""
    code = (
        "import sys; from pathlib import Path\n"
        "from proteus_bench.leaderboard import build_leaderboard\n"
        "from proteus_bench.site import write_page\n"
        "folder = Path(sys.argv[1])\n"
        "write_page(build_leaderboard(folder).board, folder / 'site')\n"
        "heavy = {'torch', 'transformers', 'proteus_models', 'proteus_kernels'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    seen = []
    for extra in (
        {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "0"},
        {"TZ": "Pacific/Kiritimati", "LC_ALL": "C.UTF-8", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "77"},
    ):
        shutil.rmtree(board / "site", ignore_errors=True)
        (board / "site").mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, str(board)], env=environment(None, **extra), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        seen.append(files(board))
    assert seen[0] == seen[1] and "site/index.html" in seen[0]


def test_verify_up_to_v2_never_loads_torch(
    run_folder: Path, tmp_path: Path, tiny_suite: str, tiny_zoo: Path, environment
) -> None:  # type: ignore[no-untyped-def]
    submit([run_folder], tmp_path / "b.zip", Statement())
    code = (
        "import sys; from proteus_bench.cli import invoke\n"
        "code = invoke(['leaderboard', 'verify', *sys.argv[1:], '--level', '2', '--json'])\n"
        "heavy = {'torch', 'transformers', 'proteus_models', 'proteus_kernels'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b.zip"), "--suite", tiny_suite],
        env=environment(tiny_zoo), capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] and document["reached"] == 2 and document["refused"] == []
    assert [e["ranked"] for e in document["entries"]] == [True, True]
