"""Train a model to be simpler: the effective degree as a loss term, and how its weight changes during training."""

from effdeg.train._penalty import Penalty
from effdeg.train._points import Points
from effdeg.train._schedules import Constant, SineRamp

__all__ = ["Constant", "Penalty", "Points", "SineRamp"]
