"""What proxies see along paths between examples, all from the same forward passes."""

from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.examples import Batch
from effdeg._models.inference import Model
from effdeg._models.layers import named_layers
from effdeg._models.outputs import shaped_values
from effdeg._models.spaces import open_space
from effdeg._utils.device import receive
from effdeg._utils.statistics import mean_and_stderr
from effdeg.functional import DAMPING
from effdeg.measure._estimator import DEGREE, NORMALIZED, Fit, collect, late
from effdeg.measure._walk import Route, Stretch, Walk
from effdeg.proxies._activations import KINKED, ActivationFlips
from effdeg.proxies._result import Result
from effdeg.proxies._study import NotApplicable, Running, Study, opened, proxy


@proxy
def effective_degree(
    model: Model | Study, data: Any = None, *, normalized: bool = False, **running: Unpack[Running]
) -> Result:
    """Measure the effective degree: of probabilities, or, normalized, of logits; the two that the paper compares.

    Args:
        model: Any callable.
        data: Examples; labels are not needed.
        normalized: Measure the normalized effective degree of the logits.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over paths and its standard error. :func:`effdeg.measure` gives more of it.
    """
    with opened(model, data, **running) as study:
        settings = {**study.route, "output": "identity" if normalized else "softmax"}
        return _mean(study, f"effective_degree{'_normalized' if normalized else ''}", settings)


@proxy
def decision_regions(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Count the decision regions on a path between two examples: stretches of one predicted class.

    As Somepalli et al. (2022) and Li et al. (2025) count them, but between the examples only. Regions narrower than the
    distance of two nodes can be missed.

    Args:
        model: Any callable that returns logits.
        data: Examples; labels are not needed.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over paths and its standard error.
    """
    with opened(model, data, **running) as study:
        return _mean(study, "decision_regions", _nodes(study))


@proxy
def linear_regions(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Count the linear regions that a path between two examples crosses: one, and one for each unit that flips.

    Args:
        model: A network with ReLU-like activations. Kinks of other kinds, such as those of a maximum, are not counted.
        data: Examples; labels are not needed.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over paths and its standard error.
    """
    with opened(model, data, **running) as study:
        study.count_activations = True
        return _mean(study, "linear_regions", _nodes(study))


@proxy
def total_variation(model: Model | Study, data: Any = None, **running: Unpack[Running]) -> Result:
    """Measure the total variation of the probabilities along a path: all their rises and falls, averaged over classes.

    Args:
        model: Any callable that returns logits.
        data: Examples; labels are not needed.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over paths and its standard error.
    """
    with opened(model, data, **running) as study:
        return _mean(study, "total_variation", _nodes(study))


def _nodes(study: Study) -> dict[str, int]:
    return {name: study.route[name] for name in ("paths", "nodes")}


def _mean(study: Study, name: str, settings: dict[str, Any]) -> Result:
    columns, problems = study.once(("paths", study.count_activations), lambda: _walk(study))
    if name in problems:
        raise problems[name]
    value, stderr = mean_and_stderr(columns[name])
    return Result(name, value, stderr, settings)


def _walk(study: Study) -> tuple[dict[str, Tensor], dict[str, NotApplicable]]:
    """Walk all paths once and give each proxy's value on every path, or the reason why there is none."""
    study.check_interpolable()
    paths, nodes, degree = (study.route[name] for name in ("paths", "nodes", "degree"))
    fit = Fit.on(nodes, degree=degree, basis="chebyshev", components=None, damping=DAMPING)
    flips = ActivationFlips(study.subject.state().values()) if study.count_activations else None
    problems: dict[str, NotApplicable] = {}
    if flips is not None and any(
        isinstance(part, torch.jit.ScriptModule) for part in named_layers(study.subject.model).values()
    ):
        flips.problem = "a scripted module ran, into which nobody can look"

    def keep(returned: Any, points: int) -> tuple[Tensor, ...]:
        logits = shaped_values(returned, "identity", points=points)
        if flips is None:
            return (logits,)
        flipped = flips.take(points)
        if flips.problem is not None:
            problems["linear_regions"] = NotApplicable(
                f"linear regions are those of networks that are linear but for activations of the kind of ReLU "
                f"({', '.join(KINKED)}); here {flips.problem}."
            )
        return logits, flipped.to(logits.device)

    def row(stretch: Stretch) -> Tensor:
        seen = _Seen(stretch, fit)
        columns = []
        for name in columns_of:
            try:
                columns.append(getattr(seen, name)().double())
            except NotApplicable as error:
                problems[name] = error
                columns.append(seen.logits.new_zeros(len(seen.logits), dtype=torch.float64))
        return torch.stack(columns, dim=1)

    columns_of = COLUMNS if flips is not None else COLUMNS[:-1]
    route = Route.draw(study.count, paths=paths, nodes=nodes, sampling="cosine", seed=study.seed)
    space = open_space(study.subject, study.at)
    walk = Walk(study.subject, space, Batch(study.inputs), route, study.batches.size)
    rows = ((stretch.block, receive(row(stretch))) for stretch in walk.run(keep, flips))
    table = collect(late(rows), route, columns=len(columns_of), tolerance=None, update=lambda *_: None)
    return dict(zip(columns_of, table.unbind(1), strict=True)), problems


COLUMNS = ("effective_degree", "effective_degree_normalized", "decision_regions", "total_variation", "linear_regions")


class _Seen:
    """What was seen along the paths of one block, and what each proxy makes of it."""

    def __init__(self, stretch: Stretch, fit: Fit) -> None:
        paths, nodes = stretch.block.stop - stretch.block.start, stretch.alpha.shape[-1]
        self.logits, *flips = (each.reshape(paths, nodes, *each.shape[1:]) for each in stretch.kept)
        self._flips, self._alpha, self._fit = flips, stretch.alpha, fit

    @cached_property
    def probabilities(self) -> Tensor:
        points = self.logits.flatten(0, 1)
        try:
            return shaped_values(points, "softmax", points=len(points)).view_as(self.logits)
        except ValueError as error:  # of outputs that are no logits
            raise NotApplicable(str(error)) from error

    def effective_degree(self) -> Tensor:
        return self._fit.table(self.probabilities.flatten(2), self._alpha)[:, DEGREE]

    def effective_degree_normalized(self) -> Tensor:
        paths, nodes = self.logits.shape[:2]
        return self._fit.table(self.logits.reshape(paths, nodes, -1), self._alpha)[:, NORMALIZED]

    def decision_regions(self) -> Tensor:
        classes = self.probabilities.argmax(-1)
        # One class per example, or one for each of its tokens, any of which makes a border.
        changed = (classes.diff(dim=1) != 0).reshape(len(classes), classes.shape[1] - 1, -1)
        return 1 + changed.any(-1).sum(1)

    def total_variation(self) -> Tensor:
        return self.probabilities.diff(dim=1).abs().sum(1).flatten(1).mean(1)

    def linear_regions(self) -> Tensor:
        # The first node of a path has nothing to do with the last of the one before.
        flips: Tensor = self._flips[0][:, 1:].sum(1)
        return 1 + flips
