"""generate, caches and padding of the wrapper for transformers: a batch with pads is its rows alone; the tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hf_models import CASES, FAST, MICRO, config, gap, greedy, padded, pair, state_gap, tokens
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from proteus_bench.schedules import Surprise
from proteus_models.decoder import MIXERS, DecoderLM, map_tensors
from proteus_models.hf import from_decoder
from proteus_models.hf_cache import ProteusCache

pytestmark = pytest.mark.hf


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", ["left", "right", "scattered"])
def test_a_padded_batch_is_its_rows_alone(case: tuple[str, ...], where: str) -> None:
    decoder, wrapped = pair(*case)
    rows = [tokens(n, seed=n) for n in (3, 17, 9, 9, 26)]
    ids, mask = padded(rows, where)
    out = wrapped(ids, attention_mask=mask)
    assert out.past_key_values.positions == [len(row) for row in rows]
    assert out.past_key_values.get_seq_length() == ids.shape[1]
    for i, row in enumerate(rows):
        alone, state = decoder(row[None], return_state=True)
        assert gap(out.logits[i, mask[i].bool()], alone[0]) < 1e-12
        assert not out.logits[i, ~mask[i].bool()].any()
        group, own = next((g, s) for g, s in out.past_key_values.groups if i in g)
        assert state_gap(own.select([group.index(i)]).layers, state.layers) < 1e-12
        assert own.position == state.position
    careless = wrapped(ids)
    assert where == "right" or gap(careless.logits[0, mask[0].bool()], decoder(rows[0][None])[0]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("mixer", MIXERS)
def test_padding_and_a_cut_are_exact_for_every_registered_backbone(mixer: str) -> None:
    axis = (*MIXERS[mixer].axes, "value")[0]
    decoder, wrapped = pair(mixer, axis, "learned" if axis == "hidden" else "zero", dtype=torch.float64)
    rows = [tokens(n, seed=n) for n in (5, 14, 9)]
    ids, mask = padded(rows, "left")
    cache = wrapped(ids[:, :10], attention_mask=mask[:, :10]).past_key_values
    out = wrapped(ids[:, 10:], attention_mask=mask, past_key_values=cache)
    assert cache.positions == [5, 14, 9]
    for i, row in enumerate(rows):
        assert gap(out.logits[i, -1], decoder(row[None])[0, -1]) < 1e-12


@torch.no_grad()
def test_a_schedule_that_looks_at_the_data_opens_for_each_row_by_its_own_tokens() -> None:
    torch.manual_seed(0)
    base = config("gdn", "value")
    schedule = Surprise(blocks=4, span=24, every=4, tau=0.2, budget=0.9)
    decoder = DecoderLM(replace(base, capacity=replace(base.capacity, schedule=schedule))).double().eval()
    wrapped = from_decoder(decoder)
    rows = [tokens(n, seed=n) for n in (5, 22, 14)]
    ids, mask = padded(rows, "left")
    cache = wrapped(ids[:, :11], attention_mask=mask[:, :11]).past_key_values
    out = wrapped(ids[:, 11:], attention_mask=mask, past_key_values=cache)
    opened = []
    for i, row in enumerate(rows):
        logits, state = decoder(row[None], return_state=True)
        assert gap(out.logits[i, -1], logits[0, -1]) < 1e-12
        group, own = next((g, s) for g, s in cache.groups if i in g)
        assert own.openings[group.index(i)].k == state.openings[0].k
        opened.append(state.openings[0].k)
    assert max(opened) > min(opened)


@torch.no_grad()
def test_a_row_of_pads_alone_keeps_its_state() -> None:
    _, wrapped = pair()
    first = wrapped(tokens(2, 7)).past_key_values
    before = [state.layers for _, state in first.groups]
    out = wrapped(
        torch.stack([tokens(5), tokens(5)]), attention_mask=torch.tensor([[1] * 5, [0] * 5]), past_key_values=first
    )
    assert out.past_key_values.positions == [12, 7]
    kept = next(state for rows, state in out.past_key_values.groups if rows == [1])
    assert state_gap(kept.layers, map_tensors(before[0], lambda x: x[1:])) == 0


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_continuing_from_the_cache_is_one_pass(case: tuple[str, ...]) -> None:
    _, wrapped = pair(*case)
    ids, mask = padded([tokens(n, seed=n) for n in (26, 11, 19)], "left")
    whole = wrapped(ids, attention_mask=mask)
    for cut in (1, 3, 9, 15, 16, 27):  # a column before any token, inside pads, at and after unlocks, the last one
        cache = wrapped(ids[:, :cut], attention_mask=mask[:, :cut]).past_key_values
        peek = wrapped(ids[:, cut:], attention_mask=mask, past_key_values=cache, use_cache=False)
        assert cache.get_seq_length() == cut, "use_cache=False reads a cache and leaves it as it is"
        rest = wrapped(ids[:, cut:], attention_mask=mask[:, cut:], past_key_values=cache)
        assert gap(rest.logits, whole.logits[:, cut:]) < 1e-12 and torch.equal(peek.logits, rest.logits)
        assert rest.past_key_values is cache and cache.positions == [26, 11, 19]


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_generate_is_the_decoders_own_loop_past_every_unlock_and_with_pads(case: tuple[str, ...]) -> None:
    decoder, wrapped = pair(*case)
    rows = [tokens(n, seed=n) for n in (4, 15, 9)]
    ids, mask = padded(rows, "left")
    out = wrapped.generate(ids, attention_mask=mask, max_new_tokens=16, eos_token_id=None)
    for row, answer in zip(rows, out[:, ids.shape[1] :], strict=True):
        assert answer.tolist() == greedy(decoder, row, 16)
    inferred = wrapped.generate(ids, max_new_tokens=16, eos_token_id=None)
    assert torch.equal(inferred, out), "generate infers the mask from the pad id"


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_beams_and_samples_do_not_depend_on_the_cache(case: tuple[str, ...]) -> None:
    _, wrapped = pair(*case)
    ids, mask = padded([tokens(n, seed=n) for n in (4, 11)], "left")
    choices = [
        {"num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "top_k": 10, "num_return_sequences": 2},
        {"num_beams": 2, "do_sample": True, "temperature": 3.0},
    ]
    for choice in choices:
        outs = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            outs.append(
                wrapped.generate(ids, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, use_cache=use_cache, **choice)
            )
        assert torch.equal(*outs), choice


@torch.no_grad()
def test_generate_goes_on_from_a_returned_cache_and_prefills_in_chunks() -> None:
    _, wrapped = pair("titans", "key", "learned")
    ids = tokens(2, 20)
    keys = {"max_new_tokens": 6, "eos_token_id": None}
    whole = wrapped.generate(ids, **keys)
    cache = wrapped(ids[:, :13]).past_key_values
    assert torch.equal(wrapped.generate(ids, past_key_values=cache, **keys), whole)
    assert torch.equal(wrapped.generate(ids, past_key_values=ProteusCache(), prefill_chunk_size=7, **keys), whole)
    with pytest.raises(ValueError, match="stateful"):
        wrapped.generate(ids[:1], assistant_model=wrapped, **keys)


@torch.no_grad()
def test_rows_of_a_cache_can_be_repeated_reordered_and_selected() -> None:
    _, wrapped = pair()
    ids, mask = padded([tokens(n, seed=n) for n in (6, 12, 9)], "left")
    nxt = tokens(3, 2, seed=9)
    base = wrapped(nxt, past_key_values=wrapped(ids, attention_mask=mask).past_key_values).logits
    cache = wrapped(ids, attention_mask=mask).past_key_values
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([4, 0, 1, 2]))
    cache.batch_select_indices(torch.tensor([0, 1, 3]))
    assert cache.positions == [9, 6, 12]
    order = [2, 0, 1]
    assert gap(wrapped(nxt[order], past_key_values=cache).logits, base[order]) < 1e-14
    cache.reset()
    assert gap(wrapped(nxt, past_key_values=cache).logits, wrapped(nxt).logits) == 0


@given(st.text(st.characters(codec="utf-8") | st.sampled_from(" \n\t0123456789abc,."), max_size=60))
def test_the_fast_tokenizer_is_the_micro_tokenizer(text: str) -> None:
    ids = MICRO.encode(text)
    assert FAST(text)["input_ids"] == FAST.encode(text) == ids
    assert FAST.decode(ids, skip_special_tokens=True) == MICRO.decode(ids)


def test_the_tokenizer_survives_a_folder_and_tokenises_prose_and_markers_alike(tmp_path: Path) -> None:
    from proteus_tasks import haystack

    FAST.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    prose = haystack.documents("train")[0].text[:20000]
    for text in (prose, "a <pad>b<eos>", "  two  spaces\r\n", "é\u2028漢字🙂"):
        assert loaded(text)["input_ids"] == FAST(text)["input_ids"] == MICRO.encode(text)
    assert loaded.padding_side == "left" and loaded.pad_token_id == MICRO.id("<pad>")
    assert set(loaded("a")) == {"input_ids", "attention_mask"}
