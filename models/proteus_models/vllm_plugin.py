"""Entry point `vllm.general_plugins`: vLLM then serves folders that `proteus_models.hf` saved. Only vLLM imports this."""

from __future__ import annotations


def register() -> None:
    """Called in every process of vLLM, more than once."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from proteus_models.hf import PAGED, STATES  # importing it makes AutoConfig know model type `proteus`
    from proteus_models.vllm_config import ServedAttention, ServedStates

    for name, served in ((STATES, ServedStates), (PAGED, ServedAttention)):
        if name not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(name, f"proteus_models.vllm_model:{name}")
        MODELS_CONFIG_MAP.setdefault(name, served)
