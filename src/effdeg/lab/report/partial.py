"""What is left of a correlation when a third quantity is known."""

import numpy as np

from effdeg.ranking.correlations import scaled
from effdeg.ranking.tables import Array


def partial_correlation(values: Array, targets: Array, given: Array) -> float | None:
    """Correlate what linear fits on a third quantity leave of two others.

    Args:
        values: The one.
        targets: The other.
        given: What is known.

    Returns:
        Pearson's correlation of the residuals; None if a fit leaves nothing.
    """
    one, other = _left(values, given), _left(targets, given)
    return None if one is None or other is None else float(np.clip(one @ other, -1.0, 1.0))


def _left(values: Array, given: Array) -> Array | None:
    """Give the residuals of a linear fit, of length 1; None if what is left is rounding."""
    values, given = (scaled(each) - scaled(each).mean() for each in (values, given))
    residuals = values - given * (given @ values) / (given @ given)
    size = float(np.linalg.norm(residuals))
    return None if size <= 1e-9 * float(np.linalg.norm(values)) else residuals / size
