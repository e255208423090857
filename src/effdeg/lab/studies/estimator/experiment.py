"""A run: one known function, measured in every way of the grid along the same paths, next to its exact values."""

import math
import time
import warnings
from typing import Any

import torch
from torch import Tensor

import effdeg
from effdeg._models.paths import Sampling, draw_pairs, interpolate
from effdeg._utils.progress import progress_bar
from effdeg._utils.statistics import mean_and_stderr
from effdeg.functional import cosine_nodes, effective_degree, fit
from effdeg.functional._conditioning import IllConditionedFit
from effdeg.lab.studies.beginning import begun
from effdeg.lab.studies.estimator.grid import EXACT_AT, SCHEMES, degrees_on
from effdeg.lab.studies.estimator.known import KnownFunction, exact_degrees, known_function
from effdeg.lab.studies.estimator.settings import Estimation
from effdeg.lab.task import Task
from effdeg.lab.training.turns import turn
from effdeg.measure._measurement import RESIDUAL_LIMIT, Measurement

# Paths on which nodes are drawn anew: enough for a standard deviation to a few per cent.
_DRAWN_PATHS = 200
_POINTS_AT_ONCE = 8192


def estimate(settings: Estimation, task: Task) -> None:
    """Carry out a run, or what is left of it."""
    with begun(task) as kept:
        state = kept or {"done": 0, "seconds": 0.0}
        begin = time.perf_counter() - state["seconds"]
        subject = _Subject(settings, task.device)
        name = f"{settings.function}, seed {settings.seed}"
        with turn(task.device), progress_bar(name, len(SCHEMES), enabled=task.progress) as update:
            for done, (sampling, nodes) in enumerate(SCHEMES):
                if done >= state["done"]:
                    for entry in subject.measured(sampling, nodes):
                        task.run.log(entry)
                    task.run.save({"done": done + 1, "seconds": time.perf_counter() - begin})
                update(done + 1, f"{nodes} {sampling} nodes")
        task.run.finish(subject.summary() | {"seconds": time.perf_counter() - begin})


class _Subject:
    """A known function on its paths. All that is drawn follows from the seed, so a resumed run draws it again."""

    def __init__(self, settings: Estimation, device: torch.device) -> None:
        self._settings = settings
        generator = torch.Generator().manual_seed(settings.seed)
        self._function: KnownFunction = known_function(settings, generator, device)
        self._inputs = self._function.inputs(settings.examples, generator)
        # The very pairs that effdeg.trace draws from this seed.
        first, second = draw_pairs(settings.examples, settings.paths, seed=settings.seed).to(device).unbind(1)
        self._first, self._second = self._inputs[first], self._inputs[second]
        coefficients = self._function.coefficients(self._first, self._second, EXACT_AT[-1])
        self._exact = exact_degrees(coefficients).cpu()

    def measured(self, sampling: Sampling, nodes: int) -> list[dict[str, Any]]:
        """Measure with so many nodes, at every degree they determine."""
        trace = effdeg.trace(
            self._function,
            self._inputs,
            paths=self._settings.paths,
            nodes=nodes,
            sampling=sampling,
            seed=self._settings.seed,
            batch_size=_POINTS_AT_ONCE,
        )
        degrees = degrees_on(nodes)
        within = self._within_paths(nodes, degrees) if sampling == "cosine" else [0.0] * len(degrees)
        with warnings.catch_warnings():
            # Fits that go wrong are a part of the study.
            warnings.simplefilter("ignore", IllConditionedFit)
            return [
                {"sampling": sampling, "nodes": nodes, "degree": degree, "within": spread}
                | self._held_against_exact(trace.fit(degree=degree, output="identity"))
                for degree, spread in zip(degrees, within, strict=True)
            ]

    def summary(self) -> dict[str, Any]:
        """Return the exact effective degree, as a mean over the paths, at every degree at which it is kept."""
        return {"degrees": list(EXACT_AT), "exact": self._exact[:, list(EXACT_AT)].mean(0).tolist()}

    def _held_against_exact(self, measured: Measurement) -> dict[str, Any]:
        """Compare path by path, which leaves out how much the paths themselves differ."""
        settings = measured.settings
        exact = self._exact[:, settings.degree]
        error, error_stderr = mean_and_stderr(measured.per_path - exact)
        mean = float(exact.mean())
        return {
            "value": measured.value,
            "std": float(measured.per_path.std()),
            "exact": mean,
            "bias": error / mean,
            "bias_stderr": error_stderr / mean,
            "residual": measured.residual,
            "upper_half": measured.upper_half,
            # With as many nodes as coefficients the measurement says that it cannot tell, whatever the residual.
            "warned": settings.nodes > settings.degree + 1 and measured.residual > RESIDUAL_LIMIT,
        }

    def _within_paths(self, nodes: int, degrees: list[int]) -> list[float]:
        """Draw the nodes of some paths several times, and give the standard deviation that they alone cause."""
        draws, ends = self._settings.draws, (self._first[:_DRAWN_PATHS], self._second[:_DRAWN_PATHS])
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + nodes)
        found = []
        for _ in range(draws):
            alpha = cosine_nodes(nodes, len(ends[0]), generator=generator).to(ends[0].device)
            values = self._function(interpolate(*ends, alpha)).view(*alpha.shape, -1)
            found.append([effective_degree(fit(values, alpha, degree)) for degree in degrees])
        return [_mean_deviation(torch.stack(drawn)) for drawn in zip(*found, strict=True)]


def _mean_deviation(drawn: Tensor) -> float:
    """Return the root of the mean variance over draws."""
    return math.sqrt(float(drawn.var(0).mean()))
