"""Measure pools of trained models: one checkpoint after another, one row of a table for each."""

from effdeg.pools._pool import measure_pool

__all__ = ["measure_pool"]
