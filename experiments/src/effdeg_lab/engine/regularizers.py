"""From the settings of a run to its regularizer, with paths between examples or to ends of their own.

The penalties of this module are called as :class:`effdeg.Penalty` is.
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


PointMaker = Callable[[Tensor, Tensor], list[Points]]
"""Makes the points of paths from a batch and its labels."""


def make_regularizer(settings: Training, *, classes: int = 10) -> Method:
    """Make the regularizer of a run, checking its settings; mixup needs to know the number of classes."""
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
        made = replace(made, penalty=penalize_to_ends(settings.ends, made.penalty, examples))
    if settings.augment in _JOINING:
        made = replace(made, mix=_JOINING[settings.augment](examples))
    return made


def penalize_to_ends(ends: str, penalty: Penalty, examples: DeviceExamples) -> nn.Module:
    """Return the penalty along paths to other ends than two examples."""
    return PenaltyToEnds(penalty, _ENDS[ends](penalty, examples))


def can_compile_penalty(settings: Training) -> bool:
    """Return whether the penalty can be compiled: one that differentiates twice or hooks a layer cannot."""
    hooks = settings.at is not None or settings.batchnorm == "frozen"
    return not hooks and "jacobian" not in settings.regularizer.split("+")


class PenaltyToEnds(nn.Module):
    """The effective degree along paths to ends of their own; the larger one where there are two sets of paths."""

    def __init__(self, penalty: Penalty, make_points: PointMaker) -> None:
        super().__init__()
        self.penalty, self._make_points = penalty, make_points

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch's outputs and the effective degree along the paths, from one forward pass."""
        several = self._make_points(x, y)
        outputs = model(torch.cat([x, *(points.inputs for points in several)]))
        batch, *values = outputs.split([len(x), *map(len, several)])
        degrees = [self.penalty.degree(each, points) for each, points in zip(values, several, strict=True)]
        return batch, degrees[0] if len(degrees) == 1 else torch.maximum(*degrees)


def _between_random_pixels(penalty: Penalty, examples: DeviceExamples) -> PointMaker:
    """Join images of noise."""
    return lambda x, _: [penalty.points(examples.draw_noise(x))]


def _vary_simple_half(penalty: Penalty, examples: DeviceExamples) -> PointMaker:
    """Join an example and itself with the simple half of another: every dependence on that half is penalized."""
    half = find_simple_half(examples)

    def make(x: Tensor, _: Tensor) -> list[Points]:
        first, second = (x[end] for end in penalty.draw_pairs(x).unbind(1))
        return [_join(penalty, first, torch.where(half, second, first))]

    return make


def _vary_cut(penalty: Penalty, examples: DeviceExamples) -> PointMaker:
    """Join an example and itself with a part of another; the label is mixed by area and anchors that end."""

    def make(x: Tensor, y: Tensor) -> list[Points]:
        first, second = penalty.draw_pairs(x).unbind(1)
        cuts, soft = Cuts.draw(len(first), x), soften(y, examples.classes)
        labels = torch.cat([soft[first], cuts.mix(soft[second], soft[first])])
        return [_join(penalty, x[first], cuts.join(x[second], x[first]), labels)]

    return make


def _vary_either_part(penalty: Penalty, _: DeviceExamples) -> PointMaker:
    """Vary a part of the images, and vary the rest: what the outputs depend on more is penalized.

    The cut is random, and the same for the whole batch.
    """

    def make(x: Tensor, _: Tensor) -> list[Points]:
        first, second = (x[end] for end in penalty.draw_pairs(x).unbind(1))
        cuts = Cuts.draw(1, x)
        return [_join(penalty, first, end) for end in (cuts.join(second, first), cuts.join(first, second))]

    return make


_ENDS: dict[str, Callable[[Penalty, DeviceExamples], PointMaker]] = {
    "random-pixels": _between_random_pixels,
    "simple-half": _vary_simple_half,
    "cuts": _vary_cut,
    "balanced": _vary_either_part,
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


def _join(penalty: Penalty, first: Tensor, second: Tensor, labels: Tensor | None = None) -> Points:
    """Make the points of paths from each image of ``first`` to the one in the same place of ``second``."""
    places = torch.arange(len(first), device=first.device)
    return penalty.points(torch.cat([first, second]), labels, pairs=torch.stack([places, len(first) + places], dim=1))
