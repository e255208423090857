"""How simple is the function my network has learned, and can I train it to be simpler?"""

import importlib
from typing import TYPE_CHECKING, Any

import effdeg.integrations._frameworks  # noqa: F401  (registers what is known about the models of other frameworks)
from effdeg._version import __version__

if TYPE_CHECKING:
    from effdeg import baselines, changes, functional, pools, proxies
    from effdeg.measuring import Measurement, Settings, Trace, measure, trace
    from effdeg.pools import Choice, Comparison, Difference, compare, measure_pool, pick
    from effdeg.train import Constant, Penalty, Points, SineRamp

__all__ = [
    "Choice",
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
    "baselines",
    "changes",
    "compare",
    "functional",
    "measure",
    "measure_pool",
    "pick",
    "pools",
    "proxies",
    "trace",
]

_PACKAGES = {"baselines", "changes", "functional", "pools", "proxies"}
_HOMES = {
    **dict.fromkeys(("Choice", "Comparison", "Difference", "compare", "measure_pool", "pick"), "pools"),
    **dict.fromkeys(("Constant", "Penalty", "Points", "SineRamp"), "train"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing torch takes seconds, which ``effdeg --help`` need not."""
    if name not in __all__:
        raise AttributeError(f"module 'effdeg' has no attribute {name!r}")
    if name in _PACKAGES:
        return importlib.import_module(f"effdeg.{name}")
    value = getattr(importlib.import_module(f"effdeg.{_HOMES.get(name, 'measuring')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
