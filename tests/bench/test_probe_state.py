"""The state side against closed forms: blocks, energies, ranks, traces, and a real decoder's memory."""

import numpy as np
import pytest
import torch

from proteus_bench.probes.gates import GATES, compare_gates
from proteus_bench.probes.memory import AddressedMemory, GatedMemory, MemoryTensor, by_block, effective_rank, energy
from proteus_bench.probes.trace import SETTLE, Swap, trace
from proteus_bench.schedules import Capacity, Reverse, Uniform
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM
from proteus_models.exposed import expose


def decoder(mixer="gdn", axis="value", gate="both", blocks=4, span=64, **more):
    torch.manual_seed(0)
    capacity = Capacity(schedule=Uniform(blocks=blocks, span=span), axis=axis, gate=gate, m0=more.pop("m0", "zero"))
    config = ModelConfig(
        mixer=mixer, vocab_size=50, train_length=span, capacity=capacity, d_model=16, n_layers=2, n_heads=2,
        head_k=8, head_v=8, mlp_hidden=16, memory_hidden=8, chunk=8, inner=8, **more,
    )  # fmt: skip
    return DecoderLM(config).double().eval()


def ids(n, seed=0):
    return np.random.Generator(np.random.PCG64(seed)).integers(0, 50, n)


def test_blocks_cut_the_axis_and_the_last_takes_the_rest():
    values = np.arange(2 * 3 * 7, dtype=float).reshape(2, 3, 7)
    parts = by_block(MemoryTensor(0, "M", values, axis=2), 3)
    assert [part.shape[2] for part in parts] == [2, 2, 3]
    assert np.array_equal(np.concatenate(parts, 2), values)
    assert [part.shape[1] for part in by_block(MemoryTensor(0, "M", values, axis=1), 16)] == [1, 1, 1]


def test_energy_adds_tensors_and_splits_layers():
    tensors = [MemoryTensor(0, "W1", np.ones((1, 2, 4)), 1), MemoryTensor(0, "W2", 2 * np.ones((1, 4, 2)), 2)]
    tensors.append(MemoryTensor(1, "W1", np.zeros((1, 2, 4)), 1))
    assert energy(tensors, 2, 2).tolist() == [[[4 + 16, 4 + 16], [0, 0]]]


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_effective_rank_of_known_matrices(axis):
    """Two equal directions have rank 2, one has rank 1, nothing has 0; heads are averaged."""
    values = np.zeros((1, 2, 4, 4))
    values[0, 0, 0, 0] = values[0, 0, 1, 1] = 3.0
    values[0, 1, 2, 2] = 5.0
    found = effective_rank([MemoryTensor(0, "M", values, axis, heads=1)], 1, 1)[0, 0, 0]
    assert found == pytest.approx((2 + 1) / 2)
    assert effective_rank([MemoryTensor(0, "M", 0 * values, axis, heads=1)], 1, 1)[0, 0, 0] == 0


class Leaky:
    """M <- keep M + code(token), with a code of its own for every token: everything about a trace is known."""

    blocks = 2
    unlocks = (1, 1)

    def __init__(self, keep):
        self.keep = keep
        self.codes = np.linalg.qr(np.random.Generator(np.random.PCG64(1)).standard_normal((64, 64)))[0]

    def start(self, rows):
        return np.zeros((rows, 64))

    def select(self, state, rows):
        return state[list(rows)]

    def feed(self, state, ids):
        for token in ids.T:
            state = self.keep * state + self.codes[token]
        return state

    def tensors(self, state):
        return [MemoryTensor(0, "M", state.copy(), axis=1)]


@pytest.mark.parametrize("keep", [1.0, 0.9])
def test_traces_follow_their_closed_form(keep):
    text = np.arange(40)
    seen = trace(Leaky(keep), text, [Swap(3, np.array([50])), Swap(20, np.array([51, 52]))], [10, 30, 40])
    settled = (4 + SETTLE, 22 + SETTLE)
    assert np.isnan(seen.retained[1, 0]).all()  # not written yet
    for swap, mark, at in ((0, 0, 10), (0, 1, 30), (0, 2, 40), (1, 1, 30), (1, 2, 40)):
        expected = pytest.approx(keep ** (at - settled[swap]))
        assert seen.retained[swap, mark, 0] == expected and seen.size[swap, mark, 0] == expected
    assert seen.written[0, 0] == pytest.approx(keep**SETTLE * 2**0.5)
    assert seen.sensitivity[0, 0].sum() == pytest.approx(2 * keep ** (2 * (40 - 4)))
    base = Leaky(keep).feed(np.zeros((1, 64)), text[None])
    assert seen.energy[2, 0].sum() == pytest.approx(np.square(base).sum())


def test_a_trace_refuses_what_lies_outside_the_text():
    for swaps, marks in (([Swap(39, np.array([1, 2]))], [40]), ([], [10, 30]), ([], [30, 10, 40]), ([], [])):
        with pytest.raises(ValueError, match="marks|outside"):
            trace(Leaky(1.0), np.arange(40), swaps, marks)


