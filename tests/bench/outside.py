"""Tiny language models of transformers in folders, with the micro tokenizer: what the tests of other back ends score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from proteus_bench.backends import Ask, Reply
from proteus_bench.backends.encoding import continuation_ids, stop_ids

TOLERANCE = 5e-4
"""Nats by which the log-probability of a whole gold (about 60 nats) may differ between ways to compute it in float32."""
CHAT = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def tokenizer(chat: bool = False, begin: bool = False) -> Any:
    """The micro tokenizer for transformers; begin: it puts <bos> before a text; chat: it has a template."""
    from tokenizers.processors import TemplateProcessing

    from proteus_models.hf import fast_tokenizer

    made = fast_tokenizer()
    if chat:
        made.chat_template = CHAT
    if begin:
        bos = made.bos_token_id
        made.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    return made


def save(folder: Path, kind: str = "llama", length: int = 600, chat: bool = False, begin: bool = False) -> Path:
    """A random model of two small layers: llama, sliding (Mistral with a window of 16), gpt2, mamba or mamba2 (no cache here)."""
    import transformers as tf

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    made = tokenizer(chat, begin)
    ids = {"vocab_size": len(made), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    attention = {**sizes, "num_key_value_heads": 1, "max_position_embeddings": length, **ids}
    configs: dict[str, Any] = {
        "llama": lambda: tf.LlamaConfig(**attention),
        "sliding": lambda: tf.MistralConfig(**attention, sliding_window=16),
        "gpt2": lambda: tf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=length, **ids),
        "mamba": lambda: tf.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=4, **ids),
        "mamba2": lambda: tf.Mamba2Config(
            hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=4, head_dim=16, n_groups=1, chunk_size=32, **ids
        ),
    }
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(configs[kind]())
    with torch.no_grad():  # random logits are all but flat: spread them, so that greedy choices are clear
        model.get_output_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def save_own(folder: Path, zoo: Path, name: str, seed: int = 0) -> Path:
    """A model of a zoo, saved for transformers."""
    from proteus_models import zoo as zoos
    from proteus_models.hf import from_decoder

    backbone, _, schedule = name.partition("+")
    loaded = zoos.load(backbone, schedule or "static", seed=seed, root=zoo)
    from_decoder(loaded.model, pad_token_id=0, bos_token_id=1, eos_token_id=2).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def definition(model: Any, made: Any, prompt_ids: list[int], ask: Ask, prompt: str, ends: frozenset[int]) -> tuple[str, float]:
    """What a model answers, by whole forward passes alone: greedy text and log-probability of the gold."""
    gold = continuation_ids(made, prompt, ask.gold)
    ids = torch.tensor([prompt_ids + gold])
    logp = model(input_ids=ids, use_cache=False).logits.double().log_softmax(-1)[0, len(prompt_ids) - 1 : -1]
    value = float(logp.gather(1, torch.tensor(gold)[:, None]).sum())
    text: list[int] = []
    while len(text) < ask.max_new_tokens:
        token = int(model(input_ids=torch.tensor([prompt_ids + text]), use_cache=False).logits[0, -1].argmax())
        if token in stop_ids(made, ask.stop) | ends:
            break
        text.append(token)
    return made.decode(text), value


def same(left: list[list[Reply]], right: list[list[Reply]]) -> None:
    """Equal greedy answers and gold log-probabilities within TOLERANCE."""
    for a, b in zip((r for row in left for r in row), (r for row in right for r in row), strict=True):
        assert a.output.rstrip() == b.output.rstrip()
        assert a.gold_logprob is not None and b.gold_logprob is not None
        assert abs(a.gold_logprob - b.gold_logprob) <= TOLERANCE
        assert (a.gold_tokens, a.context_tokens) == (b.gold_tokens, b.context_tokens)
