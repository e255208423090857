"""Training a classifier by any method: settings, data on the device, one step in one graph, evaluation, resumption."""

from effdeg.lab.training.loop import train
from effdeg.lab.training.settings import Training

__all__ = ["Training", "train"]
