"""Measure how simple the function is that a model has learned: one model, several models, or the values along paths."""

from effdeg.functional._conditioning import IllConditionedFit
from effdeg.measure._comparison import Comparison, Difference, compare
from effdeg.measure._estimator import measure
from effdeg.measure._measurement import Measurement
from effdeg.measure._record import Settings
from effdeg.measure._tracing import Trace, trace

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
