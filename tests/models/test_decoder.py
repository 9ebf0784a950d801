"""Every mixer inside the decoder: conformance checks pass, and deliberately broken models are caught by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from proteus_bench.schedules import Capacity, CapacityError, Reverse, Uniform
from proteus_kernels import delta
from proteus_models.check import CheckRow, check_model
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM

SIZES = {"d_model": 16, "n_heads": 4, "head_k": 8, "head_v": 8, "mlp_hidden": 16, "memory_hidden": 16, "n_layers": 2}
CASES = [
    ("gdn", "key", "zero"), ("gdn", "value", "zero"), ("gdn", "head", "learned"),
    ("titans", "key", "learned"), ("titans", "value", "zero"), ("titans-mlp", "hidden", "learned"),
]  # fmt: skip


def config(mixer: str, axis: str, m0: str = "zero", **choices: str) -> ModelConfig:
    capacity = Capacity(schedule=Uniform(blocks=4, span=64), axis=axis, m0=m0, **choices)
    return ModelConfig(mixer=mixer, vocab_size=40, train_length=64, capacity=capacity, chunk=8, inner=8, **SIZES)


def model(mixer: str = "gdn", axis: str = "key", m0: str = "zero", **choices: str) -> DecoderLM:
    torch.manual_seed(0)
    return DecoderLM(config(mixer, axis, m0, **choices))


def failed(rows: list[CheckRow]) -> set[str]:
    return {r.name for r in rows if not r.passed}


@pytest.mark.parametrize(("mixer", "axis", "m0"), CASES)
def test_every_mixer_and_axis_passes_every_check(mixer: str, axis: str, m0: str) -> None:
    rows = check_model(model(mixer, axis, m0), length=40)
    assert len(rows) == 10
    assert failed(rows) == set()


@pytest.mark.parametrize("gate", ["write", "read"])
def test_the_other_gates_pass_too(gate: str) -> None:
    assert failed(check_model(model(gate=gate, m0="learned"), length=40)) == set()


@pytest.mark.parametrize("key_norm", ["after_mask", "compensated"])
def test_the_key_norms_are_three_different_functions(key_norm: str) -> None:
    ids = torch.arange(30)[None]
    base, other = model(), model(key_norm=key_norm)
    assert failed(check_model(other, length=40)) == set()
    assert float((base(ids) - other(ids)).detach().abs().max()) > 1e-4


def test_one_block_is_the_base_model_bit_for_bit() -> None:
    for mixer, axis, m0 in CASES:
        c = config(mixer, axis, m0)
        static = replace(c, capacity=Capacity.static(axis=axis, span=64, m0=m0))
        one = replace(c, capacity=replace(c.capacity, schedule=Uniform(blocks=1, span=64)))
        outs = []
        for each in (static, one):
            torch.manual_seed(0)
            outs.append(DecoderLM(each)(torch.arange(35)[None] % 40))
        assert torch.equal(*outs)


def test_a_read_of_locked_blocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = delta.chunk
    monkeypatch.setattr(delta, "chunk", lambda **x: whole(**(x | {"gate": "write"})))
    assert "chunk = definition" in failed(check_model(model(), length=40))


def test_decay_on_locked_blocks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("chunk", "recurrent"):
        right = getattr(delta, form)
        monkeypatch.setattr(delta, form, lambda right=right, **x: right(**(x | {"decay_locked": "unmasked"})))
    assert failed(check_model(model(), length=40)) == {"lock invariant"}


def test_an_unlock_that_comes_one_position_late_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = delta.chunk
    monkeypatch.setattr(delta, "chunk", lambda **x: right(**(x | {"active": x["active"] and [x["active"][0], *x["active"][:-1]]})))
    assert {"chunk = definition", "continuation"} <= failed(check_model(model(), length=40))


def test_a_clock_that_restarts_with_a_cached_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = DecoderLM.active
    monkeypatch.setattr(DecoderLM, "active", lambda self, start, n: right(self, 0, n))
    assert "continuation" in failed(check_model(model(), length=40))


def test_a_schedule_that_closes_is_exact() -> None:
    c = config("gdn", "key")
    torch.manual_seed(0)
    closing = DecoderLM(replace(c, capacity=replace(c.capacity, schedule=Reverse(blocks=4, span=64))))
    assert failed(check_model(closing, length=40)) == set()


def test_documents_restart_the_schedule_only_with_document_origin() -> None:
    ids, starts = torch.arange(60)[None] % 40, [[0, 25]]
    window, document = model(), model(origin="document")
    alone = document(ids[:, 25:])
    assert torch.equal(document.documents(ids, starts)[:, 25:], alone)
    assert torch.equal(window.documents(ids, starts), window(ids))
    assert not torch.equal(window(ids)[:, 25:], alone)


def test_forked_states_answer_like_separate_runs() -> None:
    m = model("titans", "value").double()
    context, asks = torch.arange(33)[None] % 40, torch.tensor([[1, 2, 3], [9, 8, 7]])
    _, state = m.prefill(context)
    forked = m(asks, state.fork(2))
    for i, ask in enumerate(asks):
        whole = m(torch.cat([context[0], ask])[None])[:, -3:]
        assert torch.allclose(forked[i : i + 1], whole, atol=1e-12)
    assert state.fork(2).nbytes == 2 * state.nbytes


@pytest.mark.parametrize(
    ("mixer", "axis", "m0", "message"),
    [("gdn", "hidden", "zero", "no hidden axis"), ("titans-mlp", "key", "learned", "no key axis"),
     ("titans-mlp", "hidden", "zero", "m0=learned")],
)  # fmt: skip
def test_impossible_models_are_refused_with_the_reason(mixer: str, axis: str, m0: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(mixer, axis, m0)


def test_blocks_that_do_not_divide_the_axis_are_refused() -> None:
    c = config("gdn", "key")
    with pytest.raises(CapacityError, match="divide"):
        DecoderLM(replace(c, capacity=replace(c.capacity, schedule=Uniform(blocks=3, span=64))))


def test_config_round_trips_and_refuses_unknown_keys() -> None:
    c = config("titans", "value")
    assert ModelConfig.from_dict(c.as_dict()) == c
    with pytest.raises(ValueError, match="n_layer"):
        ModelConfig.from_dict(c.as_dict() | {"n_layer": 3})
