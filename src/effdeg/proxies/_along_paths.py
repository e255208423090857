"""Proxies along paths between examples, all from the same forward passes."""

import warnings
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg import functional
from effdeg._adapters.arguments import DataNote
from effdeg._adapters.examples import Batch
from effdeg._adapters.inference import Model
from effdeg._adapters.layers import named_layers
from effdeg._adapters.outputs import shaped_values
from effdeg._adapters.settings import FitSettings
from effdeg._utils.statistics import mean_and_stderr
from effdeg.measuring._estimator import PathTable, collect, summarize
from effdeg.measuring._path_runner import DrawnPaths, PathBlocks, PathRunner
from effdeg.proxies._activations import ACTIVATIONS, KINKED, ActivationFlips
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_options


@check_options
def effective_degree(model: Model, data: Any, *, normalized: bool = False, **options: Unpack[RunOptions]) -> Result:
    """Measure the effective degree Σ_k k |c_k| of the probabilities along paths between examples, as in the paper.

    Args:
        model: Any callable.
        data: Examples; labels are not needed.
        normalized: Measure the normalized effective degree Σ_k k |c_k| / Σ_k |c_k| of the logits instead.

    Returns:
        The mean over paths and its standard error, as of all proxies along paths. :func:`effdeg.measure` returns more.

    Raises:
        NotApplicable: If the outputs are not logits, or the inputs cannot be interpolated and no ``at=`` is given.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> inputs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # on the path the logits are (1 ± t) / 2
        >>> round(proxies.effective_degree(torch.nn.Identity(), inputs, normalized=True, paths=5).value, 4)
        0.5
    """
    return _compute(f"effective_degree{'_normalized' if normalized else ''}", model, data, **options)


