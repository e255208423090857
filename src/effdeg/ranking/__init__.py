"""How well does a measure rank a pool of models by how they generalize? Needs ``effdeg[ranking]``.

A table has one row per model: its hyperparameters, what was measured on it, and its generalization gap.
"""

from effdeg.ranking.advantage import Advantage
from effdeg.ranking.neighbours import Environment
from effdeg.ranking.pool import Pool
from effdeg.ranking.result import Ranking
from effdeg.ranking.score import Score, Statistic
from effdeg.ranking.scoring import rank
from effdeg.ranking.tables import read_table

__all__ = ["Advantage", "Environment", "Pool", "Ranking", "Score", "Statistic", "rank", "read_table"]
