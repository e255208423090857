"""Margins: how far the logit of the correct class lies above the next."""

import math
import warnings
from typing import Any, Unpack

import torch
from torch import Tensor

from effdeg._adapters.arguments import DataNote, note_floating_masks
from effdeg._adapters.inference import Model
from effdeg._adapters.labels import check_range, read_class_ids
from effdeg._adapters.outputs import are_distributions, as_values
from effdeg._adapters.spaces import Space
from effdeg._utils.checks import check_count
from effdeg._utils.statistics import mean_and_stderr
from effdeg._utils.tree import take
from effdeg.proxies._evaluator import Evaluator, NotApplicable, Result, RunOptions, check_finite, check_options
from effdeg.proxies._norms import spectral_norms


@check_options
def margin(
    model: Model, data: Any, *, percentile: float = 10, spectral: bool = False, **options: Unpack[RunOptions]
) -> Result:
    """Return a percentile over examples of the margin f(x)_y - max_{k ≠ y} f(x)_k. Larger is better.

    Args:
        model: Any callable that returns logits f(x), examples × classes.
        data: Examples with class ids y as labels, as for :func:`evaluate`.
        percentile: The percentile, between 0 and 100.
        spectral: Divide by the product of the spectral norms, as in the bound of Bartlett et al. (2017).

    Returns:
        The percentile, with a standard error over examples (Woodruff's: half the distance between the percentiles that
        are one standard error of the percentage away).

    Raises:
        ValueError: Labels exceed the classes, or outputs are NaN or infinite.
        NotApplicable: The labels are not class ids, or the model does not return several logits per example.

    Example:
        >>> import torch, effdeg
        >>> logits = torch.tensor([[3.0, 1.0], [0.0, 4.0], [5.0, 2.0]])
        >>> effdeg.proxies.margin(torch.nn.Identity(), (logits, torch.tensor([0, 1, 0])), percentile=50).value
        3.0
    """
    check_percentile("percentile", percentile)
    with Evaluator.open(model, data, **options) as evaluator:
        labels, outputs = _class_ids(evaluator), evaluator.outputs()
        if outputs.dim() != 2:
            shape = tuple(outputs.shape)
            raise NotApplicable(f"margins need logits, one row per example, not outputs of shape {shape}.")
        margins = _margins(outputs.double(), labels)
        norms = spectral_norms(evaluator) if spectral else []
    scale = math.prod(norms)
    if not 0 < scale < math.inf:
        raise NotApplicable(f"the product of {len(norms)} spectral norms is {scale}: no margin can be divided by it.")
    share = percentile / 100
    spread = math.sqrt(share * (1 - share) / len(margins))
    around = margins.new_tensor([share, max(0.0, share - spread), min(1.0, share + spread)])
    value, low, high = margins.quantile(around).tolist()
    name = f"{'spectral_' if spectral else ''}margin@{percentile:g}"
    settings = {"percentile": percentile, "examples": evaluator.count}
    stderr = (high - low) / 2 if len(margins) > 1 else math.inf
    return Result(name, value / scale, stderr / scale, settings)


