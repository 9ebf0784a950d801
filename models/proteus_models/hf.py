"""Our decoder as a Hugging Face causal language model (extra `hf`); the only module here that needs transformers.

Importing it registers model type `proteus` with AutoConfig and AutoModelForCausalLM. A pad is not a token: it
neither moves the schedule's clock nor writes to the memory, wherever it stands, so a padded batch answers like its
rows alone. `past_key_values` is a `ProteusCache`: recurrent state and clock of every row.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationMixin,
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise ImportError(f"proteus_models.hf needs transformers: pip install 'proteus-bench[hf]' ({error})") from error

from proteus_bench.schedules import Capacity
from proteus_models import zoo
from proteus_models.config import ModelConfig
from proteus_models.decoder import DecoderLM, DecoderState, mixer_class
from proteus_models.hf_cache import Group, ProteusCache
from proteus_models.tokenizer import BOS, EOS, PAD

IGNORED = -100
STATES, PAGED = "ProteusForCausalLM", "ProteusAttentionForCausalLM"
"""What a model is called where it is served: its state has one size, or it is every past token."""
DRAWN = "_is_hf_initialized"  # transformers' mark of a tensor that needs no initial value any more
# What a saved folder holds for a program that does not import this module: with trust_remote_code=True it is enough.
REMOTE_FILE = "modeling_proteus.py"
REMOTE_CODE = '"""Needs the package proteus-bench."""\n\nfrom proteus_models.hf import ProteusConfig, ProteusForCausalLM\n'


class ProteusConfig(PretrainedConfig):
    """`architecture` holds a ModelConfig as plain data; every other size is read from it, so nothing can disagree.

    `max_position_embeddings` is no limit of the model: it is what tools that ask for a length (lm-eval, vLLM) may send
    before they cut the text; a recurrent model has no such length of its own.
    """

    model_type = "proteus"
    has_no_defaults_at_init = True

    def __init__(
        self, architecture: dict[str, Any] | ModelConfig | None = None, max_position_embeddings: int = 131072, **extra: Any
    ) -> None:
        if architecture is None:
            raise ValueError("ProteusConfig needs `architecture`, a ModelConfig or its as_dict()")
        config = architecture if isinstance(architecture, ModelConfig) else ModelConfig.from_dict(dict(architecture))
        if extra.get("tie_word_embeddings") is False:
            raise ValueError("the output matrix of this decoder is its embedding: tie_word_embeddings cannot be False")
        self.architecture = config.as_dict()
        self.max_position_embeddings = max_position_embeddings
        names = {"AutoConfig": "ProteusConfig", "AutoModelForCausalLM": "ProteusForCausalLM"}
        defaults = {"auto_map": {k: f"{Path(REMOTE_FILE).stem}.{v}" for k, v in names.items()}}
        super().__init__(**(defaults | extra | {"tie_word_embeddings": True}))
        # vLLM chooses the class that serves a model by this name; transformers goes by the model type
        self.architectures = [PAGED if mixer_class(config.mixer).memory == "none" else STATES]

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig.from_dict(self.architecture)

    @property
    def vocab_size(self) -> int:
        return int(self.architecture["vocab_size"])

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:  # resize_token_embeddings
        self.architecture = self.architecture | {"vocab_size": int(value)}

    @property
    def hidden_size(self) -> int:
        return int(self.architecture["d_model"])

    @property
    def num_hidden_layers(self) -> int:
        return int(self.architecture["n_layers"])

    @property
    def num_attention_heads(self) -> int:
        return int(self.architecture["n_heads"])


class ProteusForCausalLM(PreTrainedModel, GenerationMixin):
    """DecoderLM behind the interface of transformers. `self.model` is the DecoderLM itself."""

    config: ProteusConfig
    config_class = ProteusConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys = {"lm_head.weight": "model.embed.weight"}  # noqa: RUF012
    _no_split_modules = ["Block"]  # noqa: RUF012
    # State and triangular solve need 32 bits, so the weights keep them too; half precision is autocast's business.
    _keep_in_fp32_modules_strict = ["model"]  # noqa: RUF012
    _is_stateful = True  # generate must not roll the cache back
    accepts_loss_kwargs = True  # Trainer: forward takes num_items_in_batch

    def __init__(self, config: ProteusConfig) -> None:
        super().__init__(config)
        self.model = DecoderLM(config.model_config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for parameter in self.model.parameters():  # the decoder has drawn them: not again in post_init
            if parameter.device.type != "meta":
                setattr(parameter, DRAWN, True)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed = cast(nn.Embedding, value)
        self.model.config = replace(self.model.config, vocab_size=self.model.embed.num_embeddings)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = cast(nn.Linear, new_embeddings)

    def set_capacity(self, capacity: Capacity) -> None:
        """Another capacity on the same weights, in the decoder and in the configuration that is saved."""
        self.model.set_capacity(capacity)
        self.config.architecture = self.config.architecture | {"capacity": capacity.as_dict()}

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Draw every weight that is not loaded: a decoder is built as ever and its weights are copied.

        So the distribution is the decoder's own for any backbone (decay and gate biases, M_0), whatever the device the
        model was made on; it costs one more copy of the weights for a moment.
        """
        new = {n: p for n, p in self.model.named_parameters() if not getattr(p, DRAWN, False)}
        if not new:
            return
        with torch.device("cpu"):
            fresh = dict(DecoderLM(self.model.config).named_parameters())
        for name, parameter in new.items():
            parameter.copy_(_sharded_like(fresh[name].to(parameter.device, parameter.dtype), parameter))
            setattr(parameter, DRAWN, True)

    def _init_weights(self, module: nn.Module) -> None:
        """Only what transformers makes by itself: the rows of a resized embedding."""
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    def save_pretrained(self, save_directory: str | os.PathLike[Any], *args: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, *args, **kwargs)
        (Path(save_directory) / REMOTE_FILE).write_text(REMOTE_CODE)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: ProteusCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits [B, T or kept, V]; loss over the real tokens whose label is not -100; the cache after the last column.

        input_ids [B, T]. attention_mask [B, T or seen + T]: 0 is a pad, anywhere; its logits are 0. A given cache is
        moved on in place; with use_cache=False it is read and left as it is. labels [B, T] are not shifted: the next
        real token's label is the target. Without `use_cache` a cache is made except in training.
        ValueError: a cache of another batch size or kind, a mask of another shape, labels with logits_to_keep.
        """
        if self.lm_head.weight.element_size() < 4:
            raise ValueError("weights under 32 bits: use dtype=float32, and autocast for half precision")
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("a loss needs all logits: labels and logits_to_keep exclude each other")
        real = _real_tokens(input_ids, attention_mask)
        groups = self._groups(input_ids, past_key_values)
        keep = not self.training if use_cache is None else use_cache
        last_only = isinstance(logits_to_keep, int) and logits_to_keep == 1
        hidden, groups = self._advance(input_ids, real, groups, last_only)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])
        loss = None if labels is None else _loss(logits, _targets(labels, real), num_items_in_batch)
        cache = past_key_values
        if keep:
            cache = ProteusCache() if cache is None else cache
            cache.groups, cache.columns = groups, cache.columns + input_ids.shape[1]
        out = CausalLMOutputWithPast(loss=cast(Any, loss), logits=logits, past_key_values=cache)
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()

    def _groups(self, ids_BT: Tensor, cache: ProteusCache | None) -> list[Group]:
        if cache is not None and not isinstance(cache, ProteusCache):
            raise ValueError(f"past_key_values must be a ProteusCache, not {type(cache).__name__}")
        batch = ids_BT.shape[0]
        if cache is None or not cache.groups:
            return [(list(range(batch)), self.model.init_state(batch))]
        if cache.batch_size != batch:
            raise ValueError(f"the cache holds {cache.batch_size} rows and the batch {batch}")
        return cache.groups

    def _advance(
        self, ids_BT: Tensor, real_BT: Tensor | None, groups: list[Group], last_only: bool
    ) -> tuple[Tensor, list[Group]]:
        """Final hidden states of every row's real tokens (0 at pads; [B, 1, D] with last_only) and the new groups."""
        if real_BT is None and len(groups) == 1:
            rows, state = groups[0]
            h_BTD, state = self.model.hidden(ids_BT, state, last_only=last_only)
            return h_BTD, [(rows, state)]
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        tokens = [ids[mask] for ids, mask in zip(ids_BT, real_BT, strict=True)]
        hidden: dict[int, Tensor] = {}
        moved: list[Group] = []
        for rows, state in groups:
            moved += self._together(rows, state, tokens, hidden)
        flat = torch.cat([hidden[row] for row in range(len(tokens))])
        out = flat.new_zeros(*ids_BT.shape, flat.shape[-1]).masked_scatter(real_BT[..., None], flat)
        return (out[:, -1:] if last_only else out), moved

    def _together(
        self, rows: list[int], state: DecoderState, tokens: list[Tensor], hidden: dict[int, Tensor]
    ) -> list[Group]:
        """Rows at one position run together, and each leaves with its state where its own tokens end."""
        order = sorted(range(len(rows)), key=lambda i: len(tokens[rows[i]]))
        rows, state = [rows[i] for i in order], state.select(order)
        parts: dict[int, list[Tensor]] = {row: [] for row in rows}
        left: list[Group] = []
        start = 0
        while rows:
            stop = len(tokens[rows[0]])
            if stop > start:
                h_BTD, state = self.model.hidden(torch.stack([tokens[row][start:stop] for row in rows]), state)
                for row, h in zip(rows, h_BTD, strict=True):
                    parts[row].append(h)
            done = sum(len(tokens[row]) == stop for row in rows)
            left.append((rows[:done], state.select(slice(0, done))))
            rows, state, start = rows[done:], state.select(slice(done, None)), stop
        for row, pieces in parts.items():
            width = self.model.config.d_model
            hidden[row] = torch.cat(pieces) if pieces else self.model.embed.weight.new_zeros(0, width)
        return left


