"""Memories with known answers: the interference probe must name each, by its answers and by its state."""

import pytest

from proteus_bench.probes import measures, state
from proteus_bench.probes.measures import outcome
from proteus_bench.probes.planted import PlantedMemory
from proteus_bench.probes.state_measures import state_measures
from proteus_bench.probes.text import records
from proteus_bench.runner.cell import _answer
from proteus_bench.store import CellKey
from proteus_models import zoo
from proteus_tasks import TASKS

LENGTH = 1024
ITEMS = 5
SETS = ("interference.a16_b0", "interference.a0_b16", "interference.a16_b16")


@pytest.fixture(scope="module")
def tokenizer():
    return zoo.tokenizer()


@pytest.fixture(scope="module")
def make(tokenizer):
    """Items by task and index, made once."""
    kept = {}

    def item(task, index):
        if (task, index) not in kept:
            kept[task, index] = TASKS[task].item(index, length=LENGTH, tokenizer=tokenizer)
        return kept[task, index]

    return item


def answered(memory, make, tasks, model="planted", seed=0):
    """Rows of the real runner, by cell."""
    found = {}
    for task in tasks:
        rows, _ = _answer(memory, [make(task, i) for i in range(ITEMS)], 0)
        found[CellKey(model, task, LENGTH, seed)] = rows
    return found


def effects(memory, make):
    """Outcome and value of both kinds of interference, strict."""
    found = records(answered(memory, make, SETS), lambda key, index: make(key.task, index))
    rows = [row for row in measures.interference(found) if row["column"] == "strict"]
    return {row["measure"]: (outcome(row), row["value"]) for row in rows}


@pytest.mark.parametrize(
    ("kind", "retroactive", "proactive"),
    [
        ("append", "not separable from none", "not separable from none"),
        ("overwrite", "interference", "not separable from none"),
        ("polluted", "not separable from none", "interference"),
    ],
)
def test_answers_tell_the_three_memories_apart(tokenizer, make, kind, retroactive, proactive):
    found = effects(PlantedMemory(kind, tokenizer), make)
    assert {name: word for name, (word, _) in found.items()} == {"retroactive": retroactive, "proactive": proactive}
    expected = {"append": (0.0, 0.0), "overwrite": (1.0, 0.0), "polluted": (0.0, 1.0)}[kind]
    # The fact at the very edge of the sets may still be known: one of eight asked facts an item.
    assert found["retroactive"][1] == pytest.approx(expected[0], abs=0.13)
    assert found["proactive"][1] == pytest.approx(expected[1], abs=0.13)


def measured(memory, make, probe, contexts=2):
    """State rows by (measure, x)."""
    found = {"planted": [state.collect(probe, memory, memory.tokenizer, make, contexts)]}
    rows = state_measures(found, {"planted": memory.unlocks})
    return {(row["measure"], row.get("x")): row["value"] for row in rows}


@pytest.mark.parametrize("kind", ["append", "overwrite", "polluted"])
def test_the_state_tells_the_three_memories_apart(tokenizer, make, kind):
    half = 8.0
    rows = measured(PlantedMemory(kind, tokenizer, half), make, "interference")
    kept = {"append": 1.0, "overwrite": None, "polluted": 1.0}[kind]
    if kept is not None:
        assert rows["retained_before_facts", None] == pytest.approx(kept)
        assert rows["retained_before_prose", None] == pytest.approx(kept)
        assert rows["state_retroactive", None] == pytest.approx(0.0, abs=1e-9)
    else:  # sixteen facts of B more: each trace of A is halved twice more
        assert rows["retained_before_facts", None] / rows["retained_before_prose", None] == pytest.approx(0.25, rel=1e-5)
        assert rows["state_retroactive", None] > 0.3
    lost = {"append": 0.0, "overwrite": 0.0, "polluted": 1 - 2 ** (-16 / half)}[kind]
    assert rows["state_proactive", None] == pytest.approx(lost, abs=1e-5)


def test_seeds_and_contexts_both_widen_an_interval(tokenizer, make):
    seeds = [state.collect("capacity", PlantedMemory("overwrite", tokenizer, half), tokenizer, make, 2) for half in (4.0, 6.0)]
    one, two = (
        next(r for r in state_measures({"m": s}, {"m": (1,) * 16}) if r["measure"] == "early_share") for s in (seeds[:1], seeds)
    )
    assert one["ci_method"] == "item_cluster_t" and two["ci_method"] == "crossed_anova"
    assert 0 <= two["ci_low"] < two["value"] < two["ci_high"] <= 1
    assert one["n"] == two["n"] == 2


