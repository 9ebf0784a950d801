"""Our decoder inside vLLM: continuous batching, chunked prefill, preemption. Only vLLM imports this (see `vllm_plugin`).

vLLM owns the pages and says which sequence has which slot, which tokens are new and how many came before; the last is
the schedule's clock. `state_pages` does the rest with the decoder and the kernels as they are. A window of attention
(Titans MAG, MAL, MAC) is part of the fixed-size state, so those hybrids are served in the same way. Attention over the whole
past (Transformer++, Hope-Attention) keeps its keys and values in vLLM's own paged cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention as VLLMAttention
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.models.interfaces import HasInnerState, IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from proteus_models.attention import Attention, rotate
from proteus_models.decoder import DecoderLM, DecoderState
from proteus_models.state_pages import Row, StatePages


class _Served(nn.Module):
    """`self.model` is the DecoderLM of a folder saved by `proteus_models.hf`, under the names of its tensors."""

    def __init__(self, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.model = DecoderLM(self.config.model_config)
        self.names = [f"{prefix}.layers.{n}.mixer".lstrip(".") for n in range(len(self.model.stack))]

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed(input_ids)

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None, **_: Any
    ) -> Tensor:
        """h_ND of the flat new tokens of all sequences."""
        if inputs_embeds is not None:
            raise ValueError("a proteus model takes token ids, not embeddings")
        return self.advance(input_ids, positions)

    def advance(self, ids_N: Tensor, positions_N: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.model.logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights)


class LayerPages(MambaBase):
    """The slots of one layer, [slots, width] float32, allocated by vLLM."""

    def __init__(self, width: int, name: str, config: VllmConfig) -> None:
        self.width = width
        self.kv_cache = (torch.empty(0),)
        config.compilation_config.static_forward_context[name] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.width,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.LINEAR


class ProteusForCausalLM(_Served, HasInnerState, IsAttentionFree):
    """Backbones whose state has one size."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config, prefix)
        self.states = StatePages(self.model)
        self.layers = [LayerPages(self.states.width, name, vllm_config) for name in self.names]

    def advance(self, ids_N: Tensor, positions_N: Tensor) -> Tensor:
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # vLLM measures memory before it makes the pages
            return self.model.hidden(ids_N[None])[0][0]
        return self.states.advance(ids_N, _rows(metadata[self.names[0]]), [layer.kv_cache[0] for layer in self.layers])


class PagedMixer(nn.Module):
    """A mixer that is attention alone, over vLLM's cache. In the place of a layer's state stand the tokens' positions."""

    def __init__(self, attention: Attention, name: str, config: VllmConfig) -> None:
        super().__init__()
        heads, width = attention.heads, attention.sizes[0] // attention.heads
        if attention.sizes[2] != attention.sizes[0]:
            raise ValueError("vLLM's cache has one width: head_k and head_v must be equal")
        self.attention = attention
        self.paged = VLLMAttention(heads, width, width**-0.5, num_kv_heads=heads, cache_config=config.cache_config, prefix=name)

    def forward(self, x_1ND: Tensor, positions_N: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        q, k, v = self.attention.project(x_1ND)
        q, k = (rotate(x, positions_N, self.attention.base) for x in (q, k))
        y_ND = self.paged(*(x[0].flatten(1) for x in (q, k, v)))
        return self.attention.out(y_ND)[None], positions_N


class ProteusAttentionForCausalLM(_Served):
    """Backbones whose state is every past token."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config, prefix)
        blocks: list[Any] = self.model.stack
        for block, name in zip(blocks, self.names, strict=True):
            block.mixer = PagedMixer(block.mixer.attention, name, vllm_config)

    def advance(self, ids_N: Tensor, positions_N: Tensor) -> Tensor:
        layers = (positions_N,) * len(self.names)
        return self.model.hidden(ids_N[None], DecoderState(layers=layers))[0][0]


def _rows(metadata: Any) -> list[Row]:
    """The sequences of this step, decodes first as vLLM orders them."""
    n = metadata.num_decodes + metadata.num_prefills
    edges, slots = metadata.query_start_loc.tolist(), metadata.state_indices_tensor.tolist()
    return [
        Row(start=edges[i], length=edges[i + 1] - edges[i], position=seen - (edges[i + 1] - edges[i]), slot=slots[i])
        for i, seen in enumerate(metadata.seq_lens.tolist()[:n])
    ]
