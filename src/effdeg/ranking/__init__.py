"""How well does a measure rank a pool of models by how they generalize? Needs ``effdeg[ranking]``.

A table has one row per model: its hyperparameters, what was measured on it, and its generalization gap.
"""

from effdeg.ranking._advantage import Advantage
from effdeg.ranking._neighbours import Environment
from effdeg.ranking._pool import Pool
from effdeg.ranking._result import Ranking
from effdeg.ranking._score import Score, Statistic
from effdeg.ranking._scoring import rank
from effdeg.ranking._tables import read_table

__all__ = ["Advantage", "Environment", "Pool", "Ranking", "Score", "Statistic", "rank", "read_table"]
