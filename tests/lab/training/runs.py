"""Small runs on the embedded digits."""

import json
from pathlib import Path

import torch

from effdeg.lab.store import Store
from effdeg.lab.task import Task
from effdeg.lab.training import Training, train

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


def weights(folder):
    return torch.load(folder / "weights.pt", weights_only=True)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def metrics(folder):
    """Give what was logged, less the times, which are never the same."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
