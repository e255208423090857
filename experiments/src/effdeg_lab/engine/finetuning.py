"""Where a fine-tuned network starts from: a head that fits its features, and the weights between start and end."""

import math
import statistics
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import effdeg_lab.engine.evaluation as evaluation
from effdeg_lab.data.images import Crop
from effdeg_lab.data.shifts import TestSet, find_shifts, read_classes
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.interpolation import measure_curve
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import evaluating
from effdeg_lab.models import get_margin
from effdeg_lab.models.pretrained import ImageClassifier

TestImages = tuple[Tensor, Tensor] | TestSet
_CHUNK, _TEST = 500, "test"
ALONG = 2000
"""The number of images of each test set, or fewer, that weights between start and end are tested on."""
# The tolerance for the largest derivative of the mean loss, in the coordinates of the search.
_TOLERANCE = 1e-7
# Steps in the same coordinates, and how often the coordinates are chosen anew.
_STEPS, _ROUNDS = 40, 50
_LARGE = 1e-5  # above this the minimum was missed


@torch.no_grad()
def fit_head(model: nn.Module, examples: DeviceExamples, settings: Training) -> None:
    """Replace the head of a network by a logistic regression on the features of its training images.

    The images are used as in evaluations, neither cropped nor flipped. The penalty is scikit-learn's default: for N
    images, the loss is their mean cross-entropy plus half the squared norm of the head, divided by N.
    """
    if not isinstance(model, ImageClassifier):
        raise TypeError(f"start_from=probe needs an ImageClassifier; model={settings.model} is {type(model).__name__}.")
    split, device = examples.train, examples.train.labels.device
    with evaluating(model, settings.precision):
        chunks = split.chunks(_CHUNK)
        found = [(model.encode(examples.normalize(inputs)).float(), labels) for inputs, labels in chunks]
    share = tuple(torch.cat(each).cpu() for each in zip(*found, strict=True))
    features, labels = (torch.cat(each).to(device) for each in zip(*evaluation.collect(split, share), strict=True))
    with torch.enable_grad():
        weight, bias = fit_logistic(features, labels, examples.classes, decay=1 / len(labels))
    model.head.weight.copy_(weight)
    model.head.bias.copy_(bias)


def fit_logistic(features: Tensor, labels: Tensor, classes: int, *, decay: float) -> tuple[Tensor, Tensor]:
    r"""Return the weights, classes × D, and the biases of the logistic regression that fits features, N × D, best.

    They minimize

    .. math:: \frac{1}{N} \sum_n -\log \operatorname{softmax}(W x_n + b)_{y_n}
        + \frac{\lambda}{2} (\lVert W \rVert^2 + \lVert b \rVert^2),

    with the decay :math:`\lambda > 0`. It is strongly convex, so there is one minimum, independent of any random
    numbers; L-BFGS finds it in float64, and a warning says so if 2,000 steps do not reach it.
    """
    if not bool(features.isfinite().all()):
        raise ValueError("the features are not all finite.")
    x = torch.cat([features.double(), torch.ones_like(features[:, :1], dtype=torch.float64)], dim=1)
    head, slope = torch.zeros(classes, x.shape[1], dtype=x.dtype, device=x.device), math.inf
    for _ in range(_ROUNDS):
        head, slope = _descend(head, x, labels.long(), decay)
        if slope <= _TOLERANCE:
            break
    if slope > _LARGE:
        said = f"the logistic regression has not converged: a derivative of its loss is still {slope:.1g}."
        warnings.warn(f"{said} Use a larger decay.", RuntimeWarning, stacklevel=2)
    found = head.to(features.dtype)
    return found[:, :-1], found[:, -1]


def _descend(head: Tensor, x: Tensor, labels: Tensor, decay: float) -> tuple[Tensor, float]:
    """Take some steps of L-BFGS; return the new head and the largest derivative there.

    The steps are in coordinates in which the loss curves about equally in all directions, averaged over the classes:
    tens of steps reach the minimum, whether the classes can be separated or not.
    """
    shares = (x @ head.mT).softmax(1)
    curvature = (shares * (1 - shares)).mean(1, keepdim=True)
    unit = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    root: Tensor = torch.linalg.cholesky((curvature * x).mT @ x / len(x) + decay * unit)
    inverse: Tensor = torch.linalg.inv(root)
    points, scaled = x @ inverse.mT, (head @ root).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [scaled],
        max_iter=_STEPS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(points @ scaled.mT, labels) + decay / 2 * (scaled @ inverse).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    closure()
    assert scaled.grad is not None
    return scaled.detach() @ inverse, float(scaled.grad.abs().max())


def find_more_shifts(settings: Training, classes: int, folder: Path | None) -> dict[str, TestSet]:
    """Find the available shifts that a network fine-tuned on all of ImageNet's classes is tested on."""
    on_imagenet = settings.data == "imagenet" and classes == len(read_classes())
    if not on_imagenet or settings.start_from == "scratch" or settings.held_out or folder is None:
        return {}
    pixels = settings.pixels or 224
    return find_shifts(folder, Crop(pixels, short=round(pixels * get_margin(settings.model))))


def measure_interpolated(
    network: nn.Module, first: dict[str, Tensor], last: dict[str, Tensor], examples: DeviceExamples, settings: Training
) -> dict[str, Any]:
    """Test the weights between the start of a run and its end, on some images of each test set.

    Each entry has its α, the test accuracy and, if there are shifted images, the accuracy on each kind and their mean.
    The weights of ``network`` are overwritten.
    """
    sets = _take_some(examples)

    def evaluate(weights: dict[str, Tensor]) -> dict[str, Any]:
        network.load_state_dict(weights)
        found = {
            name: statistics.fmean(evaluation.score_set(network, examples, each, settings.precision) for each in parts)
            for name, parts in sets.items()
        }
        test = found.pop(_TEST)
        shifted = {"shifted": found, "shifted_accuracy": statistics.fmean(found.values())} if found else {}
        return {"test_accuracy": test, **shifted}

    counts = {
        name: sum(len(each if isinstance(each, TestSet) else each[1]) for each in parts) for name, parts in sets.items()
    }
    return {"interpolated": measure_curve(first, last, evaluate), "interpolated_images": counts}


def _take_some(examples: DeviceExamples) -> dict[str, list[TestImages]]:
    """Return some images of each test set, decoded or on the device; all corruptions together count as one set."""
    device = examples.test.labels.device
    test = examples.test.first(ALONG).load()
    found: dict[str, list[TestImages]] = {_TEST: [(test.inputs, test.labels)]}
    for name, each in examples.shifted.items():
        if isinstance(each, TestSet):
            part = each.take(ALONG)
            found[name] = [replace(part, images=part.images.keep())]
        else:
            found[name] = [(each[0][:ALONG].to(device), each[1][:ALONG].to(device))]
    if examples.corrupted is not None:
        kinds = examples.corrupted.images.values()
        found["corruptions"] = [
            (images[: ALONG // len(kinds)].to(device), labels[: ALONG // len(kinds)].to(device))
            for images, labels in kinds
        ]
    return found
