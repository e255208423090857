"""Models and data from files, in the layouts people already have."""

from effdeg._code import find_code
from effdeg.io.data import ImageOptions, load_data, read_data
from effdeg.io.models import load_model

__all__ = ["ImageOptions", "find_code", "load_data", "load_model", "read_data"]
