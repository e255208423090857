"""Proxies along paths between examples, all from the same forward passes."""

from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.examples import Batch
from effdeg._models.inference import Model
from effdeg._models.layers import named_layers
from effdeg._models.outputs import shaped_values
from effdeg._models.settings import FitSettings, PathSettings
from effdeg._utils.statistics import mean_and_stderr
from effdeg.measure._estimator import PathTable, collect, summarize
from effdeg.measure._walk import Route, Stretch, Walk
from effdeg.proxies._activations import KINKED, ActivationFlips
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_options


@check_options
def effective_degree(model: Model, data: Any, *, normalized: bool = False, **options: Unpack[RunOptions]) -> Result:
    """Measure the effective degree Σ_k k |c_k| of probabilities, or, normalized, of logits, as the paper compares them.

    Args:
        model: Any callable.
        data: Examples; labels are not needed.
        normalized: Measure the normalized effective degree of the logits.
        **options: How the model is run, see :class:`effdeg.proxies.RunOptions`.

    Returns:
        The mean over paths and its standard error. :func:`effdeg.measure` returns more about it.

    Raises:
        NotApplicable: If the outputs are not logits, or the inputs cannot be interpolated and no ``at=`` is given.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> inputs = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # on the path the logits are (1 ± t) / 2
        >>> round(proxies.effective_degree(torch.nn.Identity(), inputs, normalized=True, paths=5).value, 4)
        0.5
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return compute_along_paths(evaluator, f"effective_degree{'_normalized' if normalized else ''}")


@check_options
def decision_regions(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Count the decision regions on a path between two examples: segments of one predicted class.

    As Somepalli et al. (2022) and Li et al. (2025) count them, but between the examples only. Regions narrower than the
    distance of two nodes can be missed.

    Args:
        model: Any callable that returns logits.
        data: Examples; labels are not needed.
        **options: How the model is run, see :class:`effdeg.proxies.RunOptions`.

    Returns:
        The mean over paths and its standard error.

    Raises:
        NotApplicable: If the outputs are not logits, or the inputs cannot be interpolated and no ``at=`` is given.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> proxies.decision_regions(torch.nn.Identity(), torch.eye(2), paths=5).value
        2.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return compute_along_paths(evaluator, "decision_regions")


@check_options
def linear_regions(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Count the linear regions that a path between two examples crosses: one, and one for each unit that flips.

    Args:
        model: A network with ReLU-like activations. Kinks of other kinds, such as those of a maximum, are not counted.
        data: Examples; labels are not needed.
        **options: How the model is run, see :class:`effdeg.proxies.RunOptions`.

    Returns:
        The mean over paths and its standard error.

    Raises:
        NotApplicable: If the model is not piecewise linear, or the inputs cannot be interpolated without ``at=``.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> proxies.linear_regions(torch.nn.ReLU(), torch.tensor([[-1.0], [1.0]]), paths=5).value
        2.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return compute_along_paths(evaluator, "linear_regions")


@check_options
def total_variation(model: Model, data: Any, **options: Unpack[RunOptions]) -> Result:
    """Measure the total variation of the probabilities along a path, Σ_i |p(α_{i+1}) − p(α_i)|, averaged over classes.

    Args:
        model: Any callable that returns logits.
        data: Examples; labels are not needed.
        **options: How the model is run, see :class:`effdeg.proxies.RunOptions`.

    Returns:
        The mean over paths and its standard error.

    Raises:
        NotApplicable: If the outputs are not logits, or the inputs cannot be interpolated and no ``at=`` is given.

    Example:
        >>> import torch
        >>> from effdeg import proxies
        >>> round(proxies.total_variation(torch.nn.Identity(), 20 * torch.eye(2), paths=5).value, 3)
        1.0
    """
    with Evaluator.open(model, data, **options) as evaluator:
        return compute_along_paths(evaluator, "total_variation")


def compute_along_paths(evaluator: Evaluator, name: str) -> Result:
    """Compute one of the proxies of this module, by its name."""
    evaluator.count_activations |= name == "linear_regions"
    table, problems = evaluator.once(("paths", evaluator.count_activations), lambda: _walk(evaluator))
    if name in problems:
        raise problems[name]
    settings: dict[str, Any] = dict(evaluator.route)
    if name.startswith("effective_degree"):
        settings["output"] = "identity" if name.endswith("normalized") else "softmax"
    else:
        del settings["degree"]
    value, stderr = mean_and_stderr(table[name])
    return Result(name, value, stderr, settings)


def _walk(evaluator: Evaluator) -> tuple[PathTable, dict[str, NotApplicable]]:
    """Return the value of each proxy on every path, from one pass along all paths, or why it has none."""
    evaluator.check_interpolable()
    route = evaluator.route
    settings = PathSettings(paths=route["paths"], nodes=route["nodes"], at=evaluator.at, seed=evaluator.seed)
    fit = FitSettings(degree=route["degree"])
    fit.check_nodes(settings.nodes)
    flips = ActivationFlips(evaluator.subject.state().values()) if evaluator.count_activations else None
    problems: dict[str, NotApplicable] = {}
    if flips is not None and any(
        isinstance(part, torch.jit.ScriptModule) for part in named_layers(evaluator.subject.model).values()
    ):
        flips.problem = "a scripted module ran, whose activations cannot be observed"

    def keep(returned: Any, points: int) -> tuple[Tensor, ...]:
        logits = shaped_values(returned, "identity", points=points)
        if flips is None:
            return (logits,)
        flipped = flips.take(points)
        if flips.problem is not None:
            problems["linear_regions"] = NotApplicable(
                f"linear regions are those of networks that are linear except for activations like ReLU "
                f"({', '.join(KINKED)}); here {flips.problem}."
            )
        return logits, flipped.to(logits.device)

    def summarize_block(stretch: Stretch) -> PathTable:
        values, columns = _PathValues(stretch, fit), {}
        for name in names:
            try:
                columns[name] = COLUMNS[name](values).double()
            except NotApplicable as error:
                problems[name] = error
                columns[name] = values.logits.new_zeros(len(values.logits), dtype=torch.float64)
        return PathTable.of(columns)

    names = [name for name in COLUMNS if flips is not None or name != "linear_regions"]
    drawn = Route.draw(evaluator.count, settings)
    walk = Walk(evaluator.subject, Batch(evaluator.inputs), drawn, evaluator.batches.size)
    blocks = ((stretch.block, summarize_block(stretch)) for stretch in walk.run(keep, flips))
    return collect(blocks, drawn, dict.fromkeys(names)), problems


class _PathValues:
    """The logits along the paths of one block, and the value of each proxy on them."""

    def __init__(self, stretch: Stretch, fit: FitSettings) -> None:
        paths, nodes = stretch.block.stop - stretch.block.start, stretch.alpha.shape[-1]
        self.logits, *flips = (each.reshape(paths, nodes, *each.shape[1:]) for each in stretch.kept)
        self._flips, self._alpha, self._fit = flips, stretch.alpha, fit

    @cached_property
    def probabilities(self) -> Tensor:
        points = self.logits.flatten(0, 1)
        try:
            return shaped_values(points, "softmax", points=len(points)).view_as(self.logits)
        except ValueError as error:  # the outputs are not logits
            raise NotApplicable(str(error)) from error

    def effective_degree(self) -> Tensor:
        return summarize(self.probabilities.flatten(2), self._alpha, self._fit)["effective_degree"]

    def effective_degree_normalized(self) -> Tensor:
        paths, nodes = self.logits.shape[:2]
        table = summarize(self.logits.reshape(paths, nodes, -1), self._alpha, self._fit)
        return table["effective_degree_normalized"]

    def decision_regions(self) -> Tensor:
        classes = self.probabilities.argmax(-1)
        # One class per example, or one for each of its tokens; a change of any is a boundary.
        changed = (classes.diff(dim=1) != 0).reshape(len(classes), classes.shape[1] - 1, -1)
        return 1 + changed.any(-1).sum(1)

    def total_variation(self) -> Tensor:
        return self.probabilities.diff(dim=1).abs().sum(1).flatten(1).mean(1)

    def linear_regions(self) -> Tensor:
        # The first node of a path does not follow the last one of the path before.
        flips: Tensor = self._flips[0][:, 1:].sum(1)
        return 1 + flips


COLUMNS = {
    "effective_degree": _PathValues.effective_degree,
    "effective_degree_normalized": _PathValues.effective_degree_normalized,
    "decision_regions": _PathValues.decision_regions,
    "total_variation": _PathValues.total_variation,
    "linear_regions": _PathValues.linear_regions,
}
