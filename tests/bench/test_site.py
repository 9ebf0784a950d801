"""Pages: one file that loads nothing, text as text, ties as ties, and the numbers of the leaderboard."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from proteus_bench.errors import InvalidFileError
from proteus_bench.leaderboard import build_leaderboard
from proteus_bench.leaderboard.board_schema import Leaderboard
from proteus_bench.leaderboard.entry import block_of, cell_interval, entry_id, overall_block
from proteus_bench.leaderboard.item_scores import parse_scores
from proteus_bench.leaderboard.schema import ENTRY, EntryCell
from proteus_bench.schedules import Capacity, Uniform
from proteus_bench.site import board_page, run_page
from proteus_bench.store import digest, write_json

ROOT = Path(__file__).resolve().parent.parent.parent
EVIL = '<script>alert(1)</script>"><img src=x onerror=y>'
VOID = {"meta", "link", "input", "img", "br", "wbr", "hr"}


def entry(label: str, skill: int, length: int = 4096, **more: Any) -> dict[str, Any]:
    """An entry that adds up: of 20 items in two tasks the first ``skill`` are right, with a slip a seed."""
    suite = {"name": f"made{length // 1024}k", "version": "1", "sha256": digest(["made", length])}
    static = "+" not in label
    capacity = Capacity.static("value", 8192) if static else Capacity(schedule=Uniform(blocks=16, span=8192), axis="value")
    records = [
        {
            "seed": seed, "record_id": digest([label, length, seed]), "run_id": digest(["run", length]),
            "checkpoint_sha256": digest([label, seed]), "predictions_sha256": digest([label, length, seed, 1]),
            "status": "complete",
        }
        for seed in range(3)
    ]  # fmt: skip
    identity = {"suite": suite, "records": sorted(str(r["record_id"]) for r in records)}
    scores = [" ".join("1" if i < skill and i != seed else "0" for i in range(20)) for seed in range(3)]
    cells = [
        {
            **block_of(cell_interval(parse_scores(scores)), [parse_scores(scores)]), "task": task, "length": length,
            "logprob": -2.5, "items_sha256": digest([task, length]), "scores": scores,
            "depths": [{"part": 0, "score": 0.5, "n": 4}, {"part": 9, "score": 1.0, "n": 6}],
        }
        for task in ("niah.single_1", "niah.single_2")
    ]  # fmt: skip
    return {
        "schema": ENTRY, "id": entry_id(identity), "identity": identity, "label": label, "model": label.partition("+")[0],
        "schedule": label.partition("+")[2] or "static", "size": "micro", "suite": suite,
        "scorer": {"id": "strict", "version": "1"}, "tokenizer_sha256": "0" * 64, "seeds": [0, 1, 2], "tier": "V2",
        "ranked": True, "reason": "", "n_params": 759052, "state_bytes": 205824, "train_length": 8192,
        "trained_schedule": "static", "capacity": capacity.as_dict(), "active": 1.0 if static else 0.28,
        "opening": [1.0] * 32 if static else [round(i / 32, 3) for i in range(32)], "records": records,
        "statement": {"submitter": None, "link": None, "note": None, "configs_tried": None},
        "cost": {"seconds_per_item": 0.4, "tokens_per_second": 1e4},
        "overall": overall_block([EntryCell.model_validate(cell) for cell in cells]), "cells": cells, **more,
    }  # fmt: skip


def built(folder: Path, *entries: dict[str, Any]) -> Leaderboard:
    (folder / "entries").mkdir(parents=True, exist_ok=True)
    for one in entries:
        write_json(folder / "entries" / f"{one['id']}.json", one)
    return build_leaderboard(folder).board


@pytest.fixture
def board(tmp_path: Path) -> Leaderboard:
    """Two lengths; a clear winner, two that tie, and one that is not ranked."""
    (tmp_path / "published").mkdir()
    published = (ROOT / "leaderboards" / "published" / "proteus.json").read_bytes()
    (tmp_path / "published" / "proteus.json").write_bytes(published)
    rows = [
        entry(label, skill, length)
        for length in (4096, 16384)
        for label, skill in (("titans+proteus", 19), ("titans", 7), ("gdn", 7))
    ]
    return built(tmp_path, *rows, entry("gdn+late", 20, tier="V1", ranked=False, reason="checked to V1 only"))


class Page(HTMLParser):
    """What a page holds: checks nesting while it reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def check_page(text: str) -> Page:
    """The rules for every page of ours."""
    page = Page(text)
    attributes = [(tag, name, value) for tag, held in page.tags for name, value in held.items()]
    assert not [a for a in attributes if a[1].startswith("on") or a[1] == "style" or a[1] in ("src", "srcset", "action")]
    links = [value or "" for tag, name, value in attributes if name == "href"]
    assert all(link.startswith(("https://", "#")) for link in links)
    policy = next(held["content"] for tag, held in page.tags if held.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in policy
    for kind in ("style", "script"):
        (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, flags=re.DOTALL)
        digest_ = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest_}'" in policy
        assert "eval(" not in body and "innerHTML" not in body and "http" not in body and "@import" not in body
    ids = [held["id"] for _, held in page.tags if "id" in held]
    assert len(ids) == len(set(ids))
    named = {held.get("aria-labelledby") for _, held in page.tags if "aria-labelledby" in held}
    assert named <= set(ids)
    for tag, held in page.tags:
        if tag == "svg":
            assert held.get("aria-hidden") == "true" or (held.get("role") == "img" and held.get("aria-label"))
        if tag == "th":
            assert held.get("scope") in ("col", "row")
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and all(b <= a + 1 for a, b in itertools.pairwise(headings))
    assert ("html", {"lang": "en"}) in page.tags and any(tag == "main" for tag, _ in page.tags)
    return page


