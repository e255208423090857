"""One run: random polynomials of every total degree are followed along paths, with and without noise."""

import math
import time
from typing import Any

import torch
from torch import Tensor

import effdeg
from effdeg._utils.progress import progress_bar
from effdeg._utils.statistics import mean_and_stderr
from effdeg.functional import effective_degree, fit
from effdeg.lab.studies.beginning import begun
from effdeg.lab.studies.polynomials.paths.degrees import degree_found, leading_coefficients
from effdeg.lab.studies.polynomials.paths.random_polynomials import RandomPolynomials, draw_examples
from effdeg.lab.studies.polynomials.paths.settings import PathDegrees
from effdeg.lab.task import Task
from effdeg.lab.training.turns import turn

# Coefficients below this share of the largest count as rounding errors.
THRESHOLD = 1e-13
# A threshold for those who would rather ignore noise.
COARSE = 1e-2
# Noise that is added to the values, in units of the polynomials' standard deviation.
NOISE = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
_EXAMPLES_PER_PATH = 10
# As many examples tell a polynomial's standard deviation.
_SCALING = 1000


def follow_paths(settings: PathDegrees, task: Task) -> None:
    """Carry out a run, or what is left of it."""
    with begun(task) as kept:
        state = kept or {"entries": [], "seconds": 0.0}
        with turn(task.device, progress=task.progress):
            _follow(settings, task, state)
        task.run.finish({"degrees": state["entries"], "seconds": state["seconds"]})


def _follow(settings: PathDegrees, task: Task, state: dict[str, Any]) -> None:
    """Do degree after degree, adding to what a checkpoint has."""
    what = f"{settings.variables} variables, seed {settings.seed}"
    with progress_bar(what, settings.highest, enabled=task.progress) as update:
        for degree in range(len(state["entries"]) + 1, settings.highest + 1):
            begin = time.perf_counter()
            entry = followed(settings, degree, task.device)
            state["seconds"] += time.perf_counter() - begin
            state["entries"].append(entry)
            task.run.log(entry)
            task.run.save(state)
            update(degree)


def followed(settings: PathDegrees, degree: int, device: torch.device) -> dict[str, Any]:
    """Follow random polynomials of one total degree along paths.

    Args:
        settings: The settings.
        degree: The total degree.
        device: Where to compute.

    Returns:
        What was found, by name: how often the degree along a path is the total degree and, where not, why; the
        effective degree of every polynomial; and both with noise.
    """
    # Drawn from seed and degree alone, so that a resumed run needs no memory of it.
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + degree)
    examples = draw_examples(settings.inputs, _EXAMPLES_PER_PATH * settings.paths, settings.variables, generator)
    polynomials = RandomPolynomials.draw(
        settings.polynomials, variables=settings.variables, degree=degree, terms=settings.terms, generator=generator
    ).scaled(examples[:_SCALING])
    trace = effdeg.trace(
        polynomials.to(device),
        examples,
        paths=settings.paths,
        nodes=settings.nodes,
        sampling="chebyshev",
        seed=settings.seed * 1_000_003 + degree,
        device=device,
    )
    values, alpha = trace.values("identity"), trace.alpha[0]
    coefficients = fit(values, alpha, settings.degree)
    first, second = examples[trace.pairs].unbind(1)
    entry = _degrees(polynomials, coefficients, first - second)
    noises = torch.randn(values.shape, dtype=torch.float64, generator=generator)
    entry["noise"] = [_with_noise(fit(values + size * noises, alpha, settings.degree), size) for size in NOISE]
    return entry


def _degrees(polynomials: RandomPolynomials, coefficients: Tensor, directions: Tensor) -> dict[str, Any]:
    degree, found = polynomials.degree, degree_found(coefficients, THRESHOLD)
    leading, vanishing = leading_coefficients(polynomials, directions)
    dropped = found < degree
    # Twice the threshold: a coefficient at its very edge may fall on either side.
    visible = leading.abs() > 2 * THRESHOLD * coefficients.abs().amax(1)
    return {
        "degree": degree,
        "followed": found.numel(),
        "found": float(found.double().mean()),
        "found_coarsely": float(degree_found(coefficients, COARSE).double().mean()),
        "too_high": int((found > degree).sum()),
        "dropped": int(dropped.sum()),
        "vanishing": int((dropped & vanishing).sum()),
        "unexplained": int((dropped & ~vanishing & visible).sum()),
        "effective_degree": _over_polynomials_and_paths(coefficients, normalized=False),
        "normalized": _over_polynomials_and_paths(coefficients, normalized=True),
    }


def _over_polynomials_and_paths(coefficients: Tensor, *, normalized: bool) -> dict[str, float]:
    """Average the effective degree; both the polynomials and the paths, which they share, are draws."""
    each = effective_degree(coefficients.movedim(-1, 0)[..., None], normalized=normalized)
    value, over_polynomials = mean_and_stderr(each.mean(1))
    _, over_paths = mean_and_stderr(each.mean(0))
    return {"value": value, "stderr": math.hypot(over_polynomials, over_paths)}


def _with_noise(coefficients: Tensor, size: float) -> dict[str, float]:
    return {
        "size": size,
        "found": float(degree_found(coefficients, THRESHOLD).double().mean()),
        "effective_degree": float(effective_degree(coefficients).mean()),
    }
