"""What a bundle and an entry hold: strict models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from proteus_bench.leaderboard.cost import CostBlock
from proteus_bench.leaderboard.forms import Count, Length, Link, SafePath, Share, Strict, Text
from proteus_bench.store.run_file import Name, ScorerBlock, Sha256, SuiteBlock

ENTRY = "proteus-bench/entry@2"
BUNDLE = "proteus-bench/bundle@1"
RETIRED = "proteus-bench/retired@1"
CURVE_POINTS = 32
"""Samples of the open share of the memory along the longest context."""
DEPTH_BINS = 10
"""Parts of a context into which the places of asked facts are sorted."""
TIERS = ("V0", "V1", "V2", "V3", "V4")
RANKING_TIER = 2
"""The first level of verification that is ranked."""

Tier = Literal["V0", "V1", "V2", "V3", "V4"]


class Row(Strict):
    """One question of a cell's log. ``logprob``: nats of the whole gold answer, None when it was not finite, or where the
    model gives none (``unscored``)."""

    index: int = Field(ge=0, lt=1_000_000)
    question: int = Field(ge=0, lt=10_000)
    item: str = Name
    item_sha256: str = Sha256
    prompt_sha256: str = Sha256
    context_tokens: int = Field(ge=1)
    reached: int = Field(ge=1)
    depths: list[float] = Field(max_length=10_000)
    golds: list[str] = Field(min_length=1, max_length=10_000)
    output: str = Field(max_length=1 << 20)
    output_ids: list[int] = Field(max_length=1 << 16)
    gold_tokens: int = Field(ge=1)
    logprob: float | None
    strict: Share
    compat: Share
    unlocks: list[int] | None = Field(default=None, max_length=1 << 16)
    unscored: bool = False
    scorers: list[str] | None = Field(default=None, min_length=2, max_length=2)
    choices: list[float | None] | None = Field(default=None, max_length=10_000)
    words: int | None = Field(default=None, ge=1)
    bytes: int | None = Field(default=None, ge=1)


class TimingCell(Strict):
    """Seconds of one cell, of one process."""

    model: str = Name
    task: str = Name
    length: int = Field(ge=1)
    seed: int = Field(ge=0)
    seconds: float = Field(ge=0)


class Timing(Strict):
    """timing.json: what a run cost, apart from its results."""

    wall_seconds_last: float = Field(ge=0)
    workers: int = Field(ge=0)
    cells: list[TimingCell] = Field(max_length=1_000_000)


class FileBlock(Strict):
    """A file of a bundle, relative to it. ``bytes``: its size."""

    path: SafePath
    bytes: int = Field(ge=0)
    sha256: str = Sha256


class BundleRun(Strict):
    """A run folder inside a bundle: run.json, the logs that it names, timing.json where there is one."""

    run_id: str = Sha256
    path: SafePath
    files: list[FileBlock] = Field(min_length=1, max_length=20_000)


class BundleCheckpoint(Strict):
    """Weights for V3: `model.safetensors`, `config.json`, `card.json` in one folder."""

    sha256: str = Sha256
    path: SafePath
    files: list[FileBlock] = Field(min_length=1, max_length=10)


class Statement(Strict):
    """What a submitter says and nobody can check. configs_tried: how many configurations were tried before this one."""

    submitter: Text | None = None
    link: Link | None = None
    note: Text | None = None
    configs_tried: int | None = Field(default=None, ge=1, le=1_000_000)


class Bundle(Strict):
    """bundle.json: everything in the bundle, with hashes. A file that is not listed is refused."""

    schema_: Literal["proteus-bench/bundle@1"] = Field(alias="schema")
    version: str = Name
    statement: Statement
    runs: list[BundleRun] = Field(min_length=1, max_length=1000)
    tokenizers: list[FileBlock] = Field(max_length=16)
    checkpoints: list[BundleCheckpoint] = Field(max_length=1000)


class ScoreBlock(Strict):
    """A score over seeds and items in [0, 1] with its 95% interval; None where one cannot be estimated.

    n: items. bootstrap_low, bootstrap_high: the pigeonhole bootstrap beside it, from five seeds on.
    """

    score: Share
    ci_low: Share | None
    ci_high: Share | None
    ci_method: str = Name
    n: int = Field(ge=1)
    bootstrap_low: Share | None = None
    bootstrap_high: Share | None = None


class DepthBin(Strict):
    """Questions whose asked fact stands in one part of the context. ``part``: 0 is the beginning."""

    part: int = Field(ge=0, lt=DEPTH_BINS)
    score: Share
    n: int = Field(ge=1)


ItemScores = Annotated[str, Field(pattern=r"^[0-9.]+( [0-9.]+)*$")]


class RoleScores(Strict):
    """Questions about one role of a probe's facts. asked: questions of an item; scores: as in `EntryCell`."""

    role: Text
    asked: int = Field(ge=1)
    scores: list[ItemScores] = Field(min_length=1)


