"""What one set of facts does to another: the interference of a probe's cells, from the item scores of an entry."""

from __future__ import annotations

from proteus_bench.leaderboard.board_schema import Effect
from proteus_bench.leaderboard.forms import rounded
from proteus_bench.leaderboard.item_scores import parse_scores
from proteus_bench.leaderboard.schema import Entry
from proteus_bench.probes.sets import pairs_of
from proteus_bench.stats import verdict


def effects_of(entry: Entry) -> list[Effect]:
    """Every pair of tasks that the entry has both of: recall of a set alone less its recall beside the other, by item."""
    held = {(c.task, c.length, r.role): parse_scores(r.scores) for c in entry.cells for r in c.roles}
    found = []
    for length in sorted({cell.length for cell in entry.cells}):
        for pair in pairs_of({cell.task for cell in entry.cells if cell.length == length}):
            alone, joint = (held.get((task, length, pair.role)) for task in (pair.alone, pair.task))
            if alone is None or joint is None or alone.shape != joint.shape:
                continue
            seen = verdict(pair.name, "", alone - joint, B=0).primary
            found.append(
                Effect.model_validate({
                    "name": pair.name, "a": pair.a, "b": pair.b, "gap": pair.gap, "length": length,
                    "diff": rounded(seen.mean), "ci_low": rounded(seen.lo), "ci_high": rounded(seen.hi),
                })
            )  # fmt: skip
    return found
