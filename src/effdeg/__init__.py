"""How simple is the function my network has learned?"""

from effdeg import functional
from effdeg.comparison import Comparison, Difference, compare
from effdeg.estimator import measure
from effdeg.measurement import Measurement, Settings
from effdeg.tracing import Trace, trace
from effdeg.version import __version__

__all__ = [
    "Comparison",
    "Difference",
    "Measurement",
    "Settings",
    "Trace",
    "__version__",
    "compare",
    "functional",
    "measure",
    "trace",
]
