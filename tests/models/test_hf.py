"""The wrapper for transformers is the decoder: logits, gradients, loss, init, files, accelerate, the zoo."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from hf_models import CASES, MICRO, VOCAB, config, gap, padded, pair, tokens, weights_equal
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from proteus_bench.errors import UsageError
from proteus_bench.schedules import Capacity
from proteus_models import zoo
from proteus_models.decoder import MIXERS, DecoderLM
from proteus_models.hf import ProteusConfig, ProteusForCausalLM, from_zoo, register

pytestmark = pytest.mark.hf


@pytest.mark.parametrize("case", CASES)
def test_the_wrapper_gives_the_decoders_logits_and_gradients(case: tuple[str, ...]) -> None:
    decoder, wrapped = pair(*case)
    ids = tokens(2, 31)
    assert torch.equal(wrapped(ids).logits, decoder(ids))
    for model in (decoder, wrapped.model):
        model.zero_grad()
    loss = torch.nn.functional.cross_entropy(decoder(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    out = wrapped(ids, labels=ids)
    out.loss.backward()
    assert gap(out.loss, loss) < 1e-14
    theirs = dict(wrapped.model.named_parameters())
    for name, parameter in decoder.named_parameters():
        assert gap(parameter.grad, theirs[name].grad) < 1e-14, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load_is_bit_exact_and_the_embedding_stays_tied(tmp_path: Path, dtype: torch.dtype) -> None:
    _, wrapped = pair("titans-mlp", "hidden", "learned", dtype=dtype)
    wrapped.set_capacity(replace(config("titans-mlp", "hidden", "learned").capacity, gate="read"))
    wrapped.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ProteusForCausalLM and loaded.dtype == dtype
    assert loaded.config.model_config == wrapped.model.config == loaded.model.config
    assert loaded.lm_head.weight is loaded.model.embed.weight
    before, after = wrapped.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[n], after[n]) for n in before)
    assert torch.equal(loaded(tokens(2, 20)).logits, wrapped(tokens(2, 20)).logits)


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_registered_backbone_survives_the_json_of_its_configuration(mixer: str) -> None:
    axis = (*MIXERS[mixer].axes, "value")[0]
    own = ProteusConfig(config(mixer, axis, "learned" if axis == "hidden" else "zero"))
    again = ProteusConfig.from_dict(json.loads(own.to_json_string()))
    assert again.model_config == own.model_config and again.to_dict() == own.to_dict()


def test_weights_stay_in_32_bits_when_half_precision_is_asked_for(tmp_path: Path) -> None:
    _, wrapped = pair(dtype=torch.float32)
    wrapped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(loaded(tokens(1, 9)).logits, wrapped(tokens(1, 9)).logits)
    with pytest.raises(ValueError, match="float32"):
        loaded.to(torch.bfloat16)(tokens(1, 9))


@pytest.mark.parametrize("case", CASES)
def test_initial_weights_are_the_decoders_draw_also_through_the_meta_device(case: tuple[str, ...]) -> None:
    torch.manual_seed(5)
    decoder = DecoderLM(config(*case))
    torch.manual_seed(5)
    assert weights_equal(AutoModelForCausalLM.from_config(ProteusConfig(config(*case))), decoder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(ProteusConfig(config(*case)))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    model.to_empty(device="cpu")
    torch.manual_seed(5)
    model.init_weights()
    assert weights_equal(model, decoder) and model.lm_head.weight is model.model.embed.weight
    with torch.no_grad():
        model.model.norm.weight.zero_()
    model.init_weights()
    assert not model.model.norm.weight.any(), "a weight that is there must not be drawn again"


def test_a_tensor_missing_from_the_file_is_drawn_and_the_others_are_loaded(tmp_path: Path) -> None:
    _, wrapped = pair(dtype=torch.float32)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            parameter.add_(1.0)
    wrapped.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    lost = "model.blocks.1.mixer.gates.bias"
    del tensors[lost]
    save_file(tensors, path, metadata={"format": "pt"})
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.get_parameter(lost)[0] == -9.0, "the decay bias of a new Gated DeltaNet"
    assert all(torch.equal(loaded.get_parameter(n), t) for n, t in tensors.items())


def test_sharded_parameters_are_drawn_too(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    decoder = DecoderLM(config())
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(ProteusConfig(config()))
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        model.to_empty(device="cpu")
        torch.manual_seed(5)
        model.init_weights()
        own = dict(model.model.named_parameters())
        assert all(torch.equal(p, own[n].full_tensor()) for n, p in decoder.named_parameters())
        assert torch.equal(model(tokens(1, 9)).logits, decoder(tokens(1, 9)))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("where", ["left", "right", "scattered"])
def test_the_loss_of_a_padded_batch_is_the_loss_of_its_rows(where: str) -> None:
    decoder, wrapped = pair()
    rows = [tokens(n, seed=n) for n in (3, 12, 7)]
    ids, mask = padded(rows, where)
    labels = ids.clone()
    places = mask[1].nonzero().squeeze(-1)
    labels[1, places[4:6]] = -100
    total, count = torch.zeros((), dtype=torch.float64), 0
    for i, row in enumerate(rows):
        target = row[1:].clone()
        if i == 1:
            target[3:5] = -100
        total = total + torch.nn.functional.cross_entropy(decoder(row[None])[0, :-1], target, reduction="sum")
        count += int((target != -100).sum())
    out = wrapped(ids, attention_mask=mask, labels=labels)
    assert gap(out.loss, total / count) < 1e-13
    assert gap(wrapped(ids, attention_mask=mask, labels=labels, num_items_in_batch=7).loss, total / 7) < 1e-13
    total.div(count).backward()
    out.loss.backward()
    theirs = dict(wrapped.model.named_parameters())
    assert all(gap(p.grad, theirs[n].grad) < 1e-13 for n, p in decoder.named_parameters())


@torch.no_grad()
def test_logits_to_keep_are_the_same_logits() -> None:
    _, wrapped = pair()
    ids, mask = padded([tokens(5), tokens(11)], "left")
    full = wrapped(ids, attention_mask=mask).logits
    assert gap(wrapped(ids, attention_mask=mask, logits_to_keep=1).logits, full[:, -1:]) < 1e-14
    assert gap(wrapped(tokens(2, 9), logits_to_keep=1).logits, wrapped(tokens(2, 9)).logits[:, -1:]) < 1e-14
    picked = torch.tensor([4, 12])
    assert gap(wrapped(ids, attention_mask=mask, logits_to_keep=picked).logits, full[:, picked]) < 1e-14
    assert len(wrapped(ids, return_dict=False)) == 2
    assert wrapped.train()(ids).past_key_values is None, "no state is kept in training unless it is asked for"


def test_bad_input_is_refused_with_the_reason() -> None:
    _, wrapped = pair()
    ids = tokens(2, 5)
    cache = wrapped(ids).past_key_values
    bad = {
        "2 rows and the batch 3": lambda: wrapped(tokens(3, 1), past_key_values=cache),
        "ProteusCache": lambda: wrapped(ids, past_key_values=((torch.zeros(1),),)),
        "attention_mask": lambda: wrapped(ids, attention_mask=torch.ones(2, 4)),
        "exclude": lambda: wrapped(ids, labels=ids, logits_to_keep=1),
        "forget": lambda: cache.crop(1),
        "tie_word_embeddings": lambda: ProteusConfig(config(), tie_word_embeddings=False),
        "n_layer'": lambda: ProteusConfig(config().as_dict() | {"n_layer": 3}),
        "needs": lambda: ProteusConfig(),
    }
    for message, call in bad.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_the_embedding_can_be_resized_and_registering_twice_is_harmless(tmp_path: Path) -> None:
    register()
    _, wrapped = pair(dtype=torch.float32)
    wrapped.resize_token_embeddings(VOCAB + 6, mean_resizing=False)
    wrapped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded(tokens(1, 4)).logits.shape == (1, 4, VOCAB + 6) and loaded.model.config.vocab_size == VOCAB + 6


def test_accelerate_trains_it_unchanged() -> None:
    _, wrapped = pair(dtype=torch.float32)
    accelerator = Accelerator(cpu=True)
    ids, mask = padded([tokens(n, seed=n) for n in (12, 20, 7, 16)], "right")
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, mask), batch_size=2)
    model, optimizer, loader = accelerator.prepare(wrapped.train(), torch.optim.AdamW(wrapped.parameters(), 3e-2), data)
    losses = []
    for _ in range(8):
        for batch_ids, batch_mask in loader:
            out = model(input_ids=batch_ids, attention_mask=batch_mask, labels=batch_ids)
            accelerator.backward(out.loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(out.loss.item())
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2]) and all(map(math.isfinite, losses))
    assert wrapped.lm_head.weight is wrapped.model.embed.weight


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_autocast_gives_nearly_the_same_logits_and_a_32_bit_state() -> None:
    _, wrapped = pair(dtype=torch.float32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        out = wrapped(tokens(1, 20))
    _, state = out.past_key_values.groups[0]
    assert {x.dtype for layer in state.layers for x in layer} == {torch.float32}
    assert gap(out.logits.float(), wrapped(tokens(1, 20)).logits) < 2e-2


def test_the_zoo_by_name() -> None:
    model, tokenizer = from_zoo("gdn+proteus", seed=1)
    loaded = zoo.load("gdn", "proteus", seed=1)
    assert weights_equal(model, loaded.model) and not model.training
    assert (model.config.eos_token_id, model.config.pad_token_id) == (MICRO.id("<eos>"), MICRO.id("<pad>"))
    text = tokenizer.decode(model.generate(**tokenizer("The key", return_tensors="pt"), max_new_tokens=3)[0])
    assert text.startswith("The key")
    static = Capacity.static(axis="value")
    assert from_zoo("gdn+proteus", seed=1, capacity=static)[0].config.model_config.capacity == static
    with pytest.raises(UsageError, match="gdn"):
        from_zoo("gdm+proteus")


def test_a_saved_folder_loads_as_remote_code_where_nothing_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lm_eval --model hf --model_args pretrained=DIR,trust_remote_code=True` does."""
    from transformers import dynamic_module_utils
    from transformers.models.auto import configuration_auto, modeling_auto

    _, wrapped = pair(dtype=torch.float32)
    wrapped.save_pretrained(tmp_path)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(configuration_auto.CONFIG_MAPPING._extra_content, "proteus")
    monkeypatch.delitem(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING._extra_content, ProteusConfig)
    with pytest.raises(ValueError, match="trust_remote_code|model type"):
        AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert type(loaded) is ProteusForCausalLM
    assert torch.equal(loaded(tokens(1, 9)).logits, wrapped(tokens(1, 9)).logits)