def test_traces_of_an_overwriting_memory_fall_as_they_were_planted(tokenizer, make):
    memory, item = PlantedMemory("overwrite", tokenizer, half=4.0), make("capacity.mqar_16", 0)
    (context,) = state.collect("capacity", memory, tokenizer, make, 1)
    order = sorted(range(16), key=lambda slot: item.needles[item.meta["asked"][slot]].token_offset)
    for later, slot in enumerate(reversed(order)):
        fact = context["facts"][slot]
        assert fact["retained"] == fact["size"] == [pytest.approx(2 ** (-later / 4), rel=1e-4)]
        assert fact["written"][0] > 0.5
    assert [context["facts"][slot]["block"] for slot in order] == sorted(f["block"] for f in context["facts"])


def test_a_memory_that_fills_with_early_prose_is_told_from_a_clean_one(tokenizer, make):
    early = {
        kind: measured(PlantedMemory(kind, tokenizer, half=4.0, sentences=True), make, "capacity")["early_share", None]
        for kind in ("append", "overwrite", "polluted")
    }
    assert early["polluted"] > 0.9  # the first quarter of the text holds the memory
    assert early["overwrite"] < 0.05
    assert early["append"] == pytest.approx(0.25, abs=0.08)


def test_written_facts_alone_are_not_pollution(tokenizer, make):
    """Negative control: facts stand one in each sixteenth, so a memory of facts alone is even over the text."""
    rows = measured(PlantedMemory("append", tokenizer), make, "capacity")
    quarters = [sum(rows["state_share", 4 * q + i] for i in range(4)) for q in range(4)]
    assert quarters == [pytest.approx(0.25, abs=0.08)] * 4
    assert rows["early_share", None] == pytest.approx(quarters[0])


def test_capacity_of_an_overwriting_memory_is_where_it_was_planted(tokenizer, make):
    tasks = [f"capacity.mqar_{n}" for n in (4, 8, 16, 32, 64)]
    # 16 pairs are kept: the recall of n > 16 evenly spread pairs is 16/n, so it is 1/2 at 32.
    memory = PlantedMemory("overwrite", tokenizer, half=16.0)
    found = records(answered(memory, make, tasks), lambda key, index: make(key.task, index))
    points = {point["level"]: point for point in measures.overload_points(found)}
    assert 28 <= points[0.5]["point"] <= 36 and points[0.5]["lo"] < points[0.5]["point"]
    assert 16 <= points[0.9]["point"] <= 20
    held = {row["x"]: row["value"] for row in measures.capacity(found) if row and row["measure"] == "pairs_held"}
    assert held[64] == pytest.approx(16, abs=4) and held[4] == 4
    clean = records(answered(PlantedMemory("append", tokenizer), make, tasks), lambda key, index: make(key.task, index))
    assert all(point["text"].startswith("> 64") for point in measures.overload_points(clean))


def test_a_memory_that_keeps_the_first_value_is_seen_as_stale(tokenizer, make):
    task = "capacity.rewrite_16"

    class KeepsFirst(PlantedMemory):
        def _read(self, row, text):
            row = super()._read(row, text)
            seen = {}
            for write in row.writes:
                seen.setdefault(write[1], write)
            row.writes = list(seen.values())
            return row

    for memory, rewritten, stale in ((PlantedMemory("append", tokenizer), 1.0, 0.0), (KeepsFirst("append", tokenizer), 0.0, 1.0)):
        found = records(answered(memory, make, [task]), lambda key, index: make(key.task, index))
        rows = [row for row in (*measures.common(found), *measures.capacity(found)) if row]
        recall = {row["role"]: row["value"] for row in rows if row["measure"] == "recall"}
        assert recall == {"rewritten": rewritten, "once": 1.0}
        assert next(row["value"] for row in rows if row["measure"] == "stale") == stale


def test_two_models_are_contrasted_on_the_seeds_that_both_have(tokenizer, make):
    rows = answered(PlantedMemory("append", tokenizer), make, SETS, "clean", seed=0)
    rows |= answered(PlantedMemory("overwrite", tokenizer), make, SETS, "overwriting", seed=0)
    rows |= answered(PlantedMemory("overwrite", tokenizer), make, SETS, "overwriting", seed=1)
    found = records(rows, lambda key, index: make(key.task, index))
    contrast = {
        row["measure"]: row for row in measures.interference_contrasts(found) if row["column"] == "strict"
    }
    assert contrast["retroactive_contrast"]["value"] == pytest.approx(-1, abs=0.13)
    assert contrast["proactive_contrast"]["value"] == 0
    assert {row["n"] for row in contrast.values()} == {ITEMS}  # seed 1, which one side lacks, is left out
