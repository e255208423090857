"""From the settings of a run to its regularizer, with paths between examples or to ends of their own."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg import Penalty, Points, baselines
from effdeg.baselines import Method, method
from effdeg_lab.engine.examples import (
    JOINING,
    DeviceExamples,
    cutmix,
    draw_cuts,
    find_simple_half,
    soften,
    swap_half,
)
from effdeg_lab.engine.settings import Training

_PENALTY = ("nodes", "degree", "pairs", "sampling", "basis", "components", "at", "batchnorm")
_SETTINGS = {"mixup": ("alpha",), "sam": ("rho",), "asam": ("rho", "eta"), "jacobian": ("projections",), "ed": _PENALTY}


def make_regularizer(settings: Training, examples: DeviceExamples | None = None) -> Method:
    """Make the regularizer of a run; without examples only to check it, as other ends of paths depend on them."""
    name = settings.regularizer
    parts = name.split("+")
    if "embedding-mixup" in parts:
        raise ValueError("regularizer=embedding-mixup is for token ids, and there is no such data here.")
    given: dict[str, Any] = {each: getattr(settings, each) for part in parts for each in _SETTINGS.get(part, ())}
    if "ed" in parts:
        given["anchor"] = "labels" if settings.anchor_labels else None
    if "mixup" in parts:
        given["classes"] = 10 if examples is None else examples.classes
    if "jacobian" in parts:
        given["share"] = settings.jacobian_share
    made = method(name, **given)
    if settings.weight is not None and made.penalty is not None:
        made = method(name, weight=settings.weight, **given)
    if settings.ends != "data":
        _check_ends(settings, made.penalty)
    if settings.augment in JOINING and made.mix is not None:
        raise ValueError(f"augment={settings.augment} and regularizer={name} both mix the batch: use one of them.")
    if examples is None:
        return made
    if settings.ends != "data":
        assert isinstance(made.penalty, Penalty)
        if settings.ends != "random-pixels" and len(examples.shape) != 3:
            raise ValueError(f"ends={settings.ends} is for images; {settings.data} has features.")
        made = replace(made, penalty=PenaltyToEnds(settings.ends, made.penalty, examples))
    if settings.augment.endswith("cutmix"):
        cut = baselines.cutmix if settings.augment == "crop-flip-cutmix" else cutmix
        made = replace(made, mix=partial(cut, classes=examples.classes))
    if settings.augment == "swap-simple-half":
        made = replace(made, mix=partial(swap_half, half=find_simple_half(examples)))
    return made


def can_compile_penalty(settings: Training) -> bool:
    """Return whether the penalty can be compiled: one that differentiates twice or hooks a layer cannot."""
    hooks = settings.at is not None or settings.batchnorm == "frozen"
    return not hooks and "jacobian" not in settings.regularizer.split("+")


class PenaltyToEnds(nn.Module):
    """The effective degree along paths to other ends than two examples; the larger one if there are two sets."""

    def __init__(self, ends: str, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._ends, self._examples = penalty, ends, examples
        self._half = find_simple_half(examples) if ends == "simple-half" else None

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch's outputs and the effective degree along the paths, from one forward pass."""
        several = self._make_points(x, y)
        outputs = model(torch.cat([x, *(points.inputs for points in several)]))
        batch, *values = outputs.split([len(x), *map(len, several)])
        degrees = [self.penalty.degree(each, points) for each, points in zip(values, several, strict=True)]
        return batch, degrees[0] if len(degrees) == 1 else torch.maximum(*degrees)

    def _make_points(self, x: Tensor, y: Tensor) -> list[Points]:
        if self._ends == "random-pixels":
            return [self.penalty.points(self._examples.draw_noise(x))]
        first, second = self.penalty.draw_pairs(x).unbind(1)
        one, other = x[first], x[second]
        if self._half is not None:
            return [self._join(one, torch.where(self._half, other, one))]
        if self._ends == "balanced":  # one cut for the whole batch: vary the part, and vary the rest
            part, _ = draw_cuts(1, x)
            return [self._join(one, torch.where(part, other, one)), self._join(one, torch.where(part, one, other))]
        (part, share), soft = draw_cuts(len(first), x), soften(y, self._examples.classes)
        labels = torch.cat([soft[first], torch.lerp(soft[first], soft[second], share[:, None])])
        return [self._join(one, torch.where(part, other, one), labels)]

    def _join(self, one: Tensor, other: Tensor, labels: Tensor | None = None) -> Points:
        places = torch.arange(len(one), device=one.device)
        pairs = torch.stack([places, len(one) + places], dim=1)
        return self.penalty.points(torch.cat([one, other]), labels, pairs=pairs)


def _check_ends(settings: Training, penalty: nn.Module | None) -> None:
    ends = settings.ends
    if not isinstance(penalty, Penalty):
        raise ValueError(f"ends={ends} is about the paths of regularizer=ed, not of {settings.regularizer}.")
    if ends == "cuts" and not settings.anchor_labels:
        raise ValueError("ends=cuts mixes the labels at the ends of its paths: set anchor_labels=true.")
    if ends != "cuts" and settings.anchor_labels:
        raise ValueError(f"ends={ends} joins images that have no labels: set anchor_labels=false.")
    if settings.sampling == "uniform" or settings.at is not None or settings.batchnorm == "frozen":
        raise ValueError(f"ends={ends} goes with sampling=cosine or chebyshev, at=none and batchnorm=joint only.")
