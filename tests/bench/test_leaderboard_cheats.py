"""Planted cheats: each is refused at the level that can see it, with the reason. The forger updates every hash and sum."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.leaderboard import Options, add_runs, submit, verify
from proteus_bench.leaderboard.items import Book
from proteus_bench.leaderboard.rerun import Sample
from proteus_bench.leaderboard.schema import Statement
from proteus_bench.runner.document import _comparison_blocks
from proteus_bench.runner.results import compare
from proteus_bench.store import CellKey, digest, read_log
from proteus_bench.store.canonical import file_digest
from tests.bench.leaderboard_help import Forger, fails

SCHEDULED, SINGLE, MANY = "titans+proteus", "niah.single_1", "niah.multiquery"


def test_an_honest_run_passes_three_levels(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    found = check(forger.save(), level=3)
    assert found.ok and found.reached == 3, found.refused
    assert {entry.tier for entry in found.entries} == {"V3"}


def test_an_edited_score_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.cell(SCHEDULED, SINGLE)["score"] = 0.75
    fails(check(forger.save()), 1, "the score is 0.75, its rows give")


def test_an_edited_interval_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    cell = forger.cell(SCHEDULED, SINGLE)
    cell["ci_high"] = cell["score"] + 0.01
    fails(check(forger.save()), 1, "the upper end of its interval is")


def test_an_edited_comparison_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    line = forger.run["comparisons"][-1]
    line.update(ci_low=0.01, ci_high=0.2, diff=0.1, outcome="better")
    fails(check(forger.save()), 2, "ci_low is 0.01, its rows give", "outcome is better")


def test_items_that_are_said_to_be_independent_and_are_not_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    assert forger.cell(SCHEDULED, SINGLE)["draws"] == "niah.single_1@1"
    for record in forger.run["records"]:
        for cell in record["cells"]:
            cell["draws"] = f"{cell['task']} at {cell['length']}"
    fails(check(forger.save()), 2, "its items are drawn from niah.single_1@1, not niah.single_1 at 512")


def test_edited_rows_with_all_sums_redone_are_refused_by_scoring_again(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(strict=1.0, compat=1.0)

    for seed in (0, 1):
        forger.rows(SCHEDULED, SINGLE, edit, seed)
    fails(check(forger.save()), 2, "its strict score is 1.0, scoring its output again gives 0.0")


def test_a_changed_log_under_its_old_hash_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows[0].update(strict=1.0), metrics=False)
    forger.cell(SCHEDULED, SINGLE)["sha256"] = "0" * 64
    fails(check(forger.save()), 1, "its log does not match its sha256")


def test_dropped_items_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows.pop())
    fails(check(forger.save()), 1, "items where its identity says")


def test_dropped_items_with_a_new_identity_are_refused_while_called_complete(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows.pop())
    for row in forger.record(SCHEDULED)["identity"]["items"]:
        row[2] -= row[0] == SINGLE
    fails(check(forger.save()), 1, f"called complete with 3 of 4 items of {SINGLE}")


def test_hard_items_left_out_of_the_middle_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows.pop(1))
    fails(check(forger.save()), 1, "items or questions are missing")


def test_duplicated_items_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows.__setitem__(3, dict(rows[0])))
    fails(check(forger.save()), 1, "a question stands twice")


def test_an_item_twice_under_two_numbers_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows.__setitem__(3, {**rows[0], "index": 3}))
    fails(check(forger.save()), 1, "an item stands twice under two numbers", "other items than")


def test_easier_items_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    """Every record asks the forger's own items, so that all of them agree with each other."""

    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row.update(item_sha256=digest([row["index"], "easy"]))

    for record in forger.run["records"]:
        forger.rows(record["label"], SINGLE, edit, record["seed"])
    fails(check(forger.save()), 2, "its item's text is not the one that the suite makes")


def test_golds_bent_to_the_outputs_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[0].update(golds=[rows[0]["output"].strip() or "x"], strict=1.0, compat=1.0)

    forger.rows(SCHEDULED, SINGLE, edit)
    fails(check(forger.save()), 2, "its gold answer is not the one that the suite makes")