def test_an_exposed_decoder_is_the_decoder():
    model = decoder()
    memory = expose(model)
    assert isinstance(memory, AddressedMemory) and isinstance(memory, GatedMemory)
    assert memory.blocks == 4 and memory.unlocks == (1, 17, 33, 49)
    text = ids(40)
    state = memory.feed(memory.start(2), np.stack([text, text[::-1]]))
    _, true = model.prefill(torch.from_numpy(text[None]))
    both = memory.tensors(memory.select(state, [1, 0, 0]))
    assert [t.values.shape for t in both] == [(3, 2, 8, 8)] * 2
    for tensor, layer in zip(both, true.layers, strict=True):
        assert np.allclose(tensor.values[1], layer[1][0].detach().numpy(), atol=1e-12)
        assert np.array_equal(tensor.values[1], tensor.values[2])


def test_locked_blocks_are_empty_and_traces_reach_only_open_ones():
    memory = expose(decoder())
    text = ids(60)
    seen = trace(memory, text, [Swap(2, np.array([7])), Swap(40, np.array([7]))], [16, 32, 48, 60])
    assert (seen.energy[0, :, 1:] == 0).all() and (seen.energy[0, :, 0] > 0).all()
    assert (seen.energy[3] > 0).all()
    # A fact of the first segment in the first layer: the blocks that open later never hold its own trace.
    assert seen.sensitivity[0, 0, 0] > 1e-6 and (seen.sensitivity[0, 0, 1:] < 1e-24).all()
    assert (seen.sensitivity[1, 0, :3] > 1e-9).all()


def test_written_before_the_unlock_only_when_writes_are_not_gated():
    text = ids(60)
    early = {gate: trace(expose(decoder(gate=gate)), text, [], [16, 60]).energy for gate in ("both", "write", "read")}
    assert (early["both"][0, 0, 1:] == 0).all() and (early["write"][0, 0, 1:] == 0).all()
    assert (early["read"][0, 0, 1:] > 0).all()


def test_keys_and_reads_are_those_of_the_memory():
    model = decoder(mixer="titans")
    memory, text = expose(model), ids(24)
    keys = memory.keys(memory.start(1), text[None])
    assert [k.shape for k in keys] == [(1, 24, 2, 8)] * 2
    assert np.allclose(np.linalg.norm(keys[0], axis=-1), 1, atol=1e-3)
    state = memory.feed(memory.start(1), text[None])
    m = memory.tensors(state)[0].values
    assert np.allclose(memory.read(state, 0, keys[0]), np.einsum("bnhk,bhkv->bnhv", keys[0], m))


@pytest.mark.parametrize("mixer", ["titans-mlp", "titans-mac", "titans-mag", "titans-mal"])
def test_every_kind_of_memory_is_exposed(mixer):
    more = {"m0": "learned", "axis": "hidden"} if mixer == "titans-mlp" else {"window": 8, "segment": 8, "persistent": 2}
    memory = expose(decoder(mixer=mixer, **more))
    text = ids(40)
    seen = trace(memory, text, [Swap(20, np.array([3]))], [10, 30, 40])
    assert (seen.written > 0).all() and (seen.energy[-1, :, :3] > 0).all()  # the last block opens at 49
    keys = memory.keys(memory.start(1), text[None])
    assert memory.read(memory.feed(memory.start(1), text[None]), 1, keys[1]).shape == (1, 40, 2, 8)


def test_attention_alone_has_no_memory_to_expose():
    config = ModelConfig(
        mixer="transformer++", vocab_size=50, train_length=64, capacity=Capacity.static("value", 64), d_model=16,
        n_layers=1, n_heads=2, head_k=8, head_v=8, mlp_hidden=16,
    )  # fmt: skip
    assert expose(DecoderLM(config)) is None


def test_a_schedule_that_closes_again_has_no_unlocks():
    model = decoder()
    model.set_capacity(Capacity(schedule=Reverse(blocks=4, span=64), axis="value"))
    assert expose(model).unlocks == (1,) * 4


@pytest.mark.parametrize("axis", ["value", "head"])
def test_write_and_both_are_found_to_be_one_function_from_the_start_only(axis):
    found = compare_gates(expose(decoder(axis=axis, blocks=2)), 50)
    assert found.gates == GATES and found.refused == {}
    assert found.classes() == (("both", "write"), ("read",), ("none",))
    assert found.classes(carried=True) == (("both",), ("write",), ("read",), ("none",))
    pair = next(d for d in found.differences if {d.a, d.b} == {"both", "write"})
    assert pair.fresh < 1e-9 < 1e-3 < pair.carried


def test_a_learned_start_makes_all_gates_different():
    found = compare_gates(expose(decoder(mixer="titans-mlp", axis="hidden", m0="learned")), 50)
    assert found.classes() == (("both",), ("write",), ("read",), ("none",))


def test_a_gate_that_cannot_be_had_is_named():
    model = decoder(axis="key")
    model.set_capacity(Capacity(schedule=Uniform(blocks=4, span=64), axis="key", key_norm="after_mask"))
    found = compare_gates(expose(model), 50)
    assert list(found.refused) == ["write"] and "key_norm" in found.refused["write"]
    assert found.gates == ("both", "read", "none")


def test_comparing_gates_changes_nothing():
    model = decoder()
    before = model(torch.from_numpy(ids(30)[None]))
    compare_gates(expose(model), 50)
    assert model.config.capacity.gate == "both" and torch.equal(model(torch.from_numpy(ids(30)[None])), before)