def _sharded_like(value: Tensor, parameter: Tensor) -> Tensor:
    """`value` as a DTensor when the parameter is one (FSDP2): every rank then gets rank 0's draw."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)


def _real_tokens(ids_BT: Tensor, mask: Tensor | None) -> Tensor | None:
    """The last T columns of a 2-D mask as booleans; None when nothing is a pad."""
    if mask is None:
        return None
    if mask.ndim != 2 or mask.shape[0] != ids_BT.shape[0] or mask.shape[1] < ids_BT.shape[1]:
        raise ValueError(f"attention_mask must be [batch, at least {ids_BT.shape[1]}], not {list(mask.shape)}")
    real_BT = mask[:, mask.shape[1] - ids_BT.shape[1] :].bool()
    return None if bool(real_BT.all()) else real_BT


def _targets(labels_BT: Tensor, real_BT: Tensor | None) -> Tensor:
    """At each real token the label of the next real token of its row, elsewhere -100."""
    target_BT = torch.full_like(labels_BT, IGNORED)
    if real_BT is None:
        target_BT[:, :-1] = labels_BT[:, 1:]
        return target_BT
    for target, labels, real in zip(target_BT, labels_BT, real_BT, strict=True):
        at = real.nonzero().squeeze(-1)
        target[at[:-1]] = labels[at[1:]]
    return target_BT


def _loss(logits_BTV: Tensor, target_BT: Tensor, items: Tensor | int | None) -> Tensor:
    """Mean cross-entropy over the targets; over `items` when the trainer counts them across accumulated batches."""
    logits = logits_BTV.flatten(0, 1)
    logits = logits.float() if logits.element_size() < 4 else logits
    total = nn.functional.cross_entropy(logits, target_BT.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / ((target_BT != IGNORED).sum().clamp_min(1) if items is None else items)


def fast_tokenizer(path: Path | None = None) -> PreTrainedTokenizerFast:
    """The zoo's tokenizer for transformers: the same ids as MicroTokenizer, no special token added, pads on the left."""
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path or zoo.zoo_root() / "tokenizer.json"),
        pad_token=PAD, bos_token=BOS, eos_token=EOS, padding_side="left", clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def from_decoder(model: DecoderLM, **kwargs: Any) -> ProteusForCausalLM:
    """A copy of a decoder for transformers; keywords go to ProteusConfig (token ids, max_position_embeddings)."""
    dtype = model.embed.weight.dtype
    wrapped = ProteusForCausalLM(ProteusConfig(architecture=model.config, dtype=dtype, **kwargs))
    nn.Module.to(wrapped, dtype)
    wrapped.model.load_state_dict(model.state_dict())
    return wrapped.eval()


def from_zoo(
    name: str, seed: int = 0, capacity: Capacity | None = None
) -> tuple[ProteusForCausalLM, PreTrainedTokenizerFast]:
    """A trained model by its folder's name (`gdn+proteus`) and its tokenizer. UsageError when there is none."""
    stem, _, size = name.partition("@")
    backbone, schedule = zoo.split_name(stem)
    loaded = zoo.load(backbone, schedule or "static", size or zoo.MICRO, seed, capacity)
    tokenizer = fast_tokenizer()
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("pad", "bos", "eos")}
    return from_decoder(loaded.model, **ids), tokenizer


def register() -> None:
    """Make AutoConfig and AutoModelForCausalLM know model type `proteus`. Called on import; repeating it is harmless."""
    AutoConfig.register(ProteusConfig.model_type, ProteusConfig, exist_ok=True)
    AutoModelForCausalLM.register(ProteusConfig, ProteusForCausalLM, exist_ok=True)


register()
