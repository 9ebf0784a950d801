"""Settings that every test shares. They are made before any numerical library is imported."""

import os

# Two threads beside another busy process spin on barriers and are far slower than one.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.pop("PROTEUS_BENCH_PLUGINS", None)
os.environ.pop("PROTEUS_KERNELS", None)
# Triton reads this when it is first imported: kernels then run on CPU tensors, one program after another. A test that
# compiles or runs them for a device starts a process without it (tests/kernels/conftest.py: `compiler_environment`).
os.environ["TRITON_INTERPRET"] = "1"

from hypothesis import settings  # noqa: E402

# Deadlines fail on a loaded machine, and a test that draws new inputs on every run is not a gate.
settings.register_profile("bench", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.load_profile("bench")
