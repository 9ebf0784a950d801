"""Choices, whole words and documents in one run: rows, intervals on every metric, a mean of the suite, the leaderboard's checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from outside import save_own

from proteus_bench.errors import UsageError
from proteus_bench.runner.cell import asks_of, settled
from proteus_bench.score import picked, score_answer
from proteus_bench.store import read_log
from proteus_tasks import TASKS, ByteTokenizer

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
pytestmark = pytest.mark.hf
NAMES = ("lambada", "hellaswag", "winogrande", "wikitext")


@pytest.fixture
def suite(tmp_path: Path) -> str:
    tasks = ", ".join(f'"commonsense.{name}-fixture"' for name in NAMES)
    (tmp_path / "sense.toml").write_text(
        f'id = "sense"\nversion = "1"\ndescription = "d"\ndata_seed = 0\nsplit = "test"\nlength = 256\nn = 8\ntasks = [{tasks}]\n'
    )
    return "./sense.toml"


def cells_of(folder: Path) -> dict[tuple[str, str, int], dict[str, Any]]:
    run = json.loads((folder / "run.json").read_text())
    return {(r["label"], c["task"].split(".")[1], r["seed"]): c for r in run["records"] for c in r["cells"]}


def test_a_run_of_our_models_and_of_their_folder(cli: Any, suite: str, tmp_path: Path, tiny_zoo: Path) -> None:
    done = cli("run", "--model", "gdn+proteus", "--suite", suite, "--out", "ours", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "gdn+proteus: mean of the suite" in done.stdout and "on commonsense.lambada-fixture at 256: perplexity" in done.stdout
    save_own(tmp_path / "ckpt", tiny_zoo, "gdn+proteus")
    assert cli("run", "--model", "hf:./ckpt", "--suite", suite, "--out", "theirs").returncode == 0
    ours, theirs = cells_of(tmp_path / "ours"), cells_of(tmp_path / "theirs")
    assert len(ours) == 4 * 2 * 2 and len(theirs) == 4
    for (_, task, seed), cell in theirs.items():
        mine = ours["gdn+proteus", task, seed]
        for low, value, high in (("ci_low", "score", "ci_high"), ("compat_ci_low", "compat", "compat_ci_high"),
                                 ("logprob_ci_low", "logprob", "logprob_ci_high")):  # fmt: skip
            assert mine[low] <= mine[value] <= mine[high]
            assert mine[value] == pytest.approx(cell[value], abs=1e-3)
        assert ("perplexity" in mine) == (task in ("lambada-fixture", "wikitext-fixture"))
    running = ours["gdn+proteus", "wikitext-fixture", 0]
    rows = read_log(tmp_path / "ours" / running["file"])
    assert running["perplexity"]["tokens"] == sum(row["words"] for row in rows)
    assert running["perplexity"]["ci_low"] < running["perplexity"]["value"] < running["perplexity"]["ci_high"]
    for row in read_log(tmp_path / "ours" / ours["gdn+proteus", "hellaswag-fixture", 0]["file"]):
        assert len(row["choices"]) == 4 and max(row["choices"]) < 0 and row["output_ids"] == []
        assert row["strict"] == float(row["output"].strip() == row["golds"][0])
        assert row["logprob"] in row["choices"]
    added = cli("leaderboard", "add", "ours", "theirs", "--into", "board", "--suite", suite)
    assert added.returncode == 0, added.stderr
    assert len(list((tmp_path / "board" / "entries").glob("*.json"))) == 3


def test_a_row_whose_choices_were_changed_is_refused(cli: Any, suite: str, tmp_path: Path) -> None:
    from proteus_bench.store import CellLog

    run = ("run", "--model", "gdn", "--suite", suite, "--seeds", "1", "--limit", "3", "--out", "run", "--workers", "1")
    assert cli(*run).returncode == 0
    held = json.loads((tmp_path / "run" / "run.json").read_text())
    cell = next(c for c in held["records"][0]["cells"] if "winogrande" in c["task"])
    path = tmp_path / "run" / cell["file"]
    rows = read_log(path)
    wrong = next(row for row in rows if row["strict"] in (0.0, 1.0))
    wrong["choices"] = wrong["choices"][::-1]
    path.unlink()
    log = CellLog(path)
    log.append(rows)
    log.close()
    from proteus_bench.store.canonical import file_digest

    cell["sha256"] = file_digest(path)
    (tmp_path / "run" / "run.json").write_text(json.dumps(held))
    assert cli("leaderboard", "submit", "run", "--out", "bundle").returncode == 0
    done = cli("leaderboard", "verify", "bundle", "--level", "2", "--suite", suite)
    assert done.returncode == 1 and "scoring its output again" in done.stdout + done.stderr


def test_the_first_of_equal_choices_is_taken_and_a_diverged_one_scores_nothing() -> None:
    item = TASKS["commonsense.hellaswag-fixture"].item(0, length=256, tokenizer=ByteTokenizer())
    assert picked(item, "choice@1", [-3.0, -2.0, -2.0, -9.0]) == 1
    lengths = [len(text) for text in item.meta["choices"]]
    assert picked(item, "choice-per-char@1", [-float(n) for n in lengths]) == 0
    longest = lengths.index(max(lengths))
    assert picked(item, "choice-per-char@1", [-60.0] * 4) == longest
    assert picked(item, "choice@1", [-1.0, float("nan"), -1.0, -1.0]) is None
    scores = score_answer(item, 0, "", choices=[float("nan")] * 4)
    assert scores == (0.0, 0.0)
    with pytest.raises(ValueError, match="3 log-probabilities for 4 choices"):
        picked(item, "choice@1", [-1.0] * 3)
    with pytest.raises(ValueError, match="needs the log-probability of every choice"):
        score_answer(item, 0, "x")


def test_a_model_without_log_probabilities_is_refused_in_one_line() -> None:
    from proteus_bench.backends import Reply

    item = TASKS["commonsense.piqa-fixture"].item(0, length=256, tokenizer=ByteTokenizer())
    replies = [Reply("", [], None, 1, 1, 0.0) for _ in asks_of(item)]
    with pytest.raises(UsageError, match="does not give"):
        settled(item, replies)
