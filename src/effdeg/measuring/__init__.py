"""Measure how simple the function is that a model has learned: one model, several models, or the values along paths."""

from effdeg.functional._conditioning import IllConditionedFit
from effdeg.measuring._comparison import Comparison, Difference, compare
from effdeg.measuring._estimator import measure
from effdeg.measuring._measurement import Measurement
from effdeg.measuring._record import Settings
from effdeg.measuring._tracing import Trace, trace

__all__ = [
    "Comparison",
    "Difference",
    "IllConditionedFit",
    "Measurement",
    "Settings",
    "Trace",
    "compare",
    "measure",
    "trace",
]
