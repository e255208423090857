"""Margins: how far the right class is ahead of the next."""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._models.inference import Model
from effdeg._models.outputs import as_values
from effdeg._models.spaces import open_space
from effdeg._utils.checks import check_count
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import take
from effdeg.proxies._linear_maps import spectral_norms
from effdeg.proxies._result import Result
from effdeg.proxies._study import NotApplicable, Running, Study, check_finite, opened, proxy

PERCENTILES = (10, 50)
"""The percentiles that a table of proxies lists: the tenth is that of Jiang et al. (2020)."""


@proxy
def margin(
    model: Model | Study,
    data: Any = None,
    *,
    percentile: float = 10,
    spectral: bool = False,
    **running: Unpack[Running],
) -> Result:
    """Return a percentile of the output margin: the logit of the right class less the largest other. Large is good.

    Args:
        model: Any callable that returns logits.
        data: Examples with class ids as labels.
        percentile: Which percentile over the examples, between 0 and 100.
        spectral: Divide by the product of the spectral norms, as in the bound of Bartlett et al. (2017).
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The percentile, with a standard error over examples (Woodruff's: half the distance between the percentiles that
        are one standard error of the percentage away).
    """
    check_percentile(percentile)
    with opened(model, data, **running) as study:
        value, stderr = _quantile(_margins(study), percentile / 100)
        scale = _product(spectral_norms(study)) if spectral else 1.0
        name = f"{'spectral_' if spectral else ''}margin@{percentile:g}"
        return Result(name, value / scale, stderr / scale, {"percentile": percentile, "examples": study.count})


@proxy
def mixup_margin(model: Model | Study, data: Any = None, *, pairs: int = 1000, **running: Unpack[Running]) -> Result:
    """Return the mean distance to the decision boundary halfway between two examples of one class. Large is good.

    The midpoints are those of "label-wise mixup", with which Natekar and Sharma won the competition on predicting
    generalization at NeurIPS 2020; the distance is, to first order, the margin of the shared class at the midpoint
    divided by the norm of its gradient. It is negative where another class wins.

    Args:
        model: Any callable that returns logits.
        data: Examples with class ids as labels.
        pairs: How many pairs to draw.
        **running: How the model is run, see :class:`effdeg.proxies.Running`.

    Returns:
        The mean over pairs and its standard error.
    """
    check_count("pairs", pairs, least=2)
    with opened(model, data, **running) as study:
        labels = _class_ids(study)
        study.check_interpolable()
        drawn = _pairs_of_one_class(labels, pairs, study.seed)
        space = open_space(study.subject, study.at)

        def run(part: slice) -> Tensor:
            first, second = (take(study.inputs, drawn[part, end]) for end in (0, 1))
            between = space.join(first, second, lambda function, total: function(slice(0, total)))
            rows = torch.arange(part.stop - part.start)
            ends = between.ends()[0]
            for end in ends:
                end.requires_grad_()
            with torch.enable_grad():
                halfway = torch.full((len(rows),), 0.5, dtype=torch.float64)
                logits = as_values(between.run(rows, halfway)[0], "identity", points=len(rows))
                ahead = _ahead(logits, labels[drawn[part, 0]].to(logits.device))
                gradients = torch.autograd.grad(ahead.sum(), ends, allow_unused=True)
            squares = torch.zeros(len(rows), dtype=torch.float64)
            for gradient in gradients:
                if gradient is not None:
                    # A midpoint moves half as much as its end.
                    squares += (2 * gradient.double()).square().reshape(len(rows), -1).sum(1).cpu()
            return torch.stack([ahead.detach().double().cpu(), squares.sqrt()], dim=1)

        found = torch.cat(study.batches.run(run, pairs))
        check_finite("outputs or their derivatives between examples", found)
        # Where nothing changes with the inputs there is no boundary to have a distance to.
        ahead, slope = found[found[:, 1] > 0].unbind(1)
        if len(ahead) < 2:
            raise NotApplicable("the outputs do not change with the inputs between examples: there is no boundary.")
        value, stderr = mean_and_stderr(ahead / slope)
        settings = {"pairs": pairs, "without slope": pairs - len(ahead), "examples": study.count}
        return Result("mixup_margin", value, stderr, settings)


def check_percentile(percentile: float) -> None:
    """Raise unless it is a percentile."""
    if not 0 <= percentile <= 100:
        raise ValueError(f"percentile={percentile!r} must lie between 0 and 100.")


def _margins(study: Study) -> Tensor:
    labels, outputs = _class_ids(study), study.outputs()
    if outputs.dim() != 2:
        raise NotApplicable(f"a margin is one of logits, one row per example, not of outputs {tuple(outputs.shape)}.")
    return _ahead(outputs.double(), labels)


def _product(norms: list[float]) -> float:
    product = math.prod(norms)
    if not 0 < product < math.inf:
        raise NotApplicable(f"the product of {len(norms)} spectral norms is {product}: no margin can be divided by it.")
    return product


def _quantile(sample: Tensor, share: float) -> tuple[float, float]:
    spread = math.sqrt(share * (1 - share) / len(sample))
    around = torch.tensor([share, max(0.0, share - spread), min(1.0, share + spread)], dtype=sample.dtype)
    value, low, high = sample.quantile(around).tolist()
    return value, (high - low) / 2


def _ahead(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how far the labelled class is ahead of the best other."""
    classes = logits.shape[1]
    if classes < 2:
        raise NotApplicable("a margin is that of one logit to another, and the model has a single output.")
    if int(labels.max()) >= classes:
        raise ValueError(
            f"labels from {int(labels.min())} to {int(labels.max())} do not match outputs of {classes} numbers per "
            "example; a margin is that of one class id per example among logits."
        )
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return (own - others).squeeze(1)


def _class_ids(study: Study) -> Tensor:
    study.check_data(labels=True)
    labels = study.labels
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() != 1:
        given = (
            f"{labels.dtype} of shape {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        )
        raise NotApplicable(f"margins need one class id per example as label; the labels are {given}.")
    if int(labels.min()) < 0:
        raise NotApplicable(
            f"labels from {int(labels.min())} to {int(labels.max())} are no class ids: leave negative ones out."
        )
    return labels.long().cpu()


def _pairs_of_one_class(labels: Tensor, count: int, seed: int) -> Tensor:
    """Draw pairs of different examples of one class; an example that is alone in its class is paired with itself."""
    generator = torch.Generator().manual_seed(seed)
    first, offset = torch.randint(len(labels), (count,), generator=generator), torch.rand(count, generator=generator)
    order = labels.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    sizes = labels.bincount()
    starts = sizes.cumsum(0) - sizes
    size, start = sizes[labels[first]], starts[labels[first]]
    step = 1 + (offset * (size - 1)).long()
    second = order[start + (place[first] - start + step) % size]
    return torch.stack([first, second], dim=1)
