"""What leaderboard.json and the published numbers hold; and the JSON Schemas of every kind of file (`schemas/`)."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from proteus_bench.leaderboard.cost import CostFile, CostSummary
from proteus_bench.leaderboard.forms import Link, Strict, Text
from proteus_bench.leaderboard.schema import (
    Bundle,
    Cost,
    DepthBin,
    Entry,
    Retired,
    Row,
    ScoreBlock,
    Statement,
    Tier,
)
from proteus_bench.store.run_file import RunFile, ScorerBlock, SuiteBlock

BOARD = "proteus-bench/leaderboard@2"
PUBLISHED = "proteus-bench/published@1"


class PublishedRow(Strict):
    """A printed number: one run, no interval. value in the unit of the source."""

    model: Text
    size: Text
    task: Text
    length: int | None = Field(ge=1)
    metric: Text
    value: float | None
    gain: float | None = None


class Published(Strict):
    """Numbers as their source printed them. They are shown and never ranked."""

    schema_: Literal["proteus-bench/published@1"] = Field(alias="schema")
    source: Text
    link: Link
    conditions: Text
    not_reported: list[Text]
    rows: list[PublishedRow] = Field(min_length=1, max_length=1000)


class Against(Strict):
    """This row less its static twin, paired; fractions. p_holm: corrected over the board's schedules."""

    entry: str
    label: str
    diff: float = Field(ge=-1, le=1)
    ci_low: float | None
    ci_high: float | None
    p_holm: float | None
    outcome: Literal["better", "worse", "not_separable", "identical"]
    seeds: int
    items: int


class RowCell(ScoreBlock):
    """A cell of a row of the leaderboard: an entry's cell without its item scores."""

    task: str
    length: int
    logprob: float | None
    depths: list[DepthBin]


class LengthScore(ScoreBlock):
    """The mean over the tasks of one length."""

    length: int


class Effect(Strict):
    """Recall of a set of facts alone less its recall beside the other set, paired by item; fractions.

    name: retroactive (set B came after A) or proactive (set A stood before B). gap: percent of the window between them.
    """

    name: Literal["retroactive", "proactive"]
    a: int
    b: int
    gap: int
    length: int
    diff: float = Field(ge=-1, le=1)
    ci_low: float | None
    ci_high: float | None


class BoardRow(Strict):
    """An entry on a board. Places rank_best to rank_worst are left open by the comparisons; None: not ranked.

    weights: the start of a hash of all its checkpoints, equal on two boards for the same models. trained_tokens: mean over
    seeds, None where a card states none.
    """

    entry: str
    id: str
    label: str
    model: str
    schedule: str
    size: str
    seeds: list[int]
    diverged_seeds: list[int]
    tier: Tier
    ranked: bool
    reason: str
    rank_best: int | None
    rank_worst: int | None
    tie_group: int | None
    against_static: Against | None
    n_params: int
    state_bytes: int
    train_length: int
    trained_schedule: str
    trained_tokens: int | None
    capacity: dict[str, Any]
    active: float | None
    opening: list[float] | None
    statement: Statement
    cost: Cost | None
    paired_cost: CostSummary | None
    weights: str
    overall: ScoreBlock
    lengths: list[LengthScore]
    effects: list[Effect]
    cells: list[RowCell]


class Board(Strict):
    """Rows of one suite version, scorer and set of items. archived: why its rows are not ranked, '' for a live board."""

    suite: SuiteBlock
    scorer: ScorerBlock
    items_sha256: str
    tokenizer_sha256: str
    archived: str
    family_size: int
    rows: list[BoardRow]


class RetiredRow(Strict):
    """A retired entry, in short."""

    id: str
    label: str
    suite: SuiteBlock
    score: float
    reason: str


class Leaderboard(Strict):
    """leaderboard.json: a function of the entries, the published numbers and this program's version, byte for byte."""

    schema_: Literal["proteus-bench/leaderboard@2"] = Field(alias="schema")
    boards: list[Board]
    archive: list[Board]
    retired: list[RetiredRow]
    published: list[Published]


SCHEMAS: dict[str, type[BaseModel]] = {
    "run": RunFile,
    "row": Row,
    "cost": CostFile,
    "bundle": Bundle,
    "entry": Entry,
    "retired": Retired,
    "published": Published,
    "leaderboard": Leaderboard,
}


def schema_texts() -> dict[str, str]:
    """File name -> JSON Schema, of every kind of file."""
    texts = {}
    for name, kind in SCHEMAS.items():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **kind.model_json_schema(by_alias=True)}
        texts[f"{name}.schema.json"] = json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return texts
