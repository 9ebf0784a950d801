"""Cost of a schedule: time of the scheduled twin over its static twin, forward + backward, inside the span.

    OMP_NUM_THREADS=1 python benchmarks/scheduled.py [--level op|mixer|model] [--dim 128 --heads 2] [--length 4096 ...]
        [--chunk 32] [--pairs 15] [--only gdn,swla] [--axes key,value] [--key-norm after_mask] [--wall] [--json FILE]

For every backbone with a context schedule and every axis that it has: uniform E = 16 (as many blocks as the head axis has
heads), span = length, one thread. Levels: the recurrence alone, one mixer (projections, recurrence, output), a decoder of
two blocks (MLP of 2 dim hidden units) with logits at 64 positions. Calls alternate, so that a machine's drift hits both;
the median of the ratios is printed with its quartiles. Above 1 the schedule costs time, below 1 it saves some. Seconds
are CPU seconds of the one thread (--wall: of the clock), so what else runs on the core does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from proteus_bench.cost.measure import paired
from proteus_bench.schedules import Capacity, Uniform
from proteus_kernels import comba, delta, linear, titans_linear, titans_mlp
from proteus_models.config import ModelConfig
from proteus_models.decoder import MIXERS, DecoderLM, map_tensors

KERNELS: dict[str, Any] = {
    "gdn": delta, "deltanet": delta, "retnet": linear, "comba": comba, "swla": linear,
    "titans": titans_linear, "titans-mlp": titans_mlp,
}  # fmt: skip
Step = Callable[[], None]


def twins(mixer: str, axis: str, length: int, args: argparse.Namespace) -> tuple[ModelConfig, ModelConfig]:
    """The scheduled and the static model."""
    learned: Any = "learned" if axis == "hidden" else "zero"
    head = args.dim // args.heads
    base = ModelConfig(
        mixer=mixer, vocab_size=3072, train_length=length, capacity=Capacity.static(axis=axis, span=length, m0=learned),  # type: ignore[arg-type]
        d_model=args.dim, n_heads=args.heads, head_k=head, head_v=head, mlp_hidden=2 * args.dim, memory_hidden=2 * head,
        chunk=args.chunk, inner=args.chunk, theta_max=0.1,
        memory="mlp" if axis == "hidden" and mixer != "titans-mlp" else "linear",
    )  # fmt: skip
    blocks = args.heads if axis == "head" else 16
    norm = args.key_norm if axis == "key" and mixer != "retnet" else "before_mask"  # RetNet has no norm
    capacity = Capacity(schedule=Uniform(blocks=blocks, span=length), axis=axis, m0=learned, key_norm=norm)  # type: ignore[arg-type]
    return replace(base, capacity=capacity), base


def model_step(config: ModelConfig, length: int) -> Step:
    """Logits at 64 positions only, as in training."""
    torch.manual_seed(0)
    model, ids = DecoderLM(config), torch.randint(3072, (1, length))

    def step() -> None:
        h, _ = model.hidden(ids)
        model.logits(h[:, :: max(1, h.shape[1] // 64)]).logsumexp(-1).mean().backward()

    return step


def _mixer(config: ModelConfig, length: int) -> tuple[Any, Tensor, list[int] | None]:
    torch.manual_seed(0)
    capacity, mixer = config.capacity, MIXERS[config.mixer](config)
    active = None
    if not capacity.is_static:
        active = capacity.active_coords_range(0, length, config.axis_dim()).tolist()
    return mixer, torch.randn(1, length, config.d_model, requires_grad=True), active


def mixer_step(config: ModelConfig, length: int) -> Step:
    mixer, x, active = _mixer(config, length)
    weight = torch.randn(1, length, config.d_model)

    def step() -> None:
        y, _ = mixer(x, mixer.init_state(1), active)
        (y * weight).sum().backward()

    return step


def op_step(config: ModelConfig, length: int) -> Step:
    """The kernel on what the static mixer would hand to it."""
    static = replace(config, capacity=Capacity.static(axis=config.capacity.axis, span=length, m0=config.capacity.m0))
    kernel, given = KERNELS[config.mixer], _given(static, length)
    choices = _mixer(config, length)
    given |= {"active": choices[2], "axis": config.capacity.axis}
    weight = torch.randn_like(given["v_BTHV"])

    def step() -> None:
        y, _ = kernel.chunk(**given)
        (y * weight).sum().backward()

    return step


def _given(config: ModelConfig, length: int) -> dict[str, Any]:
    """The arguments of the kernel's chunked form inside the mixer, as leaves."""
    (mixer, x, _), kernel, found = _mixer(config, length), KERNELS[config.mixer], {}
    right = kernel.chunk

    def note(**given: Any) -> Any:
        found.update(given)
        return right(**given)

    kernel.chunk = note
    try:
        mixer.mix(x, mixer.init_state(1), None, "chunk")
    finally:
        kernel.chunk = right
    return {name: map_tensors(value, lambda t: t.detach().clone().requires_grad_(t.requires_grad)) for name, value in found.items()}


LEVELS: dict[str, Callable[[ModelConfig, int], Step]] = {"op": op_step, "mixer": mixer_step, "model": model_step}


def measure(mixer: str, axis: str, length: int, args: argparse.Namespace) -> dict[str, Any]:
    clock = time.perf_counter if args.wall else time.process_time
    steps = [LEVELS[args.level](config, length) for config in twins(mixer, axis, length, args)]
    times, static = paired(steps[0], steps[1], args.pairs, clock, lambda: None)
    low, middle, high = statistics.quantiles([a / b for a, b in zip(times, static, strict=True)], n=4)
    return {
        "level": args.level, "mixer": mixer, "axis": axis, "length": length, "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)], "static_tokens_per_s": round(length / statistics.median(static)),
    }  # fmt: skip


def _chosen(args: argparse.Namespace) -> list[tuple[str, str]]:
    names = [n for n, mixer in MIXERS.items() if mixer.clock == "context" and (args.level != "op" or n in KERNELS)]
    pairs = [(n, axis) for n in names for axis in MIXERS[n].axes]
    wanted, axes = args.only.split(","), args.axes.split(",")
    return [(n, a) for n, a in pairs if (not args.only or n in wanted) and (not args.axes or a in axes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, default="model")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--length", type=int, nargs="+", default=[4096])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--key-norm", default="before_mask", help="before_mask needs whole keys, after_mask only the open rows")
    parser.add_argument("--only", default="")
    parser.add_argument("--axes", default="")
    parser.add_argument("--wall", action="store_true", help="seconds of the clock instead of the thread")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for length in args.length:
        for name, axis in _chosen(args):
            row = measure(name, axis, length, args)
            rows.append(row)
            low, high = row["quartiles"]
            speed = f"{row['static_tokens_per_s']:9,} tokens/s static"
            print(f"{args.level:6} {length:6} {name:12} {axis:7} {row['ratio']:.3f}  [{low:.3f}, {high:.3f}] {speed}", flush=True)
    if args.json:
        result = {**vars(args), "torch": torch.__version__, "seconds": "wall" if args.wall else "cpu", "rows": rows}
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