def rows_of(text: str) -> list[list[str]]:
    """Cells of the first board's rows, tags included."""
    body = re.search(r'<table class="board">.*?<tbody>(.*?)</tbody>', text, flags=re.DOTALL)
    assert body is not None
    return [re.findall(r"<td.*?</td>", row, flags=re.DOTALL) for row in re.findall(r"<tr.*?</tr>", body[1], flags=re.DOTALL)]


def test_the_leaderboard_is_one_file_that_loads_nothing(board: Leaderboard) -> None:
    page = check_page(board_page(board))
    words = page.words()
    for figure in ("By task", "Where the fact stands", "How much is open, when", "What it costs", "Longer contexts"):
        assert figure in words, figure
    assert "trained at 8K" in words, "the training length is marked in the length curves"


def test_ranks_are_intervals_ties_share_a_shade_and_unranked_rows_have_none(board: Leaderboard) -> None:
    text = board_page(board)
    rows = board.boards[0].rows
    assert next(row.label for row in rows) == "titans+proteus" and rows[-1].label == "gdn+late"
    assert (rows[0].rank_best, rows[0].rank_worst) == (1, 1)
    assert {(row.rank_best, row.rank_worst) for row in rows[1:3]} == {(2, 3)}
    cells = rows_of(text)
    assert ">1<" in cells[0][0] and "2&#8211;3" in cells[1][0] and "2&#8211;3" in cells[2][0]
    assert "not ranked" in cells[3][0] and "checked to V1 only" in cells[3][1]
    classes = re.findall(r"<tr(?: class=\"(\w+)\")?><td class=\"rank\"", text)
    assert classes[0] == "odd" and classes[1] == classes[2] == "" and classes[3] == "unranked"


def test_every_score_stands_with_its_interval_and_its_difference_to_static(board: Leaderboard) -> None:
    for row, cells in zip(board.boards[0].rows, rows_of(board_page(board)), strict=True):
        overall = row.overall
        assert overall.ci_low is not None and overall.ci_high is not None
        assert f"<b>{100 * overall.score:.1f}</b>" in cells[2]
        assert f"{100 * overall.ci_low:.1f} to {100 * overall.ci_high:.1f}" in cells[2]
        assert 'class="w"' in cells[3]
    first = board.boards[0].rows[0]
    assert first.against_static is not None and first.against_static.label == "titans"
    assert first.against_static.outcome == "better" and ">better<" in rows_of(board_page(board))[0][4]


def test_every_sortable_cell_has_a_number_or_a_text(board: Leaderboard) -> None:
    text = board_page(board)
    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", text.split("<tbody>")[0], flags=re.DOTALL)
    assert len(heads) == 10
    for cells in rows_of(text):
        assert len(cells) == 10
        for cell, head in zip(cells, heads, strict=True):
            if "button" in head and "method" not in head:
                value = re.search(r'data-v="([^"]*)"', cell)
                assert value is not None and (value[1] == "" or float(value[1]) is not None)