def copy_golds(forger: Forger, book: Book) -> None:
    """Outputs that are the gold answers, tokens, scores and log-probabilities included."""
    fingerprint = forger.record(SCHEDULED)["identity"]["tokenizer_sha256"]
    tokenizer = book.tokenizer(fingerprint)

    def edit(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            ids = tokenizer.encode(" " + ", ".join(row["golds"]))
            row.update(
                output_ids=ids, output=tokenizer.decode(ids), strict=1.0, compat=1.0, logprob=-0.01 - row["index"] / 997
            )

    for seed in (0, 1):
        for task in (SINGLE, MANY):
            forger.rows(SCHEDULED, task, edit, seed)
    forger.run["comparisons"] = []


def test_copied_gold_answers_pass_v2_and_are_refused_by_asking_the_checkpoint(
    forger: Forger, book: Book, check
) -> None:  # type: ignore[no-untyped-def]
    copy_golds(forger, book)
    for seed in (0, 1):  # the two seeds must differ, or V1 sees one model twice
        forger.rows(SCHEDULED, SINGLE, lambda rows, s=seed: rows[0].update(logprob=-0.02 - s), seed)
    assert check(forger.save()).reached == 2
    fails(check(forger.folder, level=3), 3, "these are not its predictions")


def _take(forger: Forger, other: str, nudge: float) -> None:
    """The predictions of another model, a little changed in the log-probability. (Here twins of one seed share weights.)"""
    for seed in (0, 1):
        for task in (SINGLE, MANY):
            source = read_log(forger.folder / forger.cell(other, task, 1 - seed)["file"])

            def edit(rows: list[dict[str, Any]], source: list[dict[str, Any]] = source) -> None:
                for row, theirs in zip(rows, source, strict=True):
                    kept = ("output", "output_ids", "strict", "compat")
                    row.update({k: theirs[k] for k in kept}, logprob=theirs["logprob"] - nudge)

            forger.rows(SCHEDULED, task, edit, seed)
    forger.run["comparisons"] = []


def test_another_models_predictions_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    _take(forger, "titans", 0.0)
    fails(check(forger.save()), 1, "has the predictions of titans+proteus seed 1, bit for bit, from other weights")


def test_another_models_predictions_that_were_retouched_are_refused_by_v3(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    _take(forger, "titans", 0.001)
    assert check(forger.save()).reached == 2
    fails(check(forger.folder, level=3), 3, "titans+proteus seed 0")


def test_predictions_of_an_entry_that_stands_are_refused(forger: Forger, tmp_path: Path, tiny_suite: str) -> None:
    options = Options(suites=(Path(tiny_suite),))
    board = tmp_path / "board"
    add_runs([forger.folder], board, options)
    record = forger.record(SCHEDULED)
    record["identity"]["checkpoint_sha256"] = "ab" * 32
    with pytest.raises(Exception, match="has the predictions of .* from other weights"):
        add_runs([forger.save()], board, options)


def test_a_swapped_checkpoint_is_refused(forger: Forger, check, tiny_zoo: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The weights in the bundle are not those that the run names."""
    claimed = forger.record(SCHEDULED)["identity"]["checkpoint_sha256"]
    submit([forger.folder], tmp_path / "bundle", Statement(), checkpoints={claimed: tiny_zoo / "gdn" / "seed0"})
    fails(check(tmp_path / "bundle", level=3), 3, "the bundle's checkpoint has sha256", claimed[:12])


def test_a_run_that_names_other_weights_of_the_zoo_is_refused(forger: Forger, check, tiny_zoo: Path) -> None:  # type: ignore[no-untyped-def]
    other = file_digest(tiny_zoo / "gdn" / "seed0" / "model.safetensors")
    forger.record("titans", 1)["identity"]["checkpoint_sha256"] = "cd" * 32
    forger.record(SCHEDULED)["identity"]["checkpoint_sha256"] = other
    reasons = ("titans+proteus seed 0: the checkpoint's configuration is not", "no checkpoint with sha256 cdcdcdcdcdcd")
    fails(check(forger.save(), level=3), 3, *reasons)


def test_cherry_picked_seeds_are_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    record = forger.record(SCHEDULED, 1)
    record["seed"] = record["identity"]["seed"] = 4
    fails(check(forger.save()), 1, "seeds 0, 4 without seed 1, 2, 3: seeds cannot be picked")


def test_a_seed_left_out_at_the_beginning_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.run["records"] = [r for r in forger.run["records"] if (r["label"], r["seed"]) != (SCHEDULED, 0)]
    fails(check(forger.save()), 1, "seeds 1 without seed 0")


def test_one_checkpoint_under_two_seeds_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    first, second = (forger.record(SCHEDULED, seed)["identity"] for seed in (0, 1))
    second["checkpoint_sha256"] = first["checkpoint_sha256"]
    fails(check(forger.save()), 1, "seeds 0 and 1 are one checkpoint")


def test_a_stale_scorer_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.run["scorer"]["version"] = "0"
    for record in forger.run["records"]:
        record["identity"]["scorer"]["version"] = "0"
    fails(check(forger.save()), 2, "scored by strict version 0, a stale scorer")


def test_a_method_under_another_name_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    for seed in (0, 1):
        forger.record(SCHEDULED, seed)["label"] = "gdn+proteus"
    fails(check(forger.save()), 1, "gdn+proteus seed 0: its identity is of model titans")


def test_a_capacity_that_was_not_run_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    record = forger.record(SCHEDULED)
    record["capacity"] = record["identity"]["capacity"] = {**record["capacity"], "blocks": 8}
    fails(check(forger.save(), level=3), 3, "configuration is not the one of its identity")


def test_a_diverged_seed_that_is_called_complete_is_refused(forger: Forger, check) -> None:  # type: ignore[no-untyped-def]
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows[0].update(logprob=None))
    fails(check(forger.save()), 1, "called complete, and a state diverged")


def test_a_declared_divergence_passes_with_nats_over_the_other_tasks_and_with_none_and_with_no_others(  # type: ignore[no-untyped-def]
    forger: Forger, check
) -> None:
    """What the runner writes of such a run is what the verifier computes."""
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows[0].update(logprob=None))
    forger.record(SCHEDULED)["status"] = forger.run["status"] = "diverged"
    cells = {
        CellKey(record["label"], cell["task"], cell["length"], record["seed"]): read_log(forger.folder / cell["file"])
        for record in forger.run["records"]
        for cell in record["cells"]
    }
    forger.run["comparisons"] = _comparison_blocks(compare(SCHEDULED, "titans", cells))
    (own,) = (line for line in forger.run["comparisons"] if line["task"] == SINGLE)
    suite = forger.run["comparisons"][-1]
    assert suite["length"] is None and own["logprob_diff"] is None and suite["logprob_diff"] is not None
    found = check(forger.save())
    assert found.ok and found.reached == 2, found.refused
    kept = dict(suite)
    suite["logprob_diff"] += 0.5
    fails(check(forger.save()), 2, "logprob_diff is")
    suite.update(kept, logprob_diff=None, logprob_ci_low=None, logprob_ci_high=None)
    assert check(forger.save()).ok


def test_sampled_items_depend_on_the_seed_that_nobody_knew(forger: Forger, check, book: Book, tiny_suite: str) -> None:  # type: ignore[no-untyped-def]
    """One false row among twenty: some draws see it, others do not."""
    forger.rows(SCHEDULED, SINGLE, lambda rows: rows[1].update(logprob=rows[1]["logprob"] + 3.0))
    forger.run["comparisons"], forger.run["records"] = [], [forger.record(SCHEDULED)]
    folder = forger.save()
    options = Options(level=3, suites=(Path(tiny_suite),), sample=Sample(2, 0))
    seen: set[int] = set()
    for seed in range(40):
        seen.add(verify(folder, replace(options, sample=Sample(2, seed)), book).reached)
        if len(seen) > 1:
            break
    assert seen == {2, 3}


def test_a_bundle_with_its_own_tokenizer_can_be_verified_where_that_one_is_not_installed(  # type: ignore[no-untyped-def]
    forger: Forger, tmp_path: Path, tiny_suite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit([forger.folder], tmp_path / "bundle.zip", Statement())
    monkeypatch.setattr("proteus_bench.leaderboard.items.zoo_tokenizers", lambda: [])
    options = Options(suites=(Path(tiny_suite),))
    assert verify(tmp_path / "bundle.zip", options).ok
    fails(verify(forger.folder, options), 2, "no tokenizer with fingerprint")