class EntryCell(ScoreBlock):
    """One task at one length. logprob: mean nats per gold answer, None when one was not finite.

    scores: one text a seed (in the order of the entry's seeds), with the score of every item in index order, parted by
    spaces: what paired comparisons need. items_sha256: of the items, in the form in which a suite freezes them. roles: the
    same apart for each role of the asked facts, where the task has roles and the items were made again. draws: what the items
    are drawn from, where the run says so; the task otherwise.
    """

    task: Text
    length: Length
    logprob: float | None
    items_sha256: str = Sha256
    depths: list[DepthBin]
    scores: list[ItemScores] = Field(min_length=1)
    roles: list[RoleScores] = Field(default_factory=list, max_length=16)
    draws: Text | None = None


class EntryRecord(Strict):
    """One training seed. predictions_sha256: of all outputs and log-probabilities, None where no number is finite. tokens: that
    it was trained on, as its card says; None where no card does."""

    seed: Count
    record_id: str = Sha256
    run_id: str = Sha256
    checkpoint_sha256: str = Sha256
    predictions_sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")
    status: Literal["complete", "partial", "diverged"]
    tokens: Count | None = None


class Cost(Strict):
    """Seconds of one process, as the run reported them; nobody checks them."""

    seconds_per_item: float = Field(ge=0)
    tokens_per_second: float = Field(ge=0)


class Entry(Strict):
    """One method (a model under one capacity, all its seeds) on one suite version, computed from runs and never typed.

    ``id`` is the start of the hash of ``identity``, which holds no value. active: mean open share of the memory over the
    longest context; opening: its course in equal steps; None where the schedule is not known here. paired_cost: what the
    schedule costs against its static twin, measured in pairs, where the run brought it.
    """

    schema_: Literal["proteus-bench/entry@2"] = Field(alias="schema")
    id: str = Field(pattern=r"^[0-9a-f]{16}$")
    identity: dict[str, Any]
    label: Text
    model: Text
    schedule: Text
    size: Text
    suite: SuiteBlock
    scorer: ScorerBlock
    tokenizer_sha256: str = Name
    seeds: list[Count] = Field(min_length=1, max_length=10_000)
    tier: Tier
    ranked: bool
    reason: str = Field(max_length=300)
    n_params: Count
    state_bytes: Count
    train_length: Length
    trained_schedule: Text
    capacity: dict[str, Any]
    active: Share | None
    opening: list[Share] | None = Field(max_length=CURVE_POINTS)
    records: list[EntryRecord] = Field(min_length=1)
    statement: Statement
    cost: Cost | None
    paired_cost: CostBlock | None = None
    overall: ScoreBlock
    cells: list[EntryCell] = Field(min_length=1)


class Retired(Strict):
    """An entry that was taken off the board, with the reason. It stays in the archive."""

    schema_: Literal["proteus-bench/retired@1"] = Field(alias="schema")
    reason: Text
    entry: Entry
