"""How simple is the function my network has learned, and can I train it to be simpler?"""

from effdeg import functional, proxies, ranking, rivals
from effdeg.comparison import Comparison, Difference, compare
from effdeg.estimator import measure
from effdeg.measurement import Measurement, Settings
from effdeg.penalty import Penalty
from effdeg.points import Points
from effdeg.schedules import Constant, SineRamp
from effdeg.tracing import Trace, trace
from effdeg.version import __version__

__all__ = [
    "Comparison",
    "Constant",
    "Difference",
    "Measurement",
    "Penalty",
    "Points",
    "Settings",
    "SineRamp",
    "Trace",
    "__version__",
    "compare",
    "functional",
    "measure",
    "proxies",
    "ranking",
    "rivals",
    "trace",
]
