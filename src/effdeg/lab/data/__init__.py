"""The lab's data sets, read from the layouts in which people have them."""

from effdeg.lab.data.labelled import Labelled
from effdeg.lab.data.loading import load

__all__ = ["Labelled", "load"]
