"""Cells as Ray tasks, on the cluster of RAY_ADDRESS or on one that is started here and goes with the run.

The driver plans and reports; a task answers one cell. Results do not travel through Ray: a worker appends to the cell's
log in the run folder, which every node has to see, under the log's lock, and writes only the items that it does not hold.
So a task that is run again, because its worker or its node died, goes on where the dead one stopped, and the bytes are
those of a run without Ray. A node with other packages or without the folder is refused: it would give other bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from proteus_bench.errors import EnvironmentFault
from proteus_bench.runner.environment import package_versions
from proteus_bench.runner.pool import TICK_SECONDS, Outcome, Work, attempt
from proteus_bench.store import RunFolder

ADDRESS = "RAY_ADDRESS"
MAX_RETRIES = 2
"""How often a cell is given to another worker when its worker dies."""
CONNECT_SECONDS = 5.0
PREFIX = "PROTEUS_"
"""Variables of the driver that its workers get: where the zoo is, which kernels run, what counts as a plugin."""
OBJECT_STORE_BYTES = 100 << 20
"""Of a cluster that is started here: outcomes are a few hundred bytes each."""


@dataclass(frozen=True)
class Needs:
    """What one cell takes: a process of one thread, and a GPU where the back end runs on one."""

    cpus: float = 1.0
    gpus: float = 0.0


def needs_of(device: str, engine: Sequence[str]) -> Needs:
    """Of a model on this kind of device; one on CUDA takes as many GPUs as its engine (key=value options) splits it over."""
    options = dict(part.partition("=")[::2] for part in engine)
    return Needs(gpus=float(options.get("tensor_parallel_size", 1)) if device == "cuda" else 0.0)


@dataclass(frozen=True)
class Place:
    """What a worker must share with the driver. ``packages``: versions; ``variables``: of `PROTEUS_*`.

    folder: the run folder, as the driver names it from ``cwd``; manifest: its sha256.
    """

    packages: dict[str, str | None]
    variables: dict[str, str]
    cwd: str
    folder: str
    manifest: str


def cluster_address() -> str | None:
    """The cluster that RAY_ADDRESS names; None: one is started here."""
    address = os.environ.get(ADDRESS, "")
    return None if address in ("", "local") else address


def check_ray() -> None:
    """EnvironmentFault (exit 4) when Ray is not installed or nobody listens at RAY_ADDRESS.

    Ray itself tries for more than a minute and says so in several lines.
    """
    if importlib.util.find_spec("ray") is None:
        raise EnvironmentFault("--executor ray needs Ray: pip install 'proteus-bench[ray]'")
    address = cluster_address()
    if address is None:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto" among them: the address it finds may be that of a cluster that is gone
        raise EnvironmentFault(f"{ADDRESS}={address} is no address of a Ray cluster: write HOST:PORT, ray://HOST:PORT or local")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise EnvironmentFault(f"no Ray cluster answers at {ADDRESS}={address}: {error}") from error


def run_on_ray(
    work: Work, jobs: Sequence[Any], folder: RunFolder, needs: Callable[[Any], Needs], workers: int,
    tick: Callable[[], None],
) -> Iterator[tuple[Any, Outcome]]:  # fmt: skip
    """`pool.run_jobs` on Ray: yields (job, outcome) as they end; ``tick`` is called at least twice a second.

    work: an importable function. workers: CPUs of a cluster that is started here, cells in flight on another one (0: as many
    as it holds). Closing the iterator ends all tasks, and the cluster if it was started here.
    Raises EnvironmentFault (exit 4) when there is no cluster.
    """
    check_ray()
    import ray

    place = Place(
        package_versions(),
        {key: value for key, value in os.environ.items() if key.startswith(PREFIX)},
        os.getcwd(),
        str(folder.path),
        folder.manifest()["sha256"],
    )
    with _connected(ray, workers):
        wants = [(job, needs(job)) for job in jobs]
        _refuse_impossible(ray, {need for _, need in wants})
        yield from _outcomes(ray, work, wants, place, workers or len(jobs), tick)


@contextlib.contextmanager
def _connected(ray: Any, workers: int) -> Iterator[None]:
    """Connected to the cluster, or to one of our own. A connection that the caller made is used and left."""
    if ray.is_initialized():
        yield
        return
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    address = cluster_address()
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        # Without a bound Ray repeats for ever what dies for want of memory.
        arguments = {"address": "local", **own, "_system_config": {"task_oom_retries": MAX_RETRIES}, **quiet}
    else:
        arguments = {"address": address, **quiet}
    with contextlib.redirect_stdout(sys.stderr):  # Ray reports dead workers on stdout, which carries one JSON document
        try:
            ray.init(**arguments)
        except Exception as error:  # Ray raises whatever its parts raise: connections, versions, ports, limits
            where = f"to connect to {ADDRESS}={address}" if address else "to start a cluster here"
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            hint = "; a cluster with token authentication wants RAY_AUTH_MODE=token" if address else ""
            raise EnvironmentFault(f"Ray failed {where}: {first[:300]}{hint}") from error
        try:
            yield
        finally:
            ray.shutdown()


def _refuse_impossible(ray: Any, wanted: set[Needs]) -> None:
    """A cell that no node can hold waits for ever. On another's cluster a node may still come: that is said instead."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for need in wanted:
        if any(node.get("CPU", 0) >= need.cpus and node.get("GPU", 0) >= need.gpus for node in nodes):
            continue
        text = f"no node has {need.cpus:g} CPU and {need.gpus:g} GPU, which a cell takes"
        if cluster_address() is None:
            raise EnvironmentFault(text)
        print(f"{text}: waiting for one", file=sys.stderr)