def test_published_numbers_stand_apart_and_are_not_ranked(board: Leaderboard) -> None:
    text = board_page(board)
    (section,) = re.findall(r'<section class="published".*?</section>', text, flags=re.DOTALL)
    assert "not ranked" in section and "one run, no interval" in section and "74.2" in section
    assert 'class="rank"' not in section and 'class="board"' not in section


@pytest.mark.parametrize("field", ["label", "schedule", "trained_schedule", "reason", "size", "note", "submitter"])
def test_text_of_a_stranger_is_shown_as_text(tmp_path: Path, field: str) -> None:
    one = entry("titans", 9)
    if field in ("note", "submitter"):
        one["statement"][field] = EVIL
    else:
        one[field] = EVIL
    if field == "reason":
        one["ranked"] = False
    text = board_page(built(tmp_path, one, entry("gdn", 8)))
    check_page(text)
    assert "<img" not in text and text.count("<script>") == 1 and "onerror=y>" not in text
    if field not in ("note", "schedule"):
        assert "&lt;script&gt;" in text or "&#34;&gt;" in text


def test_names_of_suites_and_tasks_are_text_too(tmp_path: Path) -> None:
    one = entry("titans", 9)
    one["suite"]["name"] = one["identity"]["suite"]["name"] = EVIL
    one["id"] = entry_id(one["identity"])
    for cell in one["cells"]:
        cell["task"] += EVIL
    text = board_page(built(tmp_path, one))
    check_page(text)
    assert "<img" not in text and text.count("<script>") == 1


def test_only_https_links_become_links(tmp_path: Path) -> None:
    one = entry("titans", 9)
    one["statement"]["link"] = "https://example.org/paper?x=1&y=2"
    text = board_page(built(tmp_path, one))
    assert 'href="https://example.org/paper?x=1&amp;y=2" rel="noopener noreferrer"' in text
    one["statement"]["link"] = "javascript:alert(1)"
    with pytest.raises(InvalidFileError, match="https"):
        built(tmp_path, one)


def test_hidden_characters_do_not_reach_a_page() -> None:
    from proteus_bench.site.page import clean

    assert clean("a\u202eb\u0007c\u200bd\ufeffe\ud800f") == "abcde?f"
    assert clean("ordinary text, ü, 中, line\nbreak\t") == "ordinary text, ü, 中, line\nbreak\t"


def test_a_page_stays_small(tmp_path: Path) -> None:
    few, many = (built(tmp_path / str(n), *(entry(f"m{i}+late", i % 21) for i in range(n))) for n in (10, 60))
    grown = len(board_page(many).encode()) - len(board_page(few).encode())
    assert grown / 50 < 1300, "a thousand rows stay under 1.5 MB"


def test_an_empty_leaderboard_is_a_page(tmp_path: Path) -> None:
    page = check_page(board_page(built(tmp_path)))
    assert "No entries yet" in page.words()


# -- the report of a run


def test_a_report_is_one_file_with_every_figure_and_the_verdict(finished: Path) -> None:
    text = run_page(finished)
    words = check_page(text).words()
    run = json.loads((finished / "run.json").read_text())
    figures = ("Scores", "Paired differences", "Where the fact stands", "How much is open, when", "What it costs")
    for figure in (*figures, "What was run"):
        assert figure in words, figure
    verdict = next(c["verdict"] for c in run["comparisons"] if c["length"] is None)
    assert verdict.split(":")[0] in words
    assert run["run_id"] in words and "titans+proteus" in words
    for cell in run["records"][0]["cells"]:
        assert cell["task"] in words


def test_a_report_changes_no_byte_when_it_is_repeated(cli, finished: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pages = []
    for name in ("a.html", "b.html"):
        done = cli("report", str(finished), "--out", name)
        assert done.returncode == 0 and name in done.stdout, done.stderr
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


def test_a_report_of_no_run_is_one_clear_line(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = cli("report", str(tmp_path))
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1 and "run.json does not exist" in done.stderr


def test_building_without_a_leaderboard_is_a_usage_error(cli, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    done = cli("leaderboard", "build", str(tmp_path))
    assert done.returncode == 2 and "no folder 'entries'" in done.stderr
