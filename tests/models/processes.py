"""Several real processes of one program under gloo, as `accelerate launch` would start them on CPUs. For tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def start(command: Sequence[str], count: int, **more: str) -> list[subprocess.Popen[str]]:
    """`python command` in `count` processes that know each other; one process is started plainly."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("ACCELERATE", "FSDP"))}
    base |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "OMP_NUM_THREADS": "1", **more}
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    started = []
    for rank in range(count):
        ranks = {} if count == 1 else {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(
            subprocess.Popen(
                [sys.executable, *command], env=base | ranks, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                # a shell's background job ignores SIGINT, and so would its children: these tests may be one
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
        )
    return started


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Their outputs; AssertionError with them when one did not end well. None outlives the call."""
    try:
        outputs = [p.communicate(timeout=400)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    assert all(p.returncode == 0 for p in processes), "\n---\n".join(outputs)
    return outputs
