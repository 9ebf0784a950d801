"""Intervals and comparisons that keep their promised coverage with few seeds and shared items. NumPy; SciPy lazily."""

from proteus_bench.stats.bootstrap import BootstrapResult, pigeonhole_bootstrap, stream
from proteus_bench.stats.crossed import Components, components, crossed_anova, minimum_detectable_effect
from proteus_bench.stats.intervals import Interval, cell_ci, clopper_pearson, cluster_mean_ci, wilson
from proteus_bench.stats.paired import (
    PairingError,
    ScoreMatrix,
    benjamini_hochberg,
    holm,
    holm_family,
    paired_difference,
    score_matrix,
    sign_flip,
)
from proteus_bench.stats.verdict import Verdict, p_value, primary_method, unbounded_difference, verdict

__all__ = [
    "BootstrapResult",
    "Components",
    "Interval",
    "PairingError",
    "ScoreMatrix",
    "Verdict",
    "benjamini_hochberg",
    "cell_ci",
    "clopper_pearson",
    "cluster_mean_ci",
    "components",
    "crossed_anova",
    "holm",
    "holm_family",
    "minimum_detectable_effect",
    "p_value",
    "paired_difference",
    "pigeonhole_bootstrap",
    "primary_method",
    "score_matrix",
    "sign_flip",
    "stream",
    "unbounded_difference",
    "verdict",
    "wilson",
]
