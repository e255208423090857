"""How well does a measure rank a pool of models by how they generalize? Needs the extra ``ranking``.

A table has one row per model: its hyperparameters, what was measured on it, and its generalization gap. :func:`rank`
scores each measure by its correlations with the gap and by the statistics of Jiang et al. (2020) and Dziugaite et al.
(2020), which hold hyperparameters fixed; :meth:`Ranking.compare` tests one measure against another.
"""

from effdeg.ranking._pool import Pool
from effdeg.ranking._rank import rank
from effdeg.ranking._result import Ranking
from effdeg.ranking._scores import Advantage, Score, Statistic
from effdeg.ranking._statistics import Environment
from effdeg.ranking._tables import read_table
from effdeg.ranking._variants import BestVariant

__all__ = ["Advantage", "BestVariant", "Environment", "Pool", "Ranking", "Score", "Statistic", "rank", "read_table"]
