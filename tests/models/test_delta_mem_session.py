"""delta-mem's state over time: caches, padding, beams, sessions on disk, the schedule's clock, damaged files."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from delta_mem_models import MODES, adapted, base, gap, left_padded, random_state, state_gap, tokens
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from proteus_bench.errors import InvalidFileError
from proteus_models.delta_mem import DeltaMem
from proteus_models.delta_mem_state import DeltaMemConfig, Segments

pytestmark = pytest.mark.hf


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_continuing_with_a_cache_is_one_pass(mode: str) -> None:
    model, memory = adapted(mode)
    memory.session = random_state(memory, 2)
    ids = tokens(2, 21)
    whole, end = model(ids), memory.last
    for cut in (1, 5, 6, 13, 20):
        first = model(ids[:, :cut])
        twin = copy.deepcopy(first.past_key_values)
        for cache in (first.past_key_values, twin):
            rest = model(ids[:, cut:], past_key_values=cache)
            assert gap(torch.cat([first.logits, rest.logits], 1), whole.logits) < 1e-12
            assert state_gap(memory.last, end) < 1e-12
    assert gap(whole.logits, model(ids.flip(1)).logits) > 1e-3
    assert torch.equal(model(ids).logits, whole.logits), "a forward without a cache starts from the session, not from the last"


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_a_padded_batch_writes_what_its_rows_write_alone(mode: str) -> None:
    model, memory = adapted(mode, "gpt2")
    rows = [tokens(n, seed=n) for n in (4, 15, 9)]
    ids, mask = left_padded(rows)
    keys = {"max_new_tokens": 7, "eos_token_id": None, "pad_token_id": 0}
    out = model.generate(ids, attention_mask=mask, **keys)
    state = memory.last
    for i, row in enumerate(rows):
        alone = model.generate(row[None], attention_mask=torch.ones(1, len(row), dtype=torch.long), **keys)
        assert torch.equal(out[i, ids.shape[1] :], alone[0, len(row) :])
        assert state_gap(state.select([i]), memory.last) < 1e-12
        assert memory.last.position.tolist() == [len(row) + 6]  # the last new token is not read again


@torch.no_grad()
@pytest.mark.parametrize("mode", ["token-scheduled", "segment"])
def test_beams_and_samples_do_not_depend_on_the_cache(mode: str) -> None:
    model, memory = adapted(mode)
    memory.session = random_state(memory, 1)
    ids, mask = left_padded([tokens(n, seed=n) for n in (4, 11)])
    for choice in ({"num_beams": 3, "num_return_sequences": 2}, {"do_sample": True, "num_return_sequences": 2}):
        outs = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            outs.append(model.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, use_cache=use_cache, **choice))
        assert torch.equal(*outs), choice


@torch.no_grad()
@pytest.mark.parametrize("mode", MODES)
def test_a_saved_session_goes_on_bit_for_bit_with_another_copy_of_the_model(mode: str, tmp_path: Path) -> None:
    model, memory = adapted(mode)
    memory.session = random_state(memory, 2)
    model(tokens(2, 13))
    memory.commit()
    memory.save(str(tmp_path / "adapter.safetensors"))
    memory.save_session(tmp_path / "session.safetensors")
    other = base()
    loaded = DeltaMem.load(other, tmp_path / "adapter.safetensors")
    assert loaded.config == memory.config
    state = loaded.load_session(tmp_path / "session.safetensors")
    assert state.position.tolist() == [16, 20] and state_gap(state, memory.session) == 0
    ids = tokens(2, 15, seed=8)
    assert torch.equal(other(ids).logits, model(ids).logits)
    assert state_gap(loaded.last, memory.last) == 0


@torch.no_grad()
def test_two_sessions_in_a_row_write_the_memory_of_one_pass_with_the_schedules_clock() -> None:
    """In the first layer, whose input does not depend on the attention's own context."""
    model, memory = adapted("token-scheduled")
    ids = tokens(1, 24)
    model(ids)
    whole = memory.last
    for cut in (5, 6, 7, 12):
        memory.reset()
        for part in (ids[:, :cut], ids[:, cut:]):
            model(part)
            memory.commit()
        assert gap(memory.last.memory[0], whole.memory[0]) < 1e-13
        assert memory.last.position.tolist() == [24]


