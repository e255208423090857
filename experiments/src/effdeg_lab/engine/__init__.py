"""One training engine for every classifier, and a loop over steps for anything else that is trained."""

from effdeg_lab.engine.classify import check_training, train
from effdeg_lab.engine.loop import open_loop
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.stacked import train_stacked
from effdeg_lab.engine.step import Task

__all__ = ["Task", "Training", "check_training", "open_loop", "train", "train_stacked"]
