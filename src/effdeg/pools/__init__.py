"""Measure pools of trained models: one checkpoint after another, one row of a table for each."""

from effdeg.pools._pool import measure_pool
from effdeg.pools._table import PoolRows

__all__ = ["PoolRows", "measure_pool"]
