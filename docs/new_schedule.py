"""A schedule of your own in one file.

Put this file into a package of yours and name the class in pyproject.toml:

    [project.entry-points."proteus_bench.schedules"]
    halfway = "my_package.new_schedule:Halfway"

After `pip install`, `proteus-bench run --model gdn+halfway --suite niah8k` puts it on weights trained under another schedule and
says so. To train weights under it, from the very trunk that our own schedules branched from, and to score them beside the twin:

    proteus-bench train runs/gdn-micro-ablation.toml --schedule halfway --seed 0 --out my-zoo
    PROTEUS_BENCH_ZOO=my-zoo proteus-bench run --model gdn+halfway@micro-ablation --suite niah8k
"""

from dataclasses import dataclass

from proteus_bench.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Halfway(Schedule):
    """Half of the blocks at once, the rest at the middle of the span."""

    name = "halfway"

    def active_blocks(self, t: int) -> int:
        return self.blocks if t > self.span // 2 else max(1, self.blocks // 2)
