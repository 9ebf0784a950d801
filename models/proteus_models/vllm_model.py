"""Our decoder inside vLLM: continuous batching, chunked prefill, preemption. Only vLLM imports this (see `vllm_plugin`).

vLLM owns the pages and says which sequence has which slot, which tokens are new and how many came before; the last is
the schedule's clock. `state_pages` does the rest with the decoder and the kernels as they are. A window of attention
(Titans MAG, MAL, MAC) is part of the fixed-size state, so those hybrids are served in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.models.interfaces import HasInnerState, IsAttentionFree
from vllm.model_executor.models.utils import AutoWeightsLoader
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from proteus_models.decoder import DecoderLM
from proteus_models.state_pages import Row, StatePages


class LayerPages(MambaBase):
    """The slots of one layer, [slots, width] float32, allocated by vLLM."""

    def __init__(self, width: int, name: str, config: VllmConfig) -> None:
        self.width, self.name = width, name
        self.kv_cache = (torch.empty(0),)
        config.compilation_config.static_forward_context[name] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.width,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,)

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.LINEAR


class ProteusForCausalLM(nn.Module, HasInnerState, IsAttentionFree):
    """`self.model` is the DecoderLM of a folder saved by `proteus_models.hf`, under the names of its tensors."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.model = DecoderLM(self.config.model_config)
        self.states = StatePages(self.model)
        names = [f"{prefix}.layers.{n}.state".lstrip(".") for n in range(len(self.model.stack))]
        self.layers = [LayerPages(self.states.width, name, vllm_config) for name in names]

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.model.embed(input_ids)

    def forward(
        self, input_ids: Tensor, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None, **_: Any
    ) -> Tensor:
        """h_ND of the flat new tokens of all sequences."""
        if inputs_embeds is not None:
            raise ValueError("a proteus model takes token ids, not embeddings")
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # vLLM measures memory before it makes the pages
            return self.model.hidden(input_ids[None])[0][0]
        pages = [layer.kv_cache[0] for layer in self.layers]
        return self.states.advance(input_ids, _rows(metadata[self.layers[0].name]), pages)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.model.logits(hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        return AutoWeightsLoader(self).load_weights(weights)


def _rows(metadata: Any) -> list[Row]:
    """The sequences of this step, decodes first as vLLM orders them."""
    n = metadata.num_decodes + metadata.num_prefills
    edges, slots = metadata.query_start_loc.tolist(), metadata.state_indices_tensor.tolist()
    return [
        Row(start=edges[i], length=edges[i + 1] - edges[i], position=seen - (edges[i + 1] - edges[i]), slot=slots[i])
        for i, seen in enumerate(metadata.seq_lens.tolist()[:n])
    ]
