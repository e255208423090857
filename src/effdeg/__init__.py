"""How simple is the function my network has learned, and can I train it to be simpler?"""

import importlib
from typing import TYPE_CHECKING, Any

from effdeg.version import __version__

if TYPE_CHECKING:
    from effdeg import functional, proxies, ranking, rivals
    from effdeg.comparison import Comparison, Difference, compare
    from effdeg.estimator import measure
    from effdeg.measurement import Measurement, Settings
    from effdeg.penalty import Penalty
    from effdeg.points import Points
    from effdeg.schedules import Constant, SineRamp
    from effdeg.tracing import Trace, trace

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

# Where the names above come from. They are imported when they are first used (PEP 562): importing torch takes seconds,
# which the help and the error messages of the command line should not cost.
_HOMES = {
    "Comparison": "comparison",
    "Constant": "schedules",
    "Difference": "comparison",
    "Measurement": "measurement",
    "Penalty": "penalty",
    "Points": "points",
    "Settings": "measurement",
    "SineRamp": "schedules",
    "Trace": "tracing",
    "compare": "comparison",
    "measure": "estimator",
    "trace": "tracing",
}
_SUBPACKAGES = {*__all__} - {*_HOMES, "__version__"}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"effdeg.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'effdeg' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"effdeg.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
