"""The paired lines of a run follow from its rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from proteus_bench.errors import BenchError
from proteus_bench.leaderboard.checks import Checked, close
from proteus_bench.leaderboard.forms import shown
from proteus_bench.stats import draws_key, holm_family, paired_difference, pool_draws, verdict
from proteus_bench.store import CellKey
from proteus_bench.store.run_file import ComparisonBlock


def check_comparisons(checked: Checked) -> Iterator[str]:
    """The paired lines of run.json follow from its rows (the bootstrap beside them is not made again)."""
    blocks = checked.run.comparisons
    tables = _tables(checked)
    draws = {cell.task: cell.draws for record in checked.run.records for cell in record.cells if cell.draws is not None}
    whole = {block.task for block in blocks if block.length is None}
    family = {}
    for block in blocks:
        where = shown(f"comparison {block.a} - {block.b}, {block.task} at {block.length}"[:300])
        try:
            found, left_out = _compared(block, tables, draws)
        except (BenchError, KeyError, ValueError) as error:
            yield f"{where}: does not follow from the rows: {shown(error, 200)}"
            continue
        # earlier runs said nothing in nats of a suite in which a state diverged anywhere
        silent = left_out and block.logprob_diff is block.logprob_ci_low is block.logprob_ci_high is None
        for name, mine in found.items():
            theirs = getattr(block, name)
            if silent and name.startswith("logprob_"):
                continue
            if isinstance(mine, float) or mine is None:
                if not close(mine, theirs):
                    yield f"{where}: {name} is {theirs}, its rows give {mine}"
            elif mine != theirs:
                yield f"{where}: {name} is {shown(theirs)}, its rows give {shown(mine)}"
        if found["p_value"] is not None and (block.length is None or not whole):
            family[f"{block.a}|{block.b}|{block.task}|{block.length}"] = found["p_value"]
    adjusted = holm_family(family) if family else {}
    for block in blocks:
        mine = adjusted.get(f"{block.a}|{block.b}|{block.task}|{block.length}")
        if not close(mine, block.p_holm):
            yield f"comparison {block.a!a} - {block.b!a}: p_holm is {block.p_holm}, its rows give {mine}"


def _tables(checked: Checked) -> dict[str, dict[tuple[str, int], dict[CellKey, list[dict[str, Any]]]]]:
    """Rows by label and (task, length), keyed as `results.item_scores` reads them."""
    tables: dict[str, dict[tuple[str, int], dict[CellKey, list[dict[str, Any]]]]] = {}
    for number, record in enumerate(checked.run.records):
        for (task, length), rows in checked.of(number).items():
            key = CellKey(record.label, task, length, record.seed)
            tables.setdefault(record.label, {}).setdefault((task, length), {})[key] = rows
    return tables


def _compared(block: ComparisonBlock, tables: Any, draws: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """The line as its rows give it, and whether its nats leave out a place where one is not finite, as the run's do.

    ``draws`` by task; none in older files, whose cells were taken as independent.
    """
    from proteus_bench.runner.results import indices_of, item_scores, logprob_difference, over_finite

    sides = [tables[block.a], tables[block.b]]
    common = sorted(sides[0].keys() & sides[1].keys())
    places = common if block.length is None else [(block.task, block.length)]
    # A line pairs the seeds that both sides have on everything they have in common: the run's rule.
    shared = set.intersection(*({key.seed for key in side[at]} for side in sides for at in common))
    differences, nats = [], []
    keys: list[Hashable] = []
    for at in places:
        picked = [{key: rows for key, rows in side[at].items() if key.seed in shared} for side in sides]
        matrices = [item_scores(one) for one in picked]
        differences.append(paired_difference(*matrices).scores)
        keys.append(draws_key(at[0], draws, indices_of(picked[0], matrices[0].items)) if draws else at)
        nats.append(logprob_difference(block.a, block.b, picked[0] | picked[1]))
    pooled, weights = pool_draws(differences, keys)
    found = verdict(block.a, block.b, pooled, B=0, weights=weights)
    seen = over_finite(places, nats, keys)
    line = {
        "diff": found.primary.mean, "ci_low": found.primary.lo, "ci_high": found.primary.hi,
        "method": found.primary.method, "n_seeds": found.seeds, "n_items": found.items, "outcome": found.outcome,
        "p_value": found.p_value, "verdict": found.text,
        "logprob_diff": seen.mean if seen else None, "logprob_ci_low": seen.lo if seen else None,
        "logprob_ci_high": seen.hi if seen else None,
    }  # fmt: skip
    return line, any(one is None for one in nats)
