"""State in pages: sequences that come and go in pieces, in shared batches, answer as each does alone in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hf_models import config, gap, tokens
from torch import Tensor

from proteus_bench.schedules import Capacity, Surprise
from proteus_models.decoder import MIXERS, DecoderLM
from proteus_models.state_pages import Row, StatePages, pack, unpack, whole_numbers

LENGTHS = (1, 5, 17, 17, 40)
SLOTS = (3, 0, 5, 7, 2)
SERVED = [(name, "hidden" if name == "titans-mlp" else mixer.axes[0]) for name, mixer in MIXERS.items() if mixer.memory != "none"]


def decoder(name: str, axis: str) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(config(name, axis, "learned" if axis == "hidden" else "zero")).eval()


def steps(seed: int) -> Iterator[list[tuple[int, int, int]]]:
    """(sequence, first token, length) of each step: single tokens and pieces of 2 to 8, mixed, until all are read."""
    generator = torch.Generator().manual_seed(seed)
    done = [0] * len(LENGTHS)
    while done != list(LENGTHS):
        step = []
        for i in [i for i, total in enumerate(LENGTHS) if done[i] < total]:
            piece = int(torch.randint(2, 9, (1,), generator=generator)) if torch.rand(1, generator=generator) < 0.5 else 1
            n = min(piece, LENGTHS[i] - done[i])
            step.append((i, done[i], n))
            done[i] += n
        yield step


def serve(model: DecoderLM, sequences: list[Tensor]) -> list[Tensor]:
    states = StatePages(model)
    pages = [torch.full((8, states.width), float("nan")) for _ in model.stack]
    found: list[list[Tensor]] = [[] for _ in sequences]
    for step in steps(1):
        rows, start = [], 0
        for i, begin, n in step:
            rows.append(Row(start=start, length=n, position=begin, slot=SLOTS[i]))
            start += n
        ids = torch.cat([sequences[i][begin : begin + n] for i, begin, n in step])
        h_ND = states.advance(ids, rows, pages)
        for (i, _, n), row in zip(step, rows, strict=True):
            found[i].append(h_ND[row.start : row.start + n])
    return [torch.cat(parts) for parts in found]


@torch.inference_mode()
@pytest.mark.parametrize(("name", "axis"), SERVED)
def test_pieces_in_shared_batches_give_what_one_pass_gives(name: str, axis: str) -> None:
    model = decoder(name, axis)
    sequences = [tokens(n, seed=i) for i, n in enumerate(LENGTHS)]
    for served, ids in zip(serve(model, sequences), sequences, strict=True):
        assert gap(served, model.hidden(ids[None])[0][0]) <= 1e-4


@torch.inference_mode()
def test_a_slot_is_used_again_by_another_sequence() -> None:
    model = decoder("titans", "key")
    states = StatePages(model)
    pages = [torch.zeros(1, states.width) for _ in model.stack]
    for seed in (0, 1):
        ids = tokens(9, seed=seed)
        h = states.advance(ids, [Row(start=0, length=9, position=0, slot=0)], pages)
        assert gap(h, model.hidden(ids[None])[0][0]) <= 1e-5


@torch.inference_mode()
def test_a_page_holds_tensors_and_whole_numbers_bit_by_bit() -> None:
    model = decoder("titans-mac", "key")
    state = model.hidden(tokens(2, 21))[1].layers[0]
    page = pack(state)
    numbers = whole_numbers([page, page], state)
    assert numbers == [(numbers[0][0],) * 2] * 2  # rows at one position, the same page for two layers
    assert (numbers[0][0][0], *numbers[0][0][-2:]) == (21 % 4, 21, 21)  # place in the inner chunk, ends of the two windows
    assert torch.equal(pack(unpack(page, StatePages(model).like, numbers[0][1])), page)


@torch.inference_mode()
def test_single_tokens_share_a_batch_whatever_their_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last unlock the position decides nothing for Gated DeltaNet; a window's rotation depends on it."""
    for name, expected in (("gdn", 1), ("titans-mag", 3)):
        model = decoder(name, "value")
        states, sizes = StatePages(model), []
        pages = [torch.zeros(3, states.width) for _ in model.stack]
        lengths = (30, 41, 57)
        for slot, n in enumerate(lengths):
            states.advance(tokens(n), [Row(start=0, length=n, position=0, slot=slot)], pages)
        hidden = model.hidden
        monkeypatch.setattr(model, "hidden", lambda ids, *a, hidden=hidden, sizes=sizes: sizes.append(len(ids)) or hidden(ids, *a))
        states.advance(tokens(3), [Row(start=i, length=1, position=n, slot=i) for i, n in enumerate(lengths)], pages)
        assert len(sizes) == expected and sum(sizes) == 3


def test_what_has_no_fixed_state_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"transformer\+\+ grows with the context"):
        StatePages(DecoderLM(config("transformer++")))
    model = decoder("gdn", "value")
    model.set_capacity(Capacity(schedule=Surprise(blocks=4, span=24), axis="value"))
    with pytest.raises(ValueError, match="decided by the data"):
        StatePages(model)
