"""Ahead-of-time compilation of a kernel for an architecture, on a machine without a GPU.

Every module of this package named *_cases has `aot_cases(sizes, capability) -> list[Case]`: each kernel with the types,
constants and launch options of the call that its host function makes in bfloat16. `all_cases` collects them, and
`kernels/bench/aot.py` compiles them; a kernel that no case names is an error there.

Needs a process without TRITON_INTERPRET, which turns kernels into Python functions when their module is imported.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from proteus_kernels import triton as package

SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that one program may have. The compiler does not refuse more."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One specialisation of one kernel: argument types ("*bf16", "i32", ...) and the constants of the rest."""

    kernel: Any
    shape: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int = 4
    num_stages: int = 2

    @property
    def name(self) -> str:
        return f"{self.kernel.fn.__module__.rpartition('.')[2]}.{self.kernel.fn.__name__}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ptxas says: registers a thread, bytes spilled to and loaded from local memory, bytes of shared memory."""

    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    tensor_core: int
    """Tensor-core instructions in the text of the program."""
    narrow: int
    """Loads of a single 16-bit element: what becomes of a wide load whose mask the compiler cannot place."""


def compile_case(case: Case, arch: int) -> Report:
    """Compile for sm_<arch>. Raises triton's CompilationError for a wrong kernel."""
    names = case.kernel.arg_names
    missing = [n for n in names if n not in case.signature and n not in case.constants]
    if missing:
        raise ValueError(f"{case.name}: no type and no constant for {', '.join(missing)}")
    pointers = [i for i, n in enumerate(names) if case.signature.get(n, "").startswith("*")]
    source = ASTSource(
        fn=case.kernel,
        signature={n: case.signature.get(n, "constexpr") for n in names},
        constexprs={n: case.constants[n] for n in names if n not in case.signature},
        attrs={(i,): [["tt.divisibility", 16]] for i in pointers},
    )
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    return _assemble(compiled.asm["ptx"], arch, compiled.metadata.shared)


def _assemble(ptx: str, arch: int, shared: int) -> Report:
    found = re.search(r"\.target\s+(sm_\w+)", ptx)
    assert found, "a PTX text names its target"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as f:
        f.write(ptx)
        f.flush()
        command = [get_ptxas(arch).path, "-v", f"--gpu-name={found[1]}", f.name, "-o", "/dev/null"]
        log = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    def most(pattern: str) -> int:
        return max(int(x) for x in re.findall(pattern, log))

    return Report(
        registers=most(r"Used (\d+) registers"),
        spill_stores=most(r"(\d+) bytes spill stores"),
        spill_loads=most(r"(\d+) bytes spill loads"),
        shared=shared,
        tensor_core=len(re.findall(r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)", ptx)),
        narrow=len(re.findall(r"ld\.global[\w.:]*\.b16 ", ptx)),
    )


def all_cases(sizes: tuple[int, ...], capability: int) -> list[Case]:
    """The cases of every *_cases module of this package. ValueError when some kernel is in none of them."""
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    cases = [c for m in modules if m.__name__.endswith("_cases") for c in m.aot_cases(sizes, capability)]
    missing = {f.__name__ for f in _kernels(modules)} - {c.kernel.__name__ for c in cases}
    if missing:
        raise ValueError(f"no case compiles {', '.join(sorted(missing))}")
    return cases


def _kernels(modules: list[ModuleType]) -> list[Any]:
    """Functions for the device that no other one calls: those are what a host launches."""
    found = {x.__name__: x for m in modules for x in vars(m).values() if isinstance(x, triton.JITFunction)}
    called = {name for f in found.values() for name in f.fn.__code__.co_names}
    return [f for name, f in found.items() if name not in called]
