"""Compile every Triton kernel for sm_80, sm_90 and sm_100 on a machine without a GPU, and hold them to their limits.

    python kernels/bench/aot.py [--arch 80 90 100] [--sizes 64 128] [--first] [--write]

Registers a thread, bytes spilled and shared memory are those of the assembler that triton brings. It fails when a kernel
spills, wants more shared memory than the architecture has, or loads 16-bit inputs one by one. --first: one case of each
kernel and size. --write: the table beside this file, aot.md and aot.json. Numbers belong to one version of triton. For
sm_100 the assembler can report the entry of a kernel alone: a register count of a handful there means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ARCHITECTURES = (80, 90, 100)


def compile_all(arch: int, sizes: tuple[int, ...], first: bool) -> list[dict[str, Any]]:
    """One row a case, compiled in this process."""
    from proteus_kernels.triton.aot import SHARED_LIMIT, all_cases, compile_case

    cases = all_cases(sizes, arch)
    if first:
        cases = list({(c.name, c.constants.get("K")): c for c in reversed(cases)}.values())[::-1]
    rows = []
    for case in cases:
        report = compile_case(case, arch)
        options = {"kernel": case.name, "case": case.shape, "arch": arch, "warps": case.num_warps, "stages": case.num_stages}
        rows.append(options | vars(report) | {"shared_limit": SHARED_LIMIT[arch]})
    return rows


def in_own_process(arch: int, sizes: list[int], first: bool) -> list[dict[str, Any]]:
    """`compile_all` where TRITON_INTERPRET is not set. RuntimeError with the compiler's own words when it fails."""
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, "--worker", "--arch", str(arch), "--sizes", *map(str, sizes)]
    done = subprocess.run([*command, "--first"] if first else command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"sm_{arch}: {done.stderr.strip()[-2000:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def broken_limits(rows: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the rows, a line each."""
    wrong = []
    for row in rows:
        where = f"{row['kernel']} ({row['case']}) for sm_{row['arch']}"
        if row["spill_stores"] or row["spill_loads"]:
            wrong.append(f"{where} spills {row['spill_stores']} bytes and loads {row['spill_loads']}")
        if row["shared"] > row["shared_limit"]:
            wrong.append(f"{where} takes {row['shared']} of {row['shared_limit']} bytes of shared memory")
        if row["narrow"]:
            wrong.append(f"{where} loads element by element in {row['narrow']} places")
    return wrong


def table(rows: list[dict[str, Any]], version: str) -> str:
    """Markdown: a line a case, three architectures beside each other."""
    archs = sorted({row["arch"] for row in rows})
    lines = [
        "# What the compiler makes of every kernel",
        "",
        f"triton {version}, bfloat16, C = 64, 16 heads; written by `python kernels/bench/aot.py --write`. Per architecture:",
        "warps, registers a thread, bytes spilled, KiB of shared memory. Nothing here was run on a GPU. The register counts of",
        "sm_100 are those of a kernel's entry, which can be far fewer than it uses.",
        "",
        "| kernel | case | " + " | ".join(f"sm_{a}" for a in archs) + " |",
        "|---|---|" + "---|" * len(archs),
    ]
    by_case: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["kernel"], row["case"]), {})[row["arch"]] = row
    for (kernel, case), found in by_case.items():
        cells = [f"{r['warps']} / {r['registers']} / {r['spill_stores']} / {r['shared'] / 1024:.0f}" for r in found.values()]
        lines.append(f"| `{kernel}` | {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", nargs="+", type=int, default=list(ARCHITECTURES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        json.dump(compile_all(args.arch[0], tuple(args.sizes), args.first), sys.stdout)
        return 0
    try:
        with ThreadPoolExecutor(2) as pool:
            rows = [r for rows in pool.map(lambda a: in_own_process(a, args.sizes, args.first), args.arch) for r in rows]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    import triton

    print(table(rows, triton.__version__), end="")
    if args.write:
        (HERE / "aot.md").write_text(table(rows, triton.__version__))
        (HERE / "aot.json").write_text(json.dumps({"triton": triton.__version__, "rows": rows}, indent=0) + "\n")
    wrong = broken_limits(rows)
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
