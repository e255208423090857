"""How simple is the function my network has learned, and can I train it to be simpler?"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import effdeg.integrations._frameworks  # noqa: F401  (registers what is known about the models of other frameworks)
from effdeg._version import __version__

if TYPE_CHECKING:
    from effdeg import baselines, changes, functional, proxies, ranking
    from effdeg.measure import Comparison, Difference, Measurement, Settings, Trace, compare, measure, trace
    from effdeg.pools import Choice, measure_pool, pick
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
    "proxies",
    "ranking",
    "trace",
]

_PACKAGES = {"baselines", "changes", "functional", "proxies", "ranking"}
_HOMES = {
    **dict.fromkeys(("Choice", "measure_pool", "pick"), "pools"),
    **dict.fromkeys(("Constant", "Penalty", "Points", "SineRamp"), "train"),
}


class _LazyPackage(ModuleType):
    """Imports a public name when it is first used: importing torch takes seconds, which ``effdeg --help`` need not.

    ``effdeg.measure`` is the function, although its folder has the same name and Python sets a package's attribute to
    the folder when it is imported. Hence the property, which nothing can overwrite.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _PACKAGES:
            return importlib.import_module(f"effdeg.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'effdeg' has no attribute {name!r}")
        home = importlib.import_module(f"effdeg.{_HOMES.get(name, 'measure')}")
        value = getattr(home, name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted(__all__)

    @property
    def measure(self) -> Any:
        return importlib.import_module("effdeg.measure").measure

    @measure.setter
    def measure(self, folder: ModuleType) -> None:
        """Ignore the folder, which Python sets here."""


sys.modules[__name__].__class__ = _LazyPackage