@check_options
def decision_regions(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Count the decision regions on a path between two examples: segments of one predicted class.

    As in Somepalli et al. (2022) and Li et al. (2025), but only between the two examples. Regions narrower than the
    distance between two nodes can be missed. Arguments and errors are those of :func:`effective_degree`.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> proxies.decision_regions(torch.nn.Identity(), 4 * torch.eye(2), paths=5).value
        2.0
    """
    return _compute("decision_regions", model, data, **options)


@check_options
def linear_regions(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Count the linear regions that a path between two examples crosses: one, plus one each time a unit flips.

    Only the kinks of activations like ReLU are counted, not those of a maximum. Labels are not needed.

    Raises:
        NotApplicable: If the model is not piecewise linear, or the inputs cannot be interpolated without ``at=``.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> proxies.linear_regions(torch.nn.ReLU(), torch.tensor([[-1.0], [1.0]]), paths=5).value
        2.0
    """
    return _compute("linear_regions", model, data, **options)


@check_options
def activation_changes(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Count how often the input of an activation changes its sign on a path between two examples, averaged over units.

    Unlike :func:`linear_regions` it is defined for any elementwise activation (ReLU, GELU, SiLU, tanh, …), so also for
    transformers, and it does not grow with the number of units. A unit is one number that an activation is applied to,
    of one channel, position or token. Units that change twice between two nodes are missed, and so are activations
    within fused functions, such as those of ``nn.LSTM``. Labels are not needed.

    Raises:
        NotApplicable: If there are no activations, or they do not have the examples first, or run within TorchScript;
            or if the inputs cannot be interpolated without ``at=``.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> ends = torch.tensor([[-1.0, 2.0], [1.0, 3.0]])  # of two units, one changes its sign
        >>> proxies.activation_changes(torch.nn.GELU(), ends, paths=5).value
        0.5
    """
    return _compute("activation_changes", model, data, **options)


@check_options
def spectral_centroid(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Measure the mean frequency Σ_k k |d_k| / Σ_k |d_k| of the logits along paths, from k = 0 to ``degree``.

    d_k are the coefficients of the cosine series f(α) ≈ Σ_k d_k cos(k π α), by the type-II discrete cosine transform:
    the normalized effective degree with plain frequencies in place of Chebyshev polynomials. In the order of the nodes,
    which are dense towards the ends of a path as Chebyshev's are, the transform would return Chebyshev coefficients
    again; so the logits are first interpolated linearly at as many equidistant points. Labels are not needed.

    Raises:
        NotApplicable: If the inputs cannot be interpolated and no ``at=`` is given.

    Example:
        >>> import math, torch
        >>> from effdeg import proxies
        >>> ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> found = proxies.spectral_centroid(lambda x: torch.cos(3 * math.pi * x), ends, paths=5)
        >>> round(found.value, 1)
        3.0
    """
    return _compute("spectral_centroid", model, data, **options)


@check_options
def total_variation(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Measure the total variation of the probabilities along a path, Σ_i |p(α_{i+1}) − p(α_i)|, averaged over classes.

    Arguments and errors are those of :func:`effective_degree`.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> round(proxies.total_variation(torch.nn.Identity(), 20 * torch.eye(2), paths=5).value, 3)
        1.0
    """
    return _compute("total_variation", model, data, **options)


def _compute(name: str, model: Model, data: Any, **options: Any) -> Result:
    with Evaluator.open(model, data, **options) as evaluator:
        evaluator.count_activations |= name in COUNTED
        table, problems = evaluator.once(("paths", evaluator.count_activations), lambda: _run_along_paths(evaluator))
    if name in problems:
        raise problems[name]
    settings: dict[str, Any] = {"paths": evaluator.paths.paths, "nodes": evaluator.paths.nodes}
    if name.startswith(("effective_degree", "spectral")):
        settings["degree"] = evaluator.fit.degree
    if name.startswith("effective_degree"):
        settings["output"] = "identity" if name.endswith("normalized") else "softmax"
    value, stderr = mean_and_stderr(table[name])
    return Result(name, value, stderr, settings)


_OF_PROBABILITIES = ("effective_degree", "decision_regions", "total_variation")
COUNTED = {"linear_regions", "activation_changes"}
"""What is counted within the model while it runs along paths."""
_NAMES = (*_OF_PROBABILITIES, "effective_degree_normalized", "spectral_centroid", *sorted(COUNTED))


def _run_along_paths(evaluator: Evaluator) -> tuple[PathTable, dict[str, NotApplicable]]:
    evaluator.check_interpolable()
    runner = evaluator.runner
    flips = ActivationFlips(runner.state().values()) if evaluator.count_activations else None
    problems: dict[str, NotApplicable] = {}
    if flips is not None and any(
        isinstance(each, torch.jit.ScriptModule) for each in named_layers(runner.model).values()
    ):
        flips.problem = flips.unseen = "a scripted module ran, whose activations cannot be observed"

    def keep(returned: Any, points: int) -> tuple[Tensor, ...]:
        logits = shaped_values(returned, "identity", points=points)
        return (logits,) if flips is None else (logits, flips.take(points).to(logits.device))

    drawn = DrawnPaths.draw(evaluator.count, evaluator.paths)
    path_runner = PathRunner(runner, Batch(evaluator.inputs), drawn, evaluator.batches.size)
    groups = ((each.blocks, _summarize(each, evaluator.fit, problems)) for each in path_runner.run(keep, flips))
    table = collect(groups, drawn, dict.fromkeys(_NAMES))
    for note in path_runner.notes:
        warnings.warn(note, DataNote, stacklevel=2)
    if flips is not None and flips.problem is not None:
        problems["linear_regions"] = NotApplicable(
            f"linear regions are defined for networks that are linear except for activations like ReLU "
            f"({', '.join(KINKED)}); here {flips.problem}."
        )
    if flips is not None and flips.unseen is not None:
        problems["activation_changes"] = NotApplicable(
            f"changes are counted at the inputs of activations ({', '.join(sorted(ACTIVATIONS))}); here {flips.unseen}."
        )
    return table, problems


def _summarize(part: PathBlocks, fit: FitSettings, problems: dict[str, NotApplicable]) -> PathTable:
    """Return the value of each proxy on the paths of some blocks; zeros, and a problem, where it has none."""
    logits, *flips = (each.unflatten(0, (-1, part.alpha.shape[-1])) for each in part.kept)
    paths, nodes = logits.shape[:2]
    columns = dict.fromkeys(_NAMES, logits.new_zeros(paths, dtype=torch.float64))
    values, name = logits.reshape(paths, nodes, -1), "effective_degree_normalized"
    columns[name] = summarize(values, part.alpha, fit)[name]
    columns["spectral_centroid"] = _find_centroids(values, part.alpha, fit.degree)
    if flips:
        # The first node of a path does not follow the last one of the path before.
        crossed, columns["activation_changes"] = flips[0][:, 1:].sum(1).unbind(1)
        columns["linear_regions"] = 1 + crossed
    try:
        points = logits.flatten(0, 1)
        probabilities = shaped_values(points, "softmax", points=len(points), look=True, whose="network").view_as(logits)
    except ValueError as error:  # the outputs are not logits
        problems |= dict.fromkeys(_OF_PROBABILITIES, NotApplicable(str(error)))
        return PathTable.of(columns)
    columns["effective_degree"] = summarize(probabilities.flatten(2), part.alpha, fit)["effective_degree"]
    return PathTable.of(columns | compare_neighbors(probabilities))


def _find_centroids(values: Tensor, alpha: Tensor, degree: int) -> Tensor:
    """Return the spectral centroid on each path, from values of shape ``(paths, nodes, outputs)``."""
    paths, nodes, _ = values.shape
    values, alpha = values.double(), alpha.to(values.device).expand(paths, -1).contiguous()
    # Linear interpolation at the middles of equal parts of a path; beyond the last node its value stays.
    steps = torch.arange(nodes, dtype=torch.float64, device=values.device)
    points = ((steps + 0.5) / nodes).expand(paths, -1).contiguous()
    after = torch.searchsorted(alpha, points).clamp(1, nodes - 1)
    start, stop = alpha.gather(1, after - 1), alpha.gather(1, after)
    weights = ((points - start) / (stop - start)).clamp(0, 1)
    rows = torch.arange(paths, device=values.device)[:, None]
    values = torch.lerp(values[rows, after - 1], values[rows, after], weights[..., None])
    # The cosine transform, by a Fourier transform of the even points, then the odd ones from the last to the first.
    ordered = torch.cat([values[:, ::2], values[:, 1::2].flip(1)], dim=1)
    turns = torch.polar(torch.ones_like(steps), -torch.pi / (2 * nodes) * steps)
    series = (torch.fft.fft(ordered, dim=1) * turns[:, None]).real[:, : degree + 1]
    series[:, 0] /= 2
    return functional.effective_degree(series, normalized=True)


def compare_neighbors(probabilities: Tensor) -> dict[str, Tensor]:
    """Return the proxies that compare neighboring nodes, of each path.

    Args:
        probabilities: Of shape ``(paths, nodes, …, classes)``.
    """
    paths, nodes = probabilities.shape[:2]
    # One class per example, or one for each of its tokens; a change of any is a boundary.
    changed = (probabilities.argmax(-1).diff(dim=1) != 0).reshape(paths, nodes - 1, -1)
    return {
        "total_variation": probabilities.diff(dim=1).abs().sum(1).flatten(1).mean(1).double(),
        "decision_regions": 1 + changed.any(-1).sum(1).double(),
    }
