"""A pool of trained models, each measured in several ways."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from effdeg.lab.recipe import Row
from effdeg.lab.report.blocks import Block
from effdeg.lab.report.wording import setting, strengths
from effdeg.lab.store import Record
from effdeg.lab.studies.estimator.outcomes import TOLERANCE
from effdeg.ranking import Score, rank

# Cheap and efficient penalties, two in between, the precise penalty, and two that measure nearly in full.
ALSO = ("3/2", "4/3", "8/5", "15/7", "32/20", "64/40")
# The rank correlation of fewer models says nothing.
FEWEST = 5
# The two values that a measurement has: where their standard errors stand, and what they are called.
VARIANTS = {"value": "stderr", "normalized": "normalized_stderr"}
LABELS = {"value": "raw, on probabilities", "normalized": "normalized, on logits"}


@dataclass(frozen=True)
class Measured:
    """One trained model.

    Attributes:
        configuration: The line it belongs to, of which there may be several seeds.
        group: How it was trained: the method, or, where that is the same for all, the learning rate.
        paths: On how many paths it was measured.
        proper: The measurement proper: values and standard errors.
        also: What other nodes and degrees gave, by ``nodes/degree``.
    """

    configuration: str
    group: str
    paths: int
    proper: Mapping[str, float]
    also: Mapping[str, Mapping[str, float]]

    def found(self, name: str) -> Mapping[str, float]:
        """Return what one of the other settings found, or, for any other name, the measurement proper."""
        return self.also.get(name, self.proper)

    def ratio(self, name: str, variant: str) -> float:
        """Divide what other nodes and degrees gave by the measurement proper."""
        return self.found(name)[variant] / self.proper[variant]

    def ratio_at_degree(self, name: str, variant: str) -> float:
        """Divide what other nodes gave by what the nodes of the measurement proper give at the same degree."""
        return self.found(name)[variant] / self.found(name).get(f"{variant}_at_degree", self.proper[variant])

    def needed_paths(self, name: str, variant: str) -> int:
        """Count the paths that bring the standard error down to the tolerance."""
        found = self.found(name)
        spread = found[VARIANTS[variant]] * math.sqrt(self.paths) / found[variant]
        return math.ceil((spread / TOLERANCE) ** 2)


def every_model(rows: Sequence[Row], grid: Mapping[str, Sequence[Any]]) -> tuple[Row, ...]:
    """Return a line for every point of a pool's grid, since studies report line by line."""
    found = []
    for row, values in product(rows, product(*grid.values())):
        point = dict(zip(grid, values, strict=True))
        named = [f"{key}={setting(value)}" for key, value in point.items()]
        found.append(
            Row("-".join([row.name, *named]).replace(",", ""), ", ".join([row.title, *named]), {**row.changes, **point})
        )
    return tuple(found)


def models_of(block: Block) -> list[Measured]:
    """Return the models of a block that were measured in several ways."""
    several = len({_method(run) for line in block.done for run in line.runs}) > 1
    return [
        Measured(
            configuration=line.row.name,
            group=_method(run) if several else f"lr = {setting(run.settings['lr'])}",
            paths=int(run.settings["measure_paths"]),
            proper=run.summary["effective_degree"],
            also=run.summary["measured_also"],
        )
        for line in block.done
        for run in line.runs
        if run.summary and run.summary.get("measured_also")
    ]


def groups_of(models: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Sort the models by how they were trained."""
    names = dict.fromkeys(model.group for model in models)
    return {name: [model for model in models if model.group == name] for name in names}


def settings_in(models: Sequence[Measured]) -> list[str]:
    """List the settings beside the measurement proper that all models were measured with."""
    return [name for name in models[0].also if all(name in model.also for model in models)] if models else []


def tracked(models: Sequence[Measured], variant: str) -> dict[str, Score]:
    """Return how well each setting ranks the models as the measurement proper does; empty for too few models."""
    names = settings_in(models)
    if len(models) < FEWEST:
        return {}
    table = [
        {"configuration": model.configuration, "proper": model.proper[variant]}
        | {name: model.also[name][variant] for name in names}
        for model in models
    ]
    # Seeds of one configuration are no independent models.
    seeds = len({model.configuration for model in models}) < len(models)
    try:
        ranking = rank(
            table, target="proper", measures=names, hyperparameters=["configuration"] if seeds else [], resamples=2000
        )
    except ValueError:  # all models have one value
        return {}
    return {name: ranking.scores[name] for name in names if ranking.scores[name].undefined is None}


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the standard deviation, 0 of a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _method(run: Record) -> str:
    """Name the method with its weight, by which several lines may differ."""
    method, weight = str(run.settings["method"]), run.settings.get("weight")
    return method if weight is None else f"{method}, {strengths({'weight': weight})}"