@torch.no_grad()
def test_locked_rows_of_a_loaded_session_keep_every_bit() -> None:
    model, memory = adapted("token-scheduled")
    start = replace(random_state(memory, 2), position=torch.tensor([0, 6]))
    memory.session = start
    model(tokens(2, 6))
    for before, after in zip(start.memory, memory.last.memory, strict=True):
        for row, opened in ((0, 2), (1, 4)):
            assert torch.equal(before[row, :, opened:], after[row, :, opened:])
            assert not torch.equal(before[row, :, :opened], after[row, :, :opened])


def test_segments_end_by_length_or_by_token_and_pads_do_not_count() -> None:
    config = DeltaMemConfig(write="segment", segment=3, segment_tokens=(9,))
    ids = torch.tensor([[5, 9, 5, 5, 5, 5], [9, 5, 9, 5, 5, 5]])
    real = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]]).bool()
    cut = Segments.cut(config, real, ids, torch.tensor([0, 1]))
    assert cut.ends.int().tolist() == [[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 0]]
    assert cut.pending.tolist() == [1, 2]
    x = torch.arange(12.0).view(2, 6, 1)
    means, left = cut.means(x, torch.tensor([[0.0], [4.0]]))
    assert means[0, :2, 0].tolist() == [0.5, 3.0] and means[1, 0, 0].item() == 6.0 and left[:, 0].tolist() == [5.0, 19.0]


@torch.no_grad()
def test_damaged_and_foreign_files_give_one_clear_line(tmp_path: Path) -> None:
    model, memory = adapted("segment")
    model(tokens(2, 7))
    memory.commit()
    good, adapter = tmp_path / "good.safetensors", tmp_path / "adapter.safetensors"
    memory.save_session(good)
    memory.save(adapter)
    raw, tensors = good.read_bytes(), load_file(good)
    header = {"format": "pt"}
    own = _header(good)
    bad: dict[str, Any] = {
        "empty": b"", "torn": raw[: len(raw) // 2], "noise": b"\xff" * 200, "missing": None, "adapter": adapter.read_bytes(),
        "no_header": (tensors, header), "config": (tensors, own | {"config": "{]"}),
        "key": (tensors, own | {"config": own["config"].replace('"alpha"', '"alhpa"')}),
        "other_config": (tensors, own | {"config": own["config"].replace('"segment": 5', '"segment": 6')}),
        "other_adapter": (tensors, own | {"adapter": "0" * 64}),
        "nan": (tensors | {"memory.0": tensors["memory.0"] * torch.nan}, own),
        "shape": (tensors | {"memory.1": tensors["memory.1"][:, :, :-1].contiguous()}, own),
        "rows": (tensors | {"position": tensors["position"][:1].clone()}, own),
        "scalar": (tensors | {"position": tensors["position"][0].clone()}, own),
        "kind": (tensors | {"position": tensors["position"].double()}, own),
        "negative": (tensors | {"position": tensors["position"] - 99}, own),
        "extra": (tensors | {"memory.2": tensors["memory.1"].clone()}, own),
        "lost": ({k: v for k, v in tensors.items() if k != "sum.0"}, own),
    }  # fmt: skip
    for name, content in bad.items():
        path = tmp_path / f"{name}.session.safetensors"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            save_file(content[0], path, metadata=content[1])
        with pytest.raises(InvalidFileError) as caught:
            memory.load_session(path)
        assert "\n" not in caught.value.message and str(path) in caught.value.message, name
    assert state_gap(memory.session, memory.load_session(good)) == 0
    with pytest.raises(InvalidFileError, match="pickled"):
        memory.load_session(tmp_path / "state.pt")
    narrow = base("qwen3")
    with pytest.raises(InvalidFileError, match="shape"):
        DeltaMem.load(narrow, adapter)
    DeltaMem(narrow)  # the failed load left nothing attached


def _header(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return dict(file.metadata())
