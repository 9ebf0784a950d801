"""A data-dependent schedule on every backbone: rows with their own k, exact cuts, forms, forks; and what it looks at."""

from dataclasses import replace

import pytest
import torch

from proteus_bench.schedules import Capacity, CapacityError, Surprise
from proteus_models.check import check_model
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM

SURPRISED = [(name, axis) for name, cls in MIXERS.items() for axis in cls.axes if cls.clock == "context"]
LINEAR_ONLY = ("titans-mac", "titans-mag", "titans-mal")


def model(name: str, axis: str, **schedule) -> DecoderLM:
    torch.manual_seed(0)
    mlp = axis == "hidden"
    values = {"blocks": 2 if axis == "head" else 4, "span": 40, "every": 8, "tau": 0.98, "budget": 0.9} | schedule
    capacity = Capacity(schedule=Surprise(**values), axis=axis, m0="learned" if mlp else "zero")
    shape = {"d_model": 16, "n_heads": 2, "head_k": 8, "head_v": 8, "mlp_hidden": 16, "memory_hidden": 8}
    if name in LINEAR_ONLY:
        shape |= {"memory": "mlp" if mlp else "linear", "window": 9, "segment": 10}
    config = ModelConfig(mixer=name, vocab_size=50, train_length=40, capacity=capacity, chunk=8, inner=8, **shape)
    return DecoderLM(config).double()


def tokens(rows: int = 3, length: int = 50) -> torch.Tensor:
    return torch.randint(50, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("name", "axis"), SURPRISED)
@torch.no_grad()
def test_forms_rows_and_cuts_are_one_function(name, axis):
    lm, ids = model(name, axis), tokens()
    whole, end = lm(ids, return_state=True)
    assert any(o.unlocks for o in end.openings)
    slow, slow_end = lm(ids, return_state=True, form="recurrent")
    assert torch.allclose(slow, whole, atol=1e-12) and [o.unlocks for o in slow_end.openings] == [o.unlocks for o in end.openings]
    alone = torch.cat([lm(row[None]) for row in ids])
    assert torch.allclose(alone, whole, atol=1e-12)
    state, parts = None, []
    for a, b in ((0, 8), (8, 21), (21, 22), (22, 50)):  # at a decision, inside a chunk, one token, the rest
        part, state = lm(ids[:, a:b], state, return_state=True)
        parts.append(part)
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)
    assert [o.unlocks for o in state.openings] == [o.unlocks for o in end.openings]


@torch.no_grad()
def test_rows_of_one_batch_open_at_their_own_times():
    lm, ids = model("titans", "value", tau=0.99), tokens(6)
    _, end = lm(ids, return_state=True)
    assert len({o.unlocks for o in end.openings}) > 1
    _, state = lm(ids[:, :21], return_state=True)
    forked = state.fork(2)
    assert [o for o in forked.openings] == [o for o in state.openings for _ in range(2)]
    picked = forked.select([11, 0])
    right, _ = lm(ids[[5, 0], 21:], picked, return_state=True)
    assert torch.allclose(right, lm(ids)[[5, 0], 21:], atol=1e-12)


@torch.no_grad()
def test_a_threshold_above_every_error_never_opens_and_one_below_opens_at_every_chunk():
    ids = tokens(2)
    for tau, unlocks in ((1e9, ()), (0.0, (9, 17, 25))):
        _, end = model("gdn", "value", tau=tau, budget=1.0)(ids, return_state=True)
        assert [o.unlocks for o in end.openings] == [unlocks] * 2


@torch.no_grad()
def test_the_first_signal_is_one_from_an_empty_memory():
    lm = model("gdn", "value", memory=0.0)
    _, end = lm(tokens(1, 8), return_state=True)
    assert end.openings[0].error == pytest.approx(1.0)  # nothing is predicted: the miss is the value itself


@torch.no_grad()
def test_a_memory_that_knows_the_pairs_is_not_surprised():
    """One layer of the delta rule that has just seen the same tokens predicts them better than a shuffled row."""
    lm = model("deltanet", "value", tau=1e9, every=24, memory=0.0)
    part = tokens(1, 24)
    _, state = lm(torch.cat([part, part], 1), return_state=True)
    _, other = lm(torch.cat([part, part.roll(7) * 3 % 50], 1), return_state=True)
    assert state.openings[0].error < other.openings[0].error


def test_training_goes_through_a_data_dependent_schedule():
    lm = model("titans", "value")
    lm(tokens(2)).logsumexp(-1).mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in lm.parameters())
    assert lm.stack[0].mixer.projections.linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("name", "axis"), [("gdn", "key"), ("titans", "value"), ("swla", "key"), ("titans-mlp", "hidden")])
def test_the_conformance_check_knows_data_dependent_schedules(name, axis):
    rows = check_model(model(name, axis))
    assert all(row.passed for row in rows), [row for row in rows if not row.passed]
    assert not any("nothing is locked" in row.detail for row in rows)


def test_hope_counts_optimizer_steps_and_refuses_it():
    lm = model("gdn", "value")
    hope = MIXERS["hope-attention"]
    capacity = replace(lm.config.capacity, axis=hope.axes[0])
    with pytest.raises(CapacityError, match="optimizer steps"):
        DecoderLM(replace(lm.config, mixer="hope-attention", capacity=capacity))
