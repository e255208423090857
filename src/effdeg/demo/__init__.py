"""The demonstration of ``effdeg demo``: real digits, few labels, small networks."""

from effdeg.demo._digits import POOL, Digits, load_digits, network

__all__ = ["POOL", "Digits", "load_digits", "network"]
