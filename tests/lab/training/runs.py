"""Small runs on the embedded digits."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from effdeg.lab.store import Store
from effdeg.lab.task import Task
from effdeg.lab.training import Training, loop, train

SMALL = {
    "data": "digits",
    "model": "mlp",
    "limit": 60,
    "batch": 20,
    "epochs": 4,
    "evaluate_every": 1,
    "augment": "none",
    "precision": "float32",
    "compile": False,
    "measure_paths": 20,
    "measure_nodes": 20,
    "measure_degree": 8,
}


def small(**changes):
    return Training(**{**SMALL, **changes})


def carried_out(folder, settings, **surroundings):
    """Carry out a run; give its folder."""
    run = Store(Path(folder)).run(settings)
    train(settings, Task(run, None, torch.device("cpu"), **surroundings))
    return run.folder


class StoppedError(Exception):
    pass


@contextmanager
def breaking_off(epoch):
    """Let runs break off after this epoch was trained, before anything of it is kept."""
    train_epoch = loop._TrainingRun._train_epoch

    def breaks(self):
        train_epoch(self)
        if self._epoch == epoch:
            raise StoppedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop._TrainingRun, "_train_epoch", breaks)
        with pytest.raises(StoppedError):
            yield


def weights(folder):
    return torch.load(folder / "weights.pt", weights_only=True)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def metrics(folder):
    """Give what was logged, less the times, which are never the same."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
