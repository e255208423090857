"""Several trained models: compare them, measure many checkpoints, rank these by what was measured, and pick one.

:func:`measure_pool` makes a table with one row per model: its hyperparameters, what was measured on it, and its
generalization gap. :func:`rank`, which needs the extra ``pools``, scores each measure by its correlations with the gap
and by the statistics of Jiang et al. (2020) and Dziugaite et al. (2020), which hold hyperparameters fixed;
:meth:`Ranking.compare` tests one measure against another. :func:`pick` chooses a model without labels.
"""

from effdeg.pools._choice import Choice, estimate_errors, find_variance
from effdeg.pools._comparison import Comparison, Difference, compare
from effdeg.pools._picking import pick
from effdeg.pools._pool import measure_pool
from effdeg.pools._ranked import Pool, read_table
from effdeg.pools._ranking import Ranking, rank
from effdeg.pools._statistics import Advantage, BestVariant, Score, Statistic
from effdeg.pools._table import PoolRows

__all__ = [
    "Advantage",
    "BestVariant",
    "Choice",
    "Comparison",
    "Difference",
    "Pool",
    "PoolRows",
    "Ranking",
    "Score",
    "Statistic",
    "compare",
    "estimate_errors",
    "find_variance",
    "measure_pool",
    "pick",
    "rank",
    "read_table",
]
