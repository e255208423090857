"""Measure how simple the function is that a model has learned, and look at its values along paths."""

from effdeg.functional._conditioning import IllConditionedFit
from effdeg.measuring._estimator import measure
from effdeg.measuring._measurement import Measurement
from effdeg.measuring._record import Settings
from effdeg.measuring._tracing import Trace, trace

__all__ = ["IllConditionedFit", "Measurement", "Settings", "Trace", "measure", "trace"]
