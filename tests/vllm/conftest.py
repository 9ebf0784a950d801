"""Tests that need vLLM; they run where it is installed (`make vllm`) and are not part of the ordinary suite.

One engine at a time, in this process, in float32: the settings are made before vLLM is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
for name, value in {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
}.items():  # fmt: skip
    os.environ.setdefault(name, value)
# the root conftest asks Triton for its interpreter, which is not what vLLM is tested with
os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="session")
def engine() -> Callable[..., Any]:
    """`with engine(folder, **options) as llm`: vLLM's offline engine, ended behind the block."""

    @contextmanager
    def start(folder: Path, **options: Any) -> Iterator[Any]:
        from vllm import LLM
        from vllm.distributed import cleanup_dist_env_and_memory

        llm = LLM(model=str(folder), seed=0, **({"skip_tokenizer_init": True} | options))
        try:
            yield llm
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            cleanup_dist_env_and_memory()

    return start
