"""The wrapper for transformers is the decoder: logits, gradients, init, files, generation, padding, lm-eval, accelerate."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from proteus_bench.errors import UsageError
from proteus_bench.schedules import Capacity, Uniform
from proteus_models import zoo
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM, map_tensors
from proteus_models.hf import ProteusConfig, ProteusForCausalLM, fast_tokenizer, from_decoder, from_zoo, register
from proteus_models.hf_cache import ProteusCache

pytestmark = pytest.mark.hf
SIZES = {"d_model": 16, "n_heads": 2, "head_k": 8, "head_v": 8, "mlp_hidden": 16, "memory_hidden": 8, "n_layers": 2}
CASES = [("gdn", "value", "zero"), ("titans", "key", "learned"), ("titans-mlp", "hidden", "learned")]
VOCAB = 40


def config(mixer: str = "gdn", axis: str = "value", m0: str = "zero") -> ModelConfig:
    capacity = Capacity(schedule=Uniform(blocks=4, span=24), axis=axis, m0=m0)
    return ModelConfig(
        mixer=mixer, vocab_size=VOCAB, train_length=24, capacity=capacity, chunk=4, inner=4, **SIZES
    )  # fmt: skip


def pair(*case: str, dtype: torch.dtype = torch.float64) -> tuple[DecoderLM, ProteusForCausalLM]:
    torch.manual_seed(0)
    decoder = DecoderLM(config(*case)).to(dtype).eval()
    return decoder, from_decoder(decoder, pad_token_id=0, bos_token_id=1, eos_token_id=2)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.detach() - b.detach()).abs().max())


def state_gap(a: object, b: object) -> float:
    both: tuple[list[Tensor], list[Tensor]] = ([], [])
    for tree, out in zip((a, b), both, strict=True):
        map_tensors(tree, lambda x, out=out: out.append(x) or x)
    return max(gap(x, y) for x, y in zip(*both, strict=True))


def padded(rows: list[Tensor], where: str) -> tuple[Tensor, Tensor]:
    """Rows of unequal length in one rectangle; pads (id 0) on one side or scattered inside."""
    width = max(map(len, rows)) + 2
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for i, row in enumerate(rows):
        places = {
            "left": range(width - len(row), width),
            "right": range(len(row)),
            "scattered": sorted(torch.randperm(width, generator=torch.Generator().manual_seed(i))[: len(row)].tolist()),
        }[where]
        ids[i, list(places)], mask[i, list(places)] = row, 1
    return ids, mask


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


def test_weights_stay_in_32_bits_when_half_precision_is_asked_for(tmp_path: Path) -> None:
    _, wrapped = pair(dtype=torch.float32)
    wrapped.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(loaded(tokens(1, 9)).logits, wrapped(tokens(1, 9)).logits)
    with pytest.raises(ValueError, match="float32"):
        loaded.to(torch.bfloat16)(tokens(1, 9))


def weights_equal(wrapped: ProteusForCausalLM, decoder: DecoderLM) -> bool:
    own = wrapped.model.state_dict()
    return all(torch.equal(t, own[n]) for n, t in decoder.state_dict().items())


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


def greedy(decoder: DecoderLM, row: Tensor, new: int) -> list[int]:
    out: list[int] = []
    logits, state = decoder.prefill(row[None])
    for _ in range(new):
        out.append(int(logits.argmax()))
        logits, state = decoder.prefill(torch.tensor([[out[-1]]]), state)
    return out


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


MICRO, FAST = zoo.tokenizer(), fast_tokenizer()


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


def ours(decoder: DecoderLM, context: str, continuation: str) -> tuple[float, bool]:
    """Log-probability of the continuation's tokens and whether it is the greedy one, from the decoder alone."""
    whole, start = MICRO.encode(context + continuation), len(MICRO.encode(context))
    logp = decoder(torch.tensor([whole])).log_softmax(-1)[0, start - 1 : -1]
    target = torch.tensor(whole[start:])
    return float(logp.gather(1, target[:, None]).sum()), bool((logp.argmax(-1) == target).all())


@torch.no_grad()
@pytest.mark.parametrize("name", ["gdn+proteus", "titans"])
def test_lm_evals_own_back_end_gives_our_log_probabilities(name: str, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = from_zoo(name)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pairs = [
        ("The key of the harbor is 1 2 3. The key of the harbor is", " 1 2 3."),
        ("The Congress of the United States", " shall have power to lay taxes."),
        ("Fellow citizens of the Senate and of the House of Representatives: I congratulate you", " on peace"),
    ]
    lm = HFLM(pretrained=str(tmp_path), device="cpu", batch_size=3)
    assert type(lm.model) is ProteusForCausalLM and lm.max_length == 131072
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=p, idx=i) for i, p in enumerate(pairs)]
    for (logp, best), p in zip(lm.loglikelihood(asked, disable_tqdm=True), pairs, strict=True):
        expected = ours(model.model, *p)
        assert abs(logp - expected[0]) <= 1e-5 and best == expected[1]
    stop = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    wanted = [Instance(request_type="generate_until", doc={}, arguments=(c, stop), idx=i) for i, (c, _) in enumerate(pairs)]
    for text, (context, _) in zip(lm.generate_until(wanted, disable_tqdm=True), pairs, strict=True):
        ids = greedy(model.model, torch.tensor(MICRO.encode(context)), 6)
        ids = ids[: ids.index(MICRO.id("<eos>"))] if MICRO.id("<eos>") in ids else ids
        assert text == MICRO.decode(ids).split("\n")[0]


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
