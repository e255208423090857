"""Stores of runs that nobody ran, with numbers that are known."""

import json

from effdeg.lab.recipe import Recipe, Reported, Row
from effdeg.lab.settings import digest, to_dict
from effdeg.lab.training import Training, train

METHODS = Recipe(
    name="methods",
    title="Three methods & a half",
    paper="Table 0",
    expects="ED is best.",
    cost="nothing",
    settings=Training(data="digits", model="mlp", epochs=20, evaluate_every=5, precision="float32"),
    train=train,
    rows=(
        Row("plain", "Baseline", {"method": "plain"}, Reported(80.0, 0.5)),
        Row("mixup", "Mixup", {"method": "mixup"}, Reported(82.0, 0.5), strengths={"alpha": (0.2, 1.0)}),
        Row("sam", "SAM", {"method": "sam"}, Reported(80.1, 0.5)),
        Row("ed", "ED", {"method": "ed", "weight": 7.0}, Reported(84.0, 0.5), strengths={"weight": (7.0, 20.0)}),
    ),
    departs="The rate is not the paper's.",
    tuning={"held_out": 100, "epochs": 10},
)

PRICES = Recipe(
    name="prices",
    title="A price list",
    paper="none",
    expects="Nothing.",
    cost="nothing",
    settings=Training(data="digits", model="mlp", epochs=20, batch=64),
    train=train,
    rows=(
        Row("plain", "Baseline"),
        Row("ed", "all of it", {"method": "ed", "weight": 7.0}),
        Row("half", "half of it", {"method": "ed", "weight": 7.0, "pairs": 0.25}),
        Row("cheap", "every 4th step", {"method": "ed", "weight": 7.0, "every": 4}),
        Row("absent", "never run", {"method": "ed", "weight": 7.0, "nodes": 8, "degree": 7}),
    ),
    shows="prices",
)

POOL = Recipe(
    name="pool",
    title="A pool",
    paper="Figure 0",
    expects="ED ranks best.",
    cost="nothing",
    settings=Training(data="digits", model="mlp", optimizer="sgd", epochs=5, proxies=("all",)),
    train=train,
    rows=(Row("plain", "MLP"),),
    seeds=(0, 1),
    grid={"batch": (10, 20, 40), "lr": (0.1, 0.01, 0.001)},
    shows="pool",
)

DEVICE = "Thinking Machine"


def add(
    folder,
    recipe,
    row,
    accuracy,
    *,
    step=1.0,
    degree=0.5,
    device=DEVICE,
    shared=False,
    summary=None,
    finished=True,
    **changes,
):
    """Write a run of a recipe's line; ``step`` is the time of an epoch, in seconds."""
    settings = recipe.resolved(recipe.row(row), changes)
    run = folder / digest(settings)
    run.mkdir(parents=True)
    _write(run / "settings.json", {"format": 1, "kind": "Training", "settings": to_dict(settings)})
    environment = {"device": device, "torch": "2.13", "python": "3.11", "effdeg": "0.4", "processes": 1}
    environment |= {"shared": True} if shared else {}
    _write(run / "environment.json", environment)
    epochs = range(settings.evaluate_every, settings.epochs + 1, settings.evaluate_every)
    entries = [
        {
            "epoch": epoch,
            "step": 10 * epoch,
            "seconds": step * epoch,
            "train_accuracy": accuracy * epoch / settings.epochs,
            "test_accuracy": accuracy * epoch / settings.epochs,
            "effective_degree": {"value": degree, "stderr": 0.1},
        }
        for epoch in epochs
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if finished:
        found = {
            "test_accuracy": accuracy,
            "test_loss": 0.5,
            "train_accuracy": 0.99,
            "train_loss": 0.01,
            "gap": 0.99 - accuracy,
            "epochs": settings.epochs,
            "seconds": step * settings.epochs,
            "seconds_per_epoch": step,
            "milliseconds_per_step": 100 * step,
            "parameters": 1000,
            "effective_degree": {"value": degree, "stderr": 0.03, "normalized": 2.0, "normalized_stderr": 0.1},
        }
        _write(run / "summary.json", found | (summary or {}))
    return run


def _write(file, value):
    file.write_text(json.dumps(value))