def _outcomes(
    ray: Any, work: Work, wants: Sequence[tuple[Any, Needs]], place: Place, most: int, tick: Callable[[], None]
) -> Iterator[tuple[Any, Outcome]]:
    task = ray.remote(max_retries=MAX_RETRIES)(_serve)
    shared = ray.put(place)
    waiting = deque(wants)
    running: dict[Any, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job, need = waiting.popleft()
                reference = task.options(num_cpus=need.cpus, num_gpus=need.gpus).remote(work, job, shared)
                running[reference] = job
            for reference in ray.wait(list(running), num_returns=1, timeout=TICK_SECONDS)[0]:
                yield running.pop(reference), _outcome(ray, reference)
            tick()
    finally:
        for reference in running:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        found: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # before `_serve` could run: this program is not on that node
        return Outcome(f"a node of the Ray cluster cannot run cells: {str(error).strip().splitlines()[-1][:300]}", 4)
    except ray.exceptions.RayError as error:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        return Outcome(f"its worker died {MAX_RETRIES + 1} times ({why}); out of memory?", 1)
    return found


def _serve(work: Work, job: Any, place: Place) -> Outcome:
    """On a worker: one job, after a look at what the worker shares with the driver."""

    def checked(job: Any) -> None:
        _take(place)
        work(job)

    return attempt(checked, job)


def _take(place: Place) -> None:
    """Variables and working folder of the driver. EnvironmentFault where this node cannot stand in for it."""
    node = platform.node()
    differs = {name: v for name, v in place.packages.items() if _packages().get(name) != v}
    for name, version in differs.items():
        raise EnvironmentFault(f"node {node} has {name} {_packages().get(name)} where the driver has {version}")
    for name in [name for name in os.environ if name.startswith(PREFIX) and name not in place.variables]:
        del os.environ[name]
    os.environ.update(place.variables)
    try:
        os.chdir(place.cwd)
        seen = RunFolder(Path(place.folder)).manifest()["sha256"] == place.manifest
    except Exception:
        seen = False
    if not seen:
        raise EnvironmentFault(f"node {node} does not see {place.folder}: a run folder must be on a shared file system")


@lru_cache(maxsize=1)
def _packages() -> dict[str, str | None]:
    return package_versions()
