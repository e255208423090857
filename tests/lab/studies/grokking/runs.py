"""Small runs, and runs that nobody ran, with numbers that are known."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from effdeg.lab.recipes.grokking import RECIPE
from effdeg.lab.store import Store
from effdeg.lab.studies.grokking import run as running
from effdeg.lab.studies.grokking.settings import Grokking
from effdeg.lab.task import Task
from tests.lab.training.runs import StoppedError

SMALL = {
    "prime": 7,
    "fraction": 0.5,
    "width": 16,
    "heads": 2,
    "depth": 2,
    "steps": 40,
    "evaluations": 6,
    "measure_paths": 8,
    "measure_nodes": 16,
    "measure_degree": 6,
}


def small(**changes):
    return Grokking(**{**SMALL, **changes})


def carried_out(folder, settings, **surroundings):
    """Carry out a run; give its folder."""
    run = Store(Path(folder)).run(settings)
    running.train(settings, Task(run, None, torch.device("cpu"), **surroundings))
    return run.folder


@contextmanager
def breaking_off(step):
    """Let runs save at every occasion, and break off when they have trained this far, before anything of it is kept."""
    train_stretch = running._GrokkingRun._train_stretch

    def breaks(self, steps):
        train_stretch(self, steps)
        if self._step.step >= step:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "SECONDS_AT_RISK", -1.0)
        patch.setattr(running, "_STRETCH", 3)
        patch.setattr(running._GrokkingRun, "_train_stretch", breaks)
        with pytest.raises(StoppedError):
            yield


def made_up(
    folder, row, *, degrees, accuracies, losses, stderr=0.01, norms=None, sharpness=None, normalized=None, **changes
):
    """Write a finished run of the recipe that was looked at after 10, 20, 40, … steps; give its record."""
    steps = [10 * 2**number for number in range(len(degrees))]
    settings = RECIPE.resolved(RECIPE.row(row), {"steps": steps[-1], **changes})
    run = Store(Path(folder)).run(settings)
    run.begin({"device": "a slide rule"})
    norms, sharpness = norms or [1.0] * len(steps), sharpness or [0.5] * len(steps)
    normalized = normalized or [1.0] * len(steps)
    for step, degree, scaled, accuracy, loss, norm, sharp in zip(
        steps, degrees, normalized, accuracies, losses, norms, sharpness, strict=True
    ):
        measured = {"value": degree, "stderr": stderr, "normalized": scaled, "normalized_stderr": stderr}
        run.log({
            "step": step,
            "seconds": step / 100,
            "train_accuracy": 1.0 if step >= 40 else 0.5,
            "train_loss": 0.1,
            "train_effective_degree": measured,
            "validation_accuracy": accuracy,
            "validation_loss": loss,
            "validation_effective_degree": measured,
            "parameter_norm": norm,
            "sharpness": sharp,
            "adaptive_sharpness": 0.5,
        })
    run.finish({"steps": steps[-1], "seconds": steps[-1] / 100})
    return run.record()


def summary(folder):
    return json.loads((folder / "summary.json").read_text())
