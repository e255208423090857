"""Models and data from files, in the layouts people already have."""

from effdeg.io.data import ImageOptions, load_data
from effdeg.io.models import find_code, load_model

__all__ = ["ImageOptions", "find_code", "load_data", "load_model"]
