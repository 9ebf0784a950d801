"""What stands is checked against the bundles that it came from; a hand-written or edited entry is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.leaderboard import Options, Verification, add_runs, verify
from proteus_bench.leaderboard.items import Book
from proteus_bench.leaderboard.rerun import Retraining, Sample, excess
from proteus_bench.store import digest
from tests.bench.leaderboard_help import Forger, fails

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def board(forger: Forger, tmp_path: Path, tiny_suite: str) -> Path:
    add_runs([forger.folder], tmp_path / "board", Options(suites=(Path(tiny_suite),)))
    return tmp_path / "board"


def first_entry(board: Path) -> tuple[Path, dict[str, Any]]:
    path = sorted((board / "entries").glob("*.json"))[0]
    return path, json.loads(path.read_text())


def test_a_leaderboard_that_was_built_passes(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    assert check(board, level=3).ok
    assert check(first_entry(board)[0]).ok


def test_a_hand_written_entry_is_refused(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    """It adds up, it has an id of its own, and no bundle gives it."""
    from proteus_bench.leaderboard import build_leaderboard
    from proteus_bench.leaderboard.entry import entry_id

    _, entry = first_entry(board)
    entry["identity"]["records"] = sorted(digest(["made up", i]) for i in range(2))
    for record, name in zip(entry["records"], entry["identity"]["records"], strict=True):
        record.update(record_id=name, checkpoint_sha256=digest([name]), predictions_sha256=digest([name, 1]))
    entry["id"] = entry_id(entry["identity"])
    path = board / "entries" / f"{entry['id']}.json"
    path.write_text(json.dumps(entry))
    build_leaderboard(board)
    fails(check(board), 1, f"entries/{path.name}: no bundle gives it: written by hand")
    fails(check(path), 1, "no bundle gives it")


def test_an_edited_entry_is_refused(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    path, entry = first_entry(board)
    entry["overall"]["score"] = 0.9
    path.write_text(json.dumps(entry))
    fails(check(board), 1, "the mean: score is 0.9, its item scores give")
    fails(check(path), 1, "the mean: score is 0.9")


def test_an_entry_that_was_edited_to_add_up_is_refused(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    from proteus_bench.leaderboard import build_leaderboard
    from proteus_bench.leaderboard.entry import block_of, cell_interval, overall_block
    from proteus_bench.leaderboard.item_scores import parse_scores
    from proteus_bench.leaderboard.schema import EntryCell

    path, entry = first_entry(board)
    cell = entry["cells"][0]
    cell["scores"] = ["1 1 1 0", "1 1 1 1"]
    cell.update(block_of(cell_interval(parse_scores(cell["scores"])), [parse_scores(cell["scores"])]))
    entry["overall"] = overall_block([EntryCell.model_validate(c) for c in entry["cells"]])
    path.write_text(json.dumps(entry))
    build_leaderboard(board)
    fails(check(board), 1, "is not what its bundle gives")


@pytest.mark.parametrize("field", ["n_params", "label", "statement", "cost"])
def test_an_entry_that_boasts_is_refused(board: Path, check, field: str) -> None:  # type: ignore[no-untyped-def]
    from proteus_bench.leaderboard import build_leaderboard

    path, entry = first_entry(board)
    told = {
        "n_params": 7, "label": "titans+best", "cost": {"seconds_per_item": 0.0, "tokens_per_second": 1e9},
        "statement": {**entry["statement"], "configs_tried": 1},
    }  # fmt: skip
    entry[field] = told[field]
    path.write_text(json.dumps(entry))
    build_leaderboard(board)
    fails(check(board), 1, f"{field} is not what its bundle gives")


def test_an_edited_leaderboard_file_or_page_is_refused(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    from proteus_bench.leaderboard.build import leaderboard_of
    from proteus_bench.site import write_page

    (board / "site").mkdir()
    write_page(leaderboard_of(board), board / "site")
    page = board / "site" / "index.html"
    page.write_text(page.read_text().replace("titans", "titan", 1))
    fails(check(board), 1, "site/index.html is not what the entries give")
    path = board / "leaderboard.json"
    path.write_text(path.read_text().replace('"tie_group": 1', '"tie_group": 2'))
    fails(check(board), 1, "leaderboard.json is not what its entries give")


def test_a_bundle_that_was_taken_away_or_changed_is_noticed(board: Path, check) -> None:  # type: ignore[no-untyped-def]
    (bundle,) = (board / "bundles").glob("*.zip")
    other = bundle.with_name("0" * 16 + ".zip")
    bundle.rename(other)
    with pytest.raises(Exception, match="its name is not the start of its manifest's hash"):
        check(board)
    other.unlink()
    fails(check(board), 1, "no bundle gives it")


# -- V4: trained again


def test_seeds_that_score_higher_than_a_new_training_are_refused_and_equal_ones_are_not() -> None:
    honest = excess([0.50, 0.53, 0.47, 0.51], 0.49, 400)
    picked = excess([0.70, 0.71, 0.69, 0.72], 0.50, 400)
    lucky = excess([0.5, 0.5, 0.5], 0.48, 40)
    assert honest is not None and picked is not None and lucky is not None
    assert honest > 0.1 and picked < 0.01 and lucky > 0.1
    assert excess([0.5], 0.5, 100) is None
    better = excess([0.3, 0.31, 0.29], 0.6, 400)
    assert better is not None and better > 0.99, "a submission that undersells itself is no cheat"


RECIPE = """name = "tiny"
backbone = "titans"
[model]
train_length = 256
d_model = 16
n_heads = 1
n_layers = 1
head_k = 8
head_v = 8
inner = 8
mlp_hidden = 16
[capacity]
axis = "value"
[trunk]
lr = 1e-3
stages = [{ length = 64, tokens = 256, batch_tokens = 128 }]
[branch]
lr = 1e-3
stages = [{ length = 64, tokens = 256, batch_tokens = 128 }]
[[branches]]
name = "titans"
schedule = "static"
"""


def test_v4_trains_a_seed_again_and_finds_the_same_bytes_or_says_what_differs(  # type: ignore[no-untyped-def]
    tmp_path: Path, tiny_suite: str, book: Book, monkeypatch: pytest.MonkeyPatch, cli
) -> None:
    """A real training of a few steps: an honest run passes, weights that the recipe does not give are noticed."""
    from proteus_models import grid
    from proteus_models.recipe import load_recipe

    recipe, zoo = tmp_path / "tiny.toml", tmp_path / "zoo"
    recipe.write_text(RECIPE)
    zoo.mkdir()
    shutil.copy(ROOT / "models" / "zoo" / "tokenizer.json", zoo)
    for seed in (0, 1):
        grid.train_recipe(load_recipe(recipe), seed, tmp_path / "work", zoo=zoo, report=lambda row: None)
    done = cli(
        "run", "--model", "titans", "--suite", tiny_suite, "--out", str(tmp_path / "run"), "--workers", "1", zoo=zoo
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("PROTEUS_BENCH_ZOO", str(zoo))
    said: list[str] = []

    def check(seed: int) -> Verification:
        again = Retraining(recipe, tmp_path / f"again{seed}", seed)
        options = Options(4, (Path(tiny_suite),), sample=Sample(1, 0), retraining=again, say=said.append)
        return verify(tmp_path / "run", options, book)

    found = check(0)
    assert found.ok and {entry.tier for entry in found.entries} == {"V4"}, found.refused
    assert any("trained again to the same bytes" in text for text in said)
    found = check(2)  # a seed that was not submitted: the two that were are its reference, and both answer nothing
    assert found.ok and any("when trained again" in text for text in said), found.refused
    recipe.write_text(RECIPE.replace("1e-3", "2e-3"))
    fails(check(0), 4, "its cards name another recipe")
    recipe.write_text(RECIPE.replace('"titans"\nschedule', '"gdn"\nschedule'))
    fails(check(0), 4, "none of its models is one of recipe tiny")
