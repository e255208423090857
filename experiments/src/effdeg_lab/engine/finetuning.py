"""Where a fine-tuned network starts from: a head that fits its features, and the weights between start and end."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import effdeg_lab.engine.evaluation as evaluation
from effdeg_lab.data.images import Crop
from effdeg_lab.data.shifts import TestSet, find_shifts, read_classes
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.interpolation import measure_curve
from effdeg_lab.engine.probe import fit_logistic
from effdeg_lab.engine.settings import Training
from effdeg_lab.engine.step import autocast
from effdeg_lab.models import get_margin
from effdeg_lab.models.pretrained import ImageClassifier

TestImages = tuple[Tensor, Tensor] | TestSet
_CHUNK, _TEST = 500, "test"
ALONG = 2000
"""The number of images of each test set, or fewer, that weights between start and end are tested on."""


@torch.no_grad()
def fit_head(model: nn.Module, examples: DeviceExamples, settings: Training) -> None:
    """Replace the head of a network by a logistic regression on the features of its training images.

    The images are used as in evaluations, neither cropped nor flipped. The penalty is scikit-learn's default: for N
    images, the loss is their mean cross-entropy plus half the squared norm of the head, divided by N.
    """
    if not isinstance(model, ImageClassifier):
        raise TypeError(f"start_from=probe needs an ImageClassifier; model={settings.model} is {type(model).__name__}.")
    split, training = examples.train, model.training
    model.eval()
    found = list[tuple[Tensor, Tensor]]()
    for inputs, labels in split.chunks(_CHUNK):
        with autocast(split.labels.device, settings.precision):
            found.append((model.encode(examples.normalize(inputs)).float(), labels))
    model.train(training)
    device = split.labels.device
    share = tuple(torch.cat(each).cpu() for each in zip(*found, strict=True))
    features, labels = (torch.cat(each).to(device) for each in zip(*evaluation.collect(split, share), strict=True))
    with torch.enable_grad():
        weight, bias = fit_logistic(features, labels, examples.classes, decay=1 / len(labels))
    model.head.weight.copy_(weight)
    model.head.bias.copy_(bias)


def find_more_shifts(settings: Training, classes: int, folder: Path | None) -> dict[str, TestSet]:
    """Find the available shifts that a network fine-tuned on all of ImageNet's classes is tested on."""
    on_imagenet = settings.data == "imagenet" and classes == len(read_classes())
    if not on_imagenet or settings.start_from == "scratch" or settings.held_out or folder is None:
        return {}
    pixels = settings.pixels or 224
    return find_shifts(folder, Crop(pixels, short=round(pixels * get_margin(settings.model))))


def measure_interpolated(
    network: nn.Module,
    first: dict[str, Tensor],
    last: dict[str, Tensor],
    examples: DeviceExamples,
    settings: Training,
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
