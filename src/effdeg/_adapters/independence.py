"""A test of whether a model treats the examples of a batch independently of each other, and without noise."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effdeg._adapters.inference import ModelRunner, seed_everything
from effdeg._adapters.layers import eager
from effdeg._adapters.outputs import as_values
from effdeg._utils.tree import Tree, tensors

POINTS = 8
"""Points in each of the two batches of the test."""

TOLERANCE = 1e-3
"""Smallest change, as a share of the outputs' spread, that counts. As a jump along a path, between two batches, it adds
up to degree × 1e-3 of the spread to the effective degree: 4% at degree 40, about the error of a measurement."""


RunPoints = Callable[[Tensor, Tensor], tuple[Any, Tensor | None]]
"""Runs a model at one point of each row, such as of a path; returns what it returned, and what was replaced."""


def warn_of_dependent_rows(
    runner: ModelRunner, run_points: RunPoints, keep: Callable[[Any, int], Tree] | None, *, count: int, most: int
) -> str | None:
    """Warn if a model's outputs for a point depend on the other points of its batch, on chance or on earlier batches.

    There are ``count`` paths. ``keep`` selects the outputs that count, by default as :func:`as_values` does. A model
    that cannot be run on a few points is tried on ``most``, those of a batch; if that fails too, return a note on it.
    """
    if min(POINTS, most) < 2:
        return None

    def run(rows: Tensor, alpha: Tensor, seed: int) -> Tree:
        with seed_everything(seed), eager():
            returned, replaced = run_points(rows, alpha)
            points = len(rows)
            kept = keep(returned, points) if keep is not None else as_values(returned, "identity", points=points)
            return kept, replaced

    with runner.isolate():
        for points in dict.fromkeys((min(POINTS, most), most)):
            try:
                dependence, noise = measure_dependence(
                    run, paths=count, points=points, eps=torch.finfo(runner.precision()).eps
                )
                break
            except Exception as error:  # if it is general, the measurement itself raises it, with the proper message
                problem = f"the model failed on {points} points ({type(error).__name__}: {error})"
        else:
            return (
                "whether the outputs for an example depend on the other examples of its batch could not be checked: "
                f"{' '.join(problem.split())[:200]}. If they do, the result depends on batch_size=."
            )
    name = type(runner.model).__name__
    if dependence:
        warnings.warn(
            f"the outputs of the model ({name}) for an example depend on the other examples in its batch: changing "
            f"those moved an output by {dependence:.2g} times the outputs' spread. The result depends on how "
            "the points of paths are divided into batches. Usual causes: a recurrent or attention layer without "
            "batch_first=True, BatchNorm in training mode inside a function (call .eval(), or pass the nn.Module "
            "itself), other statistics over the batch, or rows that are compared with each other.",
            stacklevel=2,
        )
    elif noise:
        warnings.warn(
            f"the model ({name}) returns different outputs for the same point: they differ by {noise:.2g} times the "
            "outputs' spread, and noise counts as complexity, at any degree. Usual causes: dropout in training mode "
            "inside a function (call .eval(), or pass the nn.Module itself), a model that samples, or one that keeps a "
            "state from call to call (pass a function that resets it before each).",
            stacklevel=2,
        )
    return None


def measure_dependence(
    run: Callable[[Tensor, Tensor, int], Tree], *, paths: int, points: int, eps: float
) -> tuple[float, float]:
    """Return how far outputs for a point move when the rest of its batch changes, and when nothing does.

    Both are the largest change of an output, as a share of the outputs' spread, and 0 if it is no more than rounding;
    the first is 0 also if the outputs change from run to run, which the second then tells. ``run`` seeds the model's
    random numbers as it is told, since dropout that was left on is no dependence.

    Two batches of one size, so that rounding cancels, share their first point, which detects a dependence on later
    rows, and their last, for earlier rows; those between are other points, or copies of the last. Equal points within
    the second batch detect noise, as does another seed, where they share it; the first batch, run again, a state.
    """
    rows, alpha = torch.arange(points, device="cpu") % paths, torch.zeros(points, device="cpu")
    alpha[0], alpha[-1] = 1 / 3, 2 / 3
    between = rows.new_tensor(range(1, points - 1) if points > 2 else [0])
    shared = rows.new_tensor([0, points - 1] if points > 2 else [1])
    # Between them ends of paths, which lie further out than other points; then copies of the last point.
    one = rows, alpha.index_fill(0, between, 0.0)
    other = rows.index_fill(0, between, int(rows[-1])), alpha.index_fill(0, between, 2 / 3)

    def run_batch(batch: tuple[Tensor, Tensor], seed: int = 0) -> list[Tensor]:
        kept = [
            each
            for each in tensors(run(*batch, seed))
            if each.is_floating_point() and each.dim() and len(each) == points
        ]
        return [each.to(torch.promote_types(each.dtype, torch.float32)) for each in kept]

    first, second = run_batch(one), run_batch(other)
    if len(first) != len(second):
        return 0.0, 0.0
    dependence = find_largest_change(first, second, shared, shared, eps)
    equal = rows.new_tensor(range(int(between[0]), points))
    noise = max(
        find_largest_change(second, second, equal[:-1], equal[1:], eps),
        find_largest_change(second, run_batch(other, seed=1), equal, equal, eps),
    )
    # Outputs that change from run to run anyway show nothing about the rest of the batch.
    if dependence and (change := find_largest_change(first, run_batch(one), shared, shared, eps)):
        return 0.0, max(noise, change)
    return dependence, noise


def find_largest_change(one: list[Tensor], other: list[Tensor], rows: Tensor, other_rows: Tensor, eps: float) -> float:
    """Return the largest change of any output between rows, as a share of the spread; 0 if it is only rounding."""
    largest = 0.0
    for before, after in zip(one, other, strict=False):
        if before.shape != after.shape or before.numel() == 0:
            continue
        both = torch.cat([before, after])
        moved = (before[rows.to(both.device)] - after[other_rows.to(both.device)]).abs().max()
        spread, size = (both - both.mean(0)).abs().max(), both.abs().max()
        change, scale, magnitude = torch.stack([moved, spread, size]).tolist()
        # A few units in the last place, for kernels that sum in no fixed order.
        if change > max(TOLERANCE * scale, 4 * eps * magnitude):
            largest = max(largest, change / scale)
    return largest
