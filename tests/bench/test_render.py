"""The terminal report says what was open when, and never interprets a name as markup."""

import io

import numpy as np
import pytest
from rich.console import Console

from proteus_bench.render.report import Shown, print_report
from proteus_bench.render.strip import schedule_strip
from proteus_bench.runner.results import Comparison, MethodScore, compare
from proteus_bench.schedules import Capacity, Reverse, Surprise, Uniform
from proteus_bench.schedules.opened import active_share
from proteus_bench.stats import cell_ci, unbounded_difference, verdict
from proteus_bench.store import CellKey

UNIFORM = Capacity(schedule=Uniform(blocks=16, span=8192), axis="value")
STATIC = Capacity.static(axis="value")


def test_the_strip_rises_over_the_span_and_marks_its_end() -> None:
    strip = schedule_strip(UNIFORM, 16384, 8192, width=32)
    assert strip == "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██│████████████████"
    assert schedule_strip(UNIFORM, 8192, 8192, width=16) == "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"
    assert schedule_strip(STATIC, 8192, 8192, width=4) == "████"
    assert schedule_strip(STATIC, 16384, 8192, width=4, unicode=False) == "88|88"
    reverse = Capacity(schedule=Reverse(blocks=16, span=8192))
    assert schedule_strip(reverse, 8192, 8192, width=16) == "██▇▇▆▆▅▅▄▄▃▃▂▂▁▁"


def test_a_length_shorter_than_the_strip_is_one_column_a_position() -> None:
    assert schedule_strip(Capacity(schedule=Uniform(blocks=2, span=4)), 4, 4, width=64) == "▄▄██"
    with pytest.raises(ValueError):
        schedule_strip(STATIC, 0, 1)


def test_the_mean_active_share_is_the_schedules_own() -> None:
    assert active_share(UNIFORM, 8192) == pytest.approx(17 / 32)
    assert active_share(STATIC, 8192) == 1.0
    assert active_share(Capacity(schedule=Uniform(blocks=16, span=8192), gate="none"), 8192) == 1.0


def test_a_data_dependent_schedule_is_drawn_from_what_happened() -> None:
    capacity = Capacity(schedule=Surprise(blocks=4, span=400))
    assert schedule_strip(capacity, 400, 400, width=4) == "...."
    assert schedule_strip(capacity, 400, 400, width=4, traces=[(101, 201, 301), (101, 201, 301)]) == "▂▄▆█"
    assert schedule_strip(capacity, 400, 400, width=4, traces=[(), (101, 201, 301)]) == "▂▃▄▅"
    assert active_share(capacity, 400, [(101, 201, 301)]) == pytest.approx(0.625)
    assert active_share(capacity, 400) == pytest.approx(0.53125)


def _report(width: int, encoding: str = "utf-8") -> str:
    hits = np.array([1.0, 1.0, 0.0, 1.0])
    difference = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    scores = [
        MethodScore("titans+[red]x", "niah_single_1", 16384, cell_ci(hits), -1.25, 1, 4),
        MethodScore("titans", "niah_single_1", 16384, cell_ci(hits), None, 1, 4),
    ]
    nats = unbounded_difference(difference - 2.0)
    line = Comparison("niah_single_1", 16384, verdict("titans+[red]x", "titans", difference), nats)
    shown = [Shown("titans+[red]x", UNIFORM, 8192, 1024, 10), Shown("titans", STATIC, 8192, 1024, 10)]
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, markup=False, highlight=False)
    print_report(console, "niah16k", scores, [line], shown, ["a note"])
    stream.seek(0)
    return stream.read()


def test_the_report_shows_scores_intervals_verdict_strip_and_choices() -> None:
    text = _report(120)
    for part in (
        "niah_single_1",
        "16384*",
        "titans+[red]x",
        "75.0",
        "-1.25",
        "not finite",
        "2 seeds",
        "4 items",
        "76.",
        "100.0% open",
        "axis=value",
        "key_norm=before_mask",
        "beyond the training length 8192",
        "state of titans diverged",
        "note: a note",
        "less probability",
        "│",
    ):
        assert part in text, part


def test_a_terminal_without_unicode_gets_digits() -> None:
    assert "|" in _report(100, "ascii").split("memory open")[1].splitlines()[1]


def test_nothing_is_wider_than_the_terminal_that_need_not_be() -> None:
    assert max(len(line) for line in _report(100).splitlines()) <= 100


def test_a_task_that_is_not_finite_is_named_and_the_others_are_compared() -> None:
    def rows(offset: float, finite: bool) -> list[dict[str, object]]:
        return [
            {"index": n, "item": f"i{n}", "strict": float(n % 2), "logprob": offset - n if finite else None} for n in range(6)
        ]

    cells = {
        CellKey(model, task, 512, seed): rows(-1.0 if model == "a" else 0.0, finite=task == "fine" or model == "b")
        for model in ("a", "b")
        for task in ("fine", "burst")
        for seed in (0, 1)
    }
    burst, fine, whole = compare("a", "b", cells)
    assert burst.logprob is None and fine.logprob is not None and whole.logprob is not None
    assert whole.logprob.mean == fine.logprob.mean == pytest.approx(-1.0)
    assert whole.logprob.note == "without burst: not finite there"
