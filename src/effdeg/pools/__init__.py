"""Many trained models: a table with one row for each checkpoint, and which of them to choose."""

from effdeg.pools._choice import Choice, estimate_errors
from effdeg.pools._picking import pick
from effdeg.pools._pool import measure_pool
from effdeg.pools._table import PoolRows

__all__ = ["Choice", "PoolRows", "estimate_errors", "measure_pool", "pick"]
