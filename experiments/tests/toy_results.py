"""Runs that nobody ran, with numbers that are known."""

from dataclasses import dataclass
from pathlib import Path

from effdeg_lab.core.recipe import Method, Recipe, Reported
from effdeg_lab.core.runs import Run
from effdeg_lab.core.settings import Settings, setting
from effdeg_lab.experiments.pools.study import PoolStudy
from effdeg_lab.show.methods import Methods

DEVICE = "Thinking Machine"


@dataclass(frozen=True)
class Toy(Settings):
    regularizer: str = "plain"
    data: str = "digits"
    epochs: int = setting(20, scale=True)
    limit: int | None = setting(None, scale=True)
    evaluate_every: int = setting(5, scale=True)
    held_out: int = 0
    batch: int = 64
    lr: float = 0.1
    alpha: float = 1.0
    weight: float | None = None
    pairs: float = 0.5


ED = {"regularizer": "ed", "weight": 7.0}
BASE = {"paper": "Table 0", "expects": "ED is best.", "cost": "nothing", "run": lambda settings, job: None}
METHODS = Recipe(
    name="methods",
    title="Three methods & a half",
    settings=Toy(),
    study=Methods(candidate="ed"),
    methods=(
        Method("plain", "Baseline", {"regularizer": "plain"}, Reported(80.0, 0.5)),
        Method("mixup", "Mixup", {"regularizer": "mixup"}, Reported(82.0, 0.5), tune={"alpha": (0.2, 1.0)}),
        Method("sam", "SAM", {"regularizer": "sam"}, Reported(80.1, 0.5)),
        Method("ed", "ED", ED, Reported(84.0, 0.5), tune={"weight": (7.0, 20.0)}),
    ),
    departs="The rate is not the paper's.",
    tuning={"held_out": 100, "epochs": 10},
    equal_time="ed",
    **BASE,
)
SHARES = Recipe(
    name="shares",
    title="Pairs",
    settings=Toy(),
    study=Methods(),
    methods=(Method("plain", "Baseline"), Method("half", "half of them", {**ED, "pairs": 0.25})),
    **BASE,
)
POOL = Recipe(
    name="pool",
    title="A pool",
    settings=Toy(epochs=5, alpha=2.0),
    study=PoolStudy(),
    methods=(Method("plain", "MLP"),),
    seeds=(0, 1),
    grid={"batch": (10, 20, 40), "lr": (0.1, 0.01, 0.001)},
    **BASE,
)


def invent_run(recipe, method, summary, metrics=(), environment=None, **changes):
    """Make a run of a method with changes to its settings; without a summary it is not finished."""
    settings = recipe.resolve(recipe.method(method), changes)
    return Run(
        file=Path(recipe.name) / f"{method}-{settings.hash}.jsonl",
        recipe=recipe.name,
        method=method,
        kind=settings.kind_name(),
        settings=settings.to_dict(),
        environment={"device": DEVICE, **(environment or {})},
        metrics=list(metrics),
        summary=summary,
    )


def make_run(
    recipe, name, accuracy, *, step=1.0, degree=0.5, device=DEVICE, shared=False, summary=None, finished=True, **changes
):
    """Make a run of a method; ``step`` is the time of an epoch, in seconds."""
    settings = recipe.resolve(recipe.method(name), changes)
    epochs = settings.epochs
    metrics = [
        {
            "epoch": epoch,
            "seconds": step * epoch,
            "test_accuracy": accuracy and accuracy * epoch / epochs,
            "effective_degree": {"value": degree, "stderr": 0.1},
        }
        for epoch in range(settings.evaluate_every, epochs + 1, settings.evaluate_every)
    ]
    found = {"test_accuracy": accuracy, "train_accuracy": 0.99, "gap": accuracy and 0.99 - accuracy, "epochs": epochs}
    found |= {"seconds": step * epochs, "seconds_per_epoch": step, "milliseconds_per_step": 100 * step}
    found["effective_degree"] = {"value": degree, "stderr": 0.03, "normalized": 2.0, "normalized_stderr": 0.1}
    environment = {"device": device, "torch": "2.13", **({"shared": True} if shared else {})}
    return invent_run(recipe, name, found | (summary or {}) if finished else None, metrics, environment, **changes)


def make_degree(value, normalized):
    return {"value": value, "stderr": 0.01, "normalized": normalized, "normalized_stderr": 0.01}


def make_seeds(accuracies, recipe=METHODS, noise=0.001, **changes):
    """Make three seeds around each accuracy, which do not move together."""
    return [
        make_run(recipe, name, accuracy + noise * ((seed + place) % 3 - 1) * (1 + place), seed=seed, **changes)
        for place, (name, accuracy) in enumerate(accuracies.items())
        for seed in (0, 1, 2)
    ]
