"""Triton kernels are tested under its interpreter: tests/conftest.py sets TRITON_INTERPRET=1 before anything imports triton.

So a test imports `proteus_kernels.triton.*` and calls it with CPU tensors, nothing else is needed. The cost is some 50
microseconds an operation of a program, whatever the size of its tile: few programs, few chunks. Inputs in bfloat16 must
be widened on load (the interpreter multiplies them wrongly); `proteus_kernels.triton.config` does that.
Ahead-of-time compilation needs a process WITHOUT the variable: `subprocess.run(..., env=compiler_environment())`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def compiler_environment() -> dict[str, str]:
    """The environment of a process that compiles kernels instead of interpreting them."""
    return {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