@check_options
def mixup_margin(model: Model, data: Any, *, pairs: int = 1000, **options: Unpack[RunOptions]) -> Result:
    """Return the mean distance to the decision boundary from midpoints of two examples of a class. Larger is better.

    The midpoints m = (x + x') / 2 are those of "label-wise mixup", with which Natekar and Sharma won the competition on
    predicting generalization at NeurIPS 2020. With the margin g(m) = f(m)_y - max_{k ≠ y} f(m)_k of the shared class
    y, the distance is, to first order, g(m) / |∇g(m)|. It is negative where another class wins.

    The result is the mean over so many random ``pairs`` and its standard error. The other arguments are those of
    :func:`margin`.

    Raises:
        ValueError: Labels exceed the classes, or outputs are NaN or infinite.
        NotApplicable: The labels are not class ids, the inputs are integers, or the outputs do not depend on them.

    Example:
        The logits (x, -x) have the boundary x = 0:

        >>> import torch, effdeg
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> effdeg.proxies.mixup_margin(lambda x: torch.cat([x, -x], 1), (x, torch.tensor([0, 0]))).value
        2.0
    """
    check_count("pairs", pairs, least=2)
    with Evaluator.open(model, data, **options) as evaluator:
        labels = _class_ids(evaluator)
        evaluator.check_interpolable()
        if evaluator.at is None and (note := note_floating_masks(evaluator.inputs)):
            warnings.warn(note, DataNote, stacklevel=3)
        drawn = _draw_pairs_of_one_class(labels, pairs, evaluator.seed)
        space = Space(evaluator.runner, evaluator.at)

        def run(part: slice) -> Tensor:
            first, second = (take(evaluator.inputs, drawn[part, end]) for end in (0, 1))
            between = space.join(first, second, lambda function, total: function(slice(0, total)))
            rows, ends = torch.arange(part.stop - part.start, device="cpu"), between.ends()[0]
            for end in ends:
                end.requires_grad_()
            with torch.enable_grad():
                halfway = torch.full((len(rows),), 0.5, dtype=torch.float64, device="cpu")
                logits = as_values(between.run(rows, halfway)[0], "identity", points=len(rows))
                margins = _margins(logits, labels[drawn[part, 0]].to(logits.device))
                gradients = torch.autograd.grad(margins.sum(), ends, materialize_grads=True)
            squares = torch.zeros_like(halfway)
            for gradient in gradients:
                # A midpoint moves half as much as its end.
                squares += (2 * gradient.double()).square().reshape(len(rows), -1).sum(1).cpu()
            return torch.stack([margins.detach().double().cpu(), squares.sqrt()], dim=1)

        rows = torch.cat(evaluator.batches.run(run, pairs))
    check_finite("outputs or their derivatives between examples", rows)
    # Where the outputs do not change with the inputs there is no boundary.
    margins, slopes = rows[rows[:, 1] > 0].unbind(1)
    if len(margins) < 2:
        raise NotApplicable("the outputs do not change with the inputs between examples: there is no boundary.")
    value, stderr = mean_and_stderr(margins / slopes)
    settings = {"pairs": pairs, "without slope": pairs - len(margins), "examples": evaluator.count}
    return Result("mixup_margin", value, stderr, settings)


def check_percentile(name: str, percentile: float) -> None:
    """Raise unless a percentile lies between 0 and 100."""
    if not 0 <= percentile <= 100:
        raise ValueError(f"{name}={percentile!r} must lie between 0 and 100.")


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logit of each example's class minus the largest other logit."""
    classes = logits.shape[1]
    if classes < 2:
        raise NotApplicable("a margin compares two logits, and the model has a single output.")
    check_range(labels, "the labels", classes)
    if are_distributions(logits):
        raise NotApplicable(
            "the outputs are probabilities already: none is negative, and they sum to 1 or 100. Let the model return "
            "logits."
        )
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return (own - others).squeeze(1)


def _class_ids(evaluator: Evaluator) -> Tensor:
    evaluator.check_data(labels=True)
    try:
        ids = read_class_ids(evaluator.labels, "the labels")
        check_range(ids, "the labels")
    except ValueError as error:
        raise NotApplicable(f"margins need labels: {error}") from error
    return ids


def _draw_pairs_of_one_class(labels: Tensor, count: int, seed: int) -> Tensor:
    """Draw pairs of different examples of one class; an example that is alone in its class is paired with itself."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(len(labels), (count,), generator=generator, device="cpu")
    offset = torch.rand(count, generator=generator, dtype=torch.float32, device="cpu")
    order = labels.argsort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device="cpu")
    sizes = labels.bincount()
    starts = sizes.cumsum(0) - sizes
    size, start = sizes[labels[first]], starts[labels[first]]
    step = 1 + (offset * (size - 1)).long()
    second = order[start + (place[first] - start + step) % size]
    return torch.stack([first, second], dim=1)
