"""One training engine for every classifier, and a loop over steps for anything else that is trained."""

from effdeg_lab.engine.classify import train
from effdeg_lab.engine.loop import Loop, Task, open_loop
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import StepOptions

__all__ = ["Loop", "StepOptions", "Task", "Training", "open_loop", "train"]
