"""Penalties along other paths than those between two examples: what their ends are (the setting ``ends``).

Each is called as :class:`effdeg.Penalty` is, and its points join the batch in one forward pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from effdeg._models.paths import draw_pairs_of_batch
from effdeg.baselines._mixup import soft_labels
from effdeg.lab.training.cuts import Cuts
from effdeg.lab.training.examples import DeviceExamples
from effdeg.lab.training.settings import Training
from effdeg.lab.training.simple_half import simple_half
from effdeg.train._penalty import Penalty
from effdeg.train._points import Points


class RandomPixels(nn.Module):
    """Paths between images of noise."""

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._examples = penalty, examples

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the effective degree along the paths."""
        points = self.penalty.points(self._examples.noise_like(x))
        outputs = model(points.append_to(x))
        return points.first_rows(outputs), self.penalty.degree(outputs, points)


class SimpleHalf(nn.Module):
    """Paths from an example to itself with the simple half of another: every dependence on that half is held back."""

    pixels: Tensor

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty = penalty
        self.register_buffer("pixels", simple_half(examples), persistent=False)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the effective degree along the paths."""
        first, second = _pairs(self.penalty, x).unbind(1)
        points = _points_between(self.penalty, x[first], torch.where(self.pixels, x[second], x[first]))
        outputs, along = _run(model, x, [points])
        return outputs, self.penalty.degree(along[0], points)


class CutEnds(nn.Module):
    """Paths from an example to itself with a part of another, whose label is mixed by area and anchors that end."""

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._classes = penalty, examples.classes

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch's outputs and the effective degree along the paths."""
        first, second = _pairs(self.penalty, x).unbind(1)
        cuts, soft = Cuts.draw(len(first), x), soft_labels(y, self._classes, x.dtype)
        labels = torch.cat([soft[first], cuts.mix(soft[second], soft[first])])
        points = _points_between(self.penalty, x[first], cuts.join(x[second], x[first]), labels)
        outputs, along = _run(model, x, [points])
        return outputs, self.penalty.degree(along[0], points)


class Balanced(nn.Module):
    """Paths that vary one part of the images, and paths that vary the rest: the larger effective degree of the two.

    Of a random cut, the same for the whole batch, the part that the outputs depend on more is the one held back.
    """

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:  # noqa: ARG002
        super().__init__()
        self.penalty = penalty

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the larger of the two effective degrees."""
        first, second = (x[end] for end in _pairs(self.penalty, x).unbind(1))
        cuts = Cuts.draw(1, x)
        either = [
            _points_between(self.penalty, first, end) for end in (cuts.join(second, first), cuts.join(first, second))
        ]
        outputs, along = _run(model, x, either)
        part, rest = (self.penalty.degree(values, points) for values, points in zip(along, either, strict=True))
        return outputs, torch.maximum(part, rest)


ENDS: dict[str, Callable[[Penalty, DeviceExamples], nn.Module]] = {
    "random-pixels": RandomPixels,
    "simple-half": SimpleHalf,
    "cuts": CutEnds,
    "balanced": Balanced,
}


def check_ends(settings: Training, penalty: nn.Module | None) -> None:
    """Raise unless the penalty can go along the paths that are asked for."""
    ends = settings.ends
    if ends == "data":
        return
    if not isinstance(penalty, Penalty):
        raise ValueError(f"ends={ends} is about the paths of method=ed, not of {settings.method}.")
    if ends == "cuts" and not settings.anchor_labels:
        raise ValueError("ends=cuts mixes the labels at the ends of its paths: set anchor_labels=true.")
    if ends != "cuts" and settings.anchor_labels:
        raise ValueError(f"ends={ends} joins images that have no labels: set anchor_labels=false.")
    if settings.sampling == "uniform" or settings.at is not None or settings.batchnorm == "frozen":
        raise ValueError(f"ends={ends} goes with sampling=cosine or chebyshev, at=none and batchnorm=joint only.")


def _pairs(penalty: Penalty, x: Tensor) -> Tensor:
    return draw_pairs_of_batch(len(x), penalty.settings.count_pairs(len(x)), device=x.device, generator=None)


def _points_between(penalty: Penalty, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Points:
    """Return the points of paths from each of some images to the one in the same place among others."""
    places = torch.arange(len(first), device=first.device)
    return penalty.points(torch.cat([first, second]), labels, pairs=torch.stack([places, len(first) + places], dim=1))


def _run(model: nn.Module, x: Tensor, several: list[Points]) -> tuple[Tensor, list[Tensor]]:
    """Run the batch and all points in one forward pass; give the outputs of the batch, and those of the points."""
    outputs = model(torch.cat([x, *(points.inputs for points in several)]))
    batch, *along = outputs.split([len(x), *map(len, several)])
    return batch, along
