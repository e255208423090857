"""The demonstration of ``effdeg demo``: real digits, few labels, small networks."""

from effdeg.demo._digits import Digits, load_digits, network

__all__ = ["Digits", "load_digits", "network"]
