"""Numbers and lists as a reader wants them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from effdeg.lab.recipe import Recipe
from effdeg.lab.report.spread import SeedDifference, Spread
from effdeg.lab.settings import to_dict

# A number with more decimals than these is easier to read with a power of ten.
_DECIMALS = 6
# The paper's letters of the strengths.
SIGNS = {"alpha": "α", "rho": "ρ", "weight": "λ", "eta": "η"}


def percent(share: float) -> str:
    """Write a share in percent, with the paper's two decimals."""
    return f"{100 * share:.2f}%"


def points(spread: Spread) -> str:
    """Write an accuracy in points of percent, as the paper's tables do."""
    return f"{100 * spread.mean:.2f}" + ("" if spread.std is None else f" ± {100 * spread.std:.2f}")


def gain(difference: SeedDifference) -> str:
    """Write a difference in points of percent, with its interval if it has one, and a star if that leaves out zero."""
    text = f"{100 * difference.value:+.2f}"
    if difference.interval is None:
        return text
    low, high = (100 * end for end in difference.interval)
    return f"{text} ({low:+.2f} to {high:+.2f})" + "*" * bool(difference.beyond_noise)


def degree(found: tuple[float, float]) -> str:
    """Write an effective degree with its standard error, to two decimals or as many as the error needs to be seen."""
    value, error = found
    smallest = error or abs(value) / 10
    decimals = max(2, math.ceil(-math.log10(smallest))) if smallest else 2
    return f"{value:.{decimals}f} ± {error:.{decimals}f}" if decimals <= _DECIMALS else f"{value:.3g} ± {error:.1g}"


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def strengths(values: Mapping[str, Any]) -> str:
    """Write strengths by the paper's letters."""
    return ", ".join(f"{SIGNS.get(key, key)} = {setting(value)}" for key, value in values.items())


def setting(value: Any) -> str:
    """Write the value of a setting."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value)) or "none"
    return "none" if value is None else str(value)


def listed(names: Sequence[str]) -> str:
    """Write names as a list within a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def sweep_command(recipe: Recipe[Any]) -> str:
    """Write the command that runs an experiment; the digits come with a package, all other data from a folder."""
    known = to_dict(recipe.settings).get("data", "digits") == "digits"
    return f"effdeg lab sweep {recipe.name}" + " --data DIR" * (not known)


def seeds(count: int) -> str:
    """Describe how many seeds."""
    return "one seed" if count == 1 else f"{count} seeds"
