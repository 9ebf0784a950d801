"""Rows of documents: the grouped pass equals every document alone, for every backbone; nothing leaks over a start."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from proteus_bench.schedules import Capacity, Surprise, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM
from proteus_models.packing import FILLER, Packing

STARTS = [[0, 3, 17, 18, 31], [5, 20], []]


def model(mixer: str, **capacity: object) -> DecoderLM:
    torch.manual_seed(0)
    axis = "hidden" if mixer in ("titans-mlp", "hope-attention") else "value"
    free = mixer in ("transformer++", "hope-attention")
    schedule = {} if free else {"schedule": Uniform(blocks=4, span=24)}
    start = "learned" if mixer == "titans-mlp" else "zero"
    made = (
        Capacity.static(axis=axis, span=24, origin="document")
        if free
        else Capacity(**({"axis": axis, "m0": start, "origin": "document"} | schedule | capacity))  # type: ignore[arg-type]
    )
    return DecoderLM(
        ModelConfig(
            mixer=mixer, vocab_size=30, train_length=40, capacity=made, d_model=16, n_layers=2, n_heads=2, head_k=8,
            head_v=8, mlp_hidden=16, chunk=8, inner=8, memory_hidden=8, window=6, segment=6,
        )
    ).double()  # fmt: skip


def alone(m: DecoderLM, ids: torch.Tensor) -> torch.Tensor:
    rows = []
    for row, cuts in zip(ids, STARTS, strict=True):
        edges = [*sorted({0, *cuts}), len(row)]
        rows.append(torch.cat([m(row[None, a:b]) for a, b in pairwise(edges)], 1))
    return torch.cat(rows)


@pytest.mark.parametrize("mixer", MIXERS)
def test_packed_documents_equal_each_document_alone_in_logits_and_gradients(mixer: str) -> None:
    m = model(mixer)
    ids = torch.randint(0, 30, (3, 40), generator=torch.Generator().manual_seed(1))
    logits, expected = m.documents(ids, STARTS), alone(m, ids)
    assert float((logits - expected).detach().abs().max()) <= 1e-12
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    made = torch.autograd.grad((logits * weights).sum(), list(m.parameters()), retain_graph=True)
    wanted = torch.autograd.grad((expected * weights).sum(), list(m.parameters()))
    assert max(float((a - b).abs().max()) for a, b in zip(made, wanted, strict=True)) <= 1e-10
    assert float((m(ids) - expected).detach().abs().max()) > 1e-6, "the starts change nothing: the test sees nothing"


def test_a_schedule_that_looks_at_the_data_restarts_its_clock_too() -> None:
    m = model("gdn", schedule=Surprise(blocks=4, span=24))
    ids = torch.randint(0, 30, (3, 40), generator=torch.Generator().manual_seed(1))
    assert float((m.documents(ids, STARTS) - alone(m, ids)).detach().abs().max()) <= 1e-12


def test_recomputing_a_block_changes_no_gradient() -> None:
    plain, again = model("gdn"), model("gdn")
    for block in again.stack:
        block.recompute = True
    ids = torch.randint(0, 30, (3, 40))
    for run in (lambda m: m(ids), lambda m: m.documents(ids, STARTS)):
        pairs = [torch.autograd.grad(run(m).square().sum(), list(m.parameters())) for m in (plain, again)]
        assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))


def test_groups_hold_every_position_once_and_pad_little() -> None:
    ids = torch.zeros(4, 200, dtype=torch.long)
    generator = torch.Generator().manual_seed(0)
    starts = [sorted({int(x) for x in torch.randint(0, 200, (9,), generator=generator)}) for _ in range(4)]
    packing = Packing.of(starts, ids)
    held = torch.cat([g.place_NL[g.real_NL] for g in packing.groups])
    assert torch.equal(held.sort().values, torch.arange(800))
    assert all(g.place_NL.numel() <= FILLER * int(g.real_NL.sum()) for g in packing.groups)
    assert len(packing.groups) < len(packing.spans) / 2
    assert len(Packing.of([list(range(200))] * 4, ids).groups) == 1


@pytest.mark.parametrize("starts", [[[0]], [[0], [200]], [[0], [-1]]])
def test_starts_outside_the_rows_are_refused(starts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="starts within"):
        Packing.of(starts, torch.zeros(2, 200, dtype=torch.long))
