"""What a proteus model asks of vLLM's configuration: float32, eager, one device a replica. Only vLLM imports this."""

from __future__ import annotations

import torch
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.models.config import MambaModelConfig, VerifyAndUpdateConfig

logger = init_logger(__name__)


class ServedAttention(VerifyAndUpdateConfig):
    @classmethod
    def verify_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """ValueError for what would change the numbers or cannot work; precision and graphs are set to what works."""
        parallel = vllm_config.parallel_config
        if parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1:
            raise ValueError("a proteus model lives on one device: use data parallelism, not tensor or pipeline parallelism")
        if vllm_config.speculative_config is not None:
            raise ValueError("a recurrent state cannot forget rejected tokens: a proteus model takes no speculative decoding")
        model = vllm_config.model_config
        if model.dtype != torch.float32:
            logger.warning("proteus models keep weights and state in float32; dtype %s is not used", model.dtype)
            model.dtype = torch.float32
        # which sequences run together is decided in Python, step by step: no graph can be captured of that
        model.enforce_eager = True
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE


class ServedStates(MambaModelConfig):
    @classmethod
    def verify_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """As ServedAttention, and no prefix caching: a state is not a list of blocks that can be shared."""
        if vllm_config.cache_config.enable_prefix_caching:
            raise ValueError("the state of a proteus model has no prefix caching: leave --enable-prefix-caching away")
        ServedAttention.verify_and_update_config(vllm_config)
        super().verify_and_update_config(vllm_config)
