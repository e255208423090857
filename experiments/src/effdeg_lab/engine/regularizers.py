"""From the settings of a run to its regularizer, with paths between examples or to ends of their own.

The penalties of this module are called as :class:`effdeg.Penalty` is, and their points join the batch in one forward
pass.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg import Penalty, Points
from effdeg.baselines import Method, method
from effdeg_lab.engine.augmentation import Cuts, cutmix, find_simple_half, soften, swap_half
from effdeg_lab.engine.examples import DeviceExamples
from effdeg_lab.engine.settings import Training

_PENALTY = ("nodes", "degree", "pairs", "sampling", "basis", "anchor_labels", "components", "at", "batchnorm")
_SETTINGS = {"mixup": ("alpha",), "sam": ("rho",), "asam": ("rho", "eta"), "jacobian": ("projections",), "ed": _PENALTY}
# The augmentations that join images of a batch, made to fit the examples.
_JOINING: dict[str, Callable[[DeviceExamples], Callable[..., Any]]] = {
    "cutmix": lambda examples: partial(cutmix, classes=examples.classes),
    "swap-simple-half": lambda examples: partial(swap_half, half=find_simple_half(examples)),
}


def make_regularizer(settings: Training, *, classes: int = 10) -> Method:
    """Make the regularizer of a run, checking its settings.

    Args:
        settings: The settings of the run.
        classes: The number of classes, which mixup needs to know.

    Returns:
        The regularizer.
    """
    name = settings.regularizer
    parts = name.split("+")
    if "embedding-mixup" in parts:
        raise ValueError(
            "regularizer=embedding-mixup mixes what a layer makes of token ids: there is no such data here yet."
        )
    given: dict[str, Any] = {each: getattr(settings, each) for part in parts for each in _SETTINGS.get(part, ())}
    if "mixup" in parts:
        given["classes"] = classes
    if "jacobian" in parts:
        given["share"] = settings.jacobian_share
    made = method(name, **given)
    if settings.weight is not None and made.penalty is not None:
        made = method(name, weight=settings.weight, **given)
    _check_ends(settings, made.penalty)
    if settings.augment in _JOINING and made.mix is not None:
        raise ValueError(f"augment={settings.augment} and regularizer={name} both mix the batch: use one of them.")
    return made


def fit_to_examples(made: Method, settings: Training, examples: DeviceExamples) -> Method:
    """Complete a regularizer with what depends on the examples: the ends of its paths, and how images are joined."""
    if settings.ends in _ENDS:
        assert isinstance(made.penalty, Penalty)
        if settings.ends != "random-pixels" and len(examples.shape) != 3:
            raise ValueError(f"ends={settings.ends} is for images; {settings.data} has features.")
        made = replace(made, penalty=_ENDS[settings.ends](made.penalty, examples))
    if settings.augment in _JOINING:
        made = replace(made, mix=_JOINING[settings.augment](examples))
    return made


def can_compile_penalty(settings: Training) -> bool:
    """Return whether the penalty can be compiled: one that differentiates twice or hooks a layer cannot."""
    hooks = settings.at is not None or settings.batchnorm == "frozen"
    return not hooks and "jacobian" not in settings.regularizer.split("+")


class RandomPixels(nn.Module):
    """Paths between images of noise."""

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._examples = penalty, examples

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the effective degree along the paths."""
        points = self.penalty.points(self._examples.draw_noise(x))
        outputs = model(points.append_to(x))
        return points.first_rows(outputs), self.penalty.degree(outputs, points)


class SimpleHalf(nn.Module):
    """Paths from an example to itself with the simple half of another: every dependence on that half is penalized."""

    pixels: Tensor

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty = penalty
        self.register_buffer("pixels", find_simple_half(examples), persistent=False)

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the effective degree along the paths."""
        first, second = self.penalty.draw_pairs(x).unbind(1)
        points = _make_points(self.penalty, x[first], torch.where(self.pixels, x[second], x[first]))
        outputs, values = _run(model, x, [points])
        return outputs, self.penalty.degree(values[0], points)


class CutEnds(nn.Module):
    """Paths from an example to itself with a part of another, whose label is mixed by area and anchors that end."""

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._classes = penalty, examples.classes

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch's outputs and the effective degree along the paths."""
        first, second = self.penalty.draw_pairs(x).unbind(1)
        cuts, soft = Cuts.draw(len(first), x), soften(y, self._classes)
        labels = torch.cat([soft[first], cuts.mix(soft[second], soft[first])])
        points = _make_points(self.penalty, x[first], cuts.join(x[second], x[first]), labels)
        outputs, values = _run(model, x, [points])
        return outputs, self.penalty.degree(values[0], points)


class Balanced(nn.Module):
    """Paths that vary one part of the images, and paths that vary the rest: the larger effective degree of the two.

    Of a random cut, the same for the whole batch, the part that the outputs depend on more is penalized.
    """

    def __init__(self, penalty: Penalty, examples: DeviceExamples) -> None:  # noqa: ARG002
        super().__init__()
        self.penalty = penalty

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the batch's outputs and the larger of the two effective degrees."""
        first, second = (x[end] for end in self.penalty.draw_pairs(x).unbind(1))
        cuts = Cuts.draw(1, x)
        either = [
            _make_points(self.penalty, first, end) for end in (cuts.join(second, first), cuts.join(first, second))
        ]
        outputs, values = _run(model, x, either)
        part, rest = (self.penalty.degree(each, points) for each, points in zip(values, either, strict=True))
        return outputs, torch.maximum(part, rest)


_ENDS: dict[str, Callable[[Penalty, DeviceExamples], nn.Module]] = {
    "random-pixels": RandomPixels,
    "simple-half": SimpleHalf,
    "cuts": CutEnds,
    "balanced": Balanced,
}


def _check_ends(settings: Training, penalty: nn.Module | None) -> None:
    """Raise unless the penalty can follow the paths that are asked for."""
    ends = settings.ends
    if ends == "data":
        return
    if not isinstance(penalty, Penalty):
        raise ValueError(f"ends={ends} is about the paths of regularizer=ed, not of {settings.regularizer}.")
    if ends == "cuts" and not settings.anchor_labels:
        raise ValueError("ends=cuts mixes the labels at the ends of its paths: set anchor_labels=true.")
    if ends != "cuts" and settings.anchor_labels:
        raise ValueError(f"ends={ends} joins images that have no labels: set anchor_labels=false.")
    if settings.sampling == "uniform" or settings.at is not None or settings.batchnorm == "frozen":
        raise ValueError(f"ends={ends} goes with sampling=cosine or chebyshev, at=none and batchnorm=joint only.")


def _make_points(penalty: Penalty, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Points:
    """Make the points of paths from each image of ``first`` to the one in the same place of ``second``."""
    places = torch.arange(len(first), device=first.device)
    return penalty.points(torch.cat([first, second]), labels, pairs=torch.stack([places, len(first) + places], dim=1))


def _run(model: nn.Module, x: Tensor, several: list[Points]) -> tuple[Tensor, list[Tensor]]:
    """Run the batch and all points in one forward pass; return the outputs of the batch, and those of the points."""
    outputs = model(torch.cat([x, *(points.inputs for points in several)]))
    batch, *values = outputs.split([len(x), *map(len, several)])
    return batch, values
