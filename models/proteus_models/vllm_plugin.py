"""Entry point `vllm.general_plugins`: vLLM then serves folders that `proteus_models.hf` saved. Only vLLM imports this."""

from __future__ import annotations

ARCHITECTURE = "ProteusForCausalLM"


def register() -> None:
    """Called in every process of vLLM, more than once."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import proteus_models.hf  # noqa: F401  AutoConfig learns model type `proteus`
    from proteus_models.vllm_config import ServedDecoder

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, f"proteus_models.vllm_model:{ARCHITECTURE}")
    MODELS_CONFIG_MAP.setdefault(ARCHITECTURE, ServedDecoder)
