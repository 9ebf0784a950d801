"""Intervals and comparisons that keep their promised coverage with few seeds and shared items. NumPy; SciPy lazily."""

from proteus_bench.stats.aggregate import (
    bradley_terry,
    improvement_ci,
    iqm,
    iqm_ci,
    probability_of_improvement,
    win_rates,
)
from proteus_bench.stats.bootstrap import BootstrapResult, pigeonhole_bootstrap, stream
from proteus_bench.stats.crossed import Components, components, crossed_anova
from proteus_bench.stats.draws import draws_key, pool_draws
from proteus_bench.stats.intervals import Interval, cell_ci, clopper_pearson, cluster_mean_ci, wilson
from proteus_bench.stats.oneway import acceleration, item_bootstrap, jackknife
from proteus_bench.stats.paired import (
    PairingError,
    ScoreMatrix,
    benjamini_hochberg,
    holm,
    holm_family,
    mcnemar,
    paired_difference,
    score_matrix,
    sign_flip,
)
from proteus_bench.stats.power import (
    Variances,
    detectable,
    items_needed,
    items_needed_normal,
    minimum_detectable_effect,
    pilot_variances,
    power_of,
    proportion_error,
    seeds_needed,
)
from proteus_bench.stats.ranks import Rank, rank_intervals
from proteus_bench.stats.ratio import median_ratio
from proteus_bench.stats.verdict import Verdict, checkpoint_ci, p_value, primary_method, unbounded_difference, verdict

__all__ = [
    "BootstrapResult",
    "Components",
    "Interval",
    "PairingError",
    "Rank",
    "ScoreMatrix",
    "Variances",
    "Verdict",
    "acceleration",
    "benjamini_hochberg",
    "bradley_terry",
    "cell_ci",
    "checkpoint_ci",
    "clopper_pearson",
    "cluster_mean_ci",
    "components",
    "crossed_anova",
    "detectable",
    "draws_key",
    "holm",
    "holm_family",
    "improvement_ci",
    "iqm",
    "iqm_ci",
    "item_bootstrap",
    "items_needed",
    "items_needed_normal",
    "jackknife",
    "mcnemar",
    "median_ratio",
    "minimum_detectable_effect",
    "p_value",
    "paired_difference",
    "pigeonhole_bootstrap",
    "pilot_variances",
    "pool_draws",
    "power_of",
    "primary_method",
    "probability_of_improvement",
    "proportion_error",
    "rank_intervals",
    "score_matrix",
    "seeds_needed",
    "sign_flip",
    "stream",
    "unbounded_difference",
    "verdict",
    "wilson",
    "win_rates",
]
