"""Models x suites on one Ray cluster: the file to submit as a Ray job (see `cluster.md`), or to run as it is on one machine.

    ray job submit -- python docs/ray_grid.py /shared/grid --models titans+proteus gdn+proteus --suites niah4k niah8k --limit 20

Every model and suite has a run folder of its own under the first argument. What follows the suites goes to `run` as it is.
Repeat the job to resume it: finished runs answer nothing again.
"""

import argparse
import os
import sys
from pathlib import Path

import ray

from proteus_bench.cli import invoke


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--suites", nargs="+", required=True)
    asked, flags = parser.parse_known_args()
    # One connection for all runs. A job finds its cluster in RAY_ADDRESS; without one, a cluster of this machine's cores.
    ray.init(address=os.environ.get("RAY_ADDRESS") or "local", logging_level="ERROR", log_to_driver=False)
    codes = []
    for model in asked.models:
        for suite in asked.suites:
            out = asked.out / f"{model}-{Path(suite).stem}".replace("/", "_")
            run = ["run", "--model", model, "--suite", suite, "--out", str(out), "--executor", "ray", *flags]
            codes.append(invoke(run))
            if codes[-1] == 130:  # interrupted
                return 130
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
