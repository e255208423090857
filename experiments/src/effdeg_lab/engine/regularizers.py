"""From the settings of a run to its regularizer, with paths between examples or to other ends."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg import Penalty, Points, baselines, changes
from effdeg.baselines import ICT, UDA, Consistency, FixMatch, Method, method
from effdeg_lab.core.settings import suggest
from effdeg_lab.engine.examples import (
    JOINING,
    DeviceExamples,
    draw_boxes,
    draw_cuts,
    find_simple_half,
    mix_cuts,
    soften,
    swap_half,
)
from effdeg_lab.engine.settings import Training, choose_weights

_SETTINGS = {
    "mixup": ("alpha",),
    "cutmix": ("alpha",),
    "regmixup": ("alpha",),
    "sam": ("rho",),
    "asam": ("rho",),
    "ed": ("sampling", "basis", "components", "at"),
}
ON_UNLABELED = ("ict", "ed-copies", "consistency", "uda", "fixmatch")
"""Regularizers of examples without labels, which ``baselines.method`` does not know."""
COPIES = [changes.compose(changes.mirror, changes.shift(4)), changes.shift(4)]
"""The changes of copies for ed-copies and consistency, one drawn per copy: a random crop, and perhaps a flip."""
_NOT_HERE = {
    "embedding-mixup": "is for token ids, and there is no such data here",
    "neftune": "is for token ids, and there is no such data here",
    "manifold-mixup": "draws a layer at every step, which cannot be captured in one graph",
}


def make_regularizer(
    settings: Training, examples: DeviceExamples | None = None, teacher: nn.Module | None = None
) -> Method:
    """Make the regularizer of a run; without examples, only check it, as some ends of paths depend on them."""
    name, parts = settings.regularizer, settings.regularizer.split("+")
    _check_names(parts)
    _check_unlabeled(settings, parts)
    if {*parts} & {*ON_UNLABELED}:
        return _join_penalties(settings, examples, teacher)
    options = _collect_options(settings, parts, 10 if examples is None else examples.classes)
    made = method(name, **options)
    if settings.weight is not None and made.penalty is not None:
        made = method(name, weight=settings.weight, **options)
    if settings.ends != "data":
        _check_ends(settings, made.penalty)
    if settings.loss_on != "examples":
        _check_points(settings)
    if settings.augment in JOINING and made.mix is not None:
        raise ValueError(f"augment={settings.augment} and regularizer={name} both mix the batch: use one of them.")
    return made if examples is None else _adapt(made, settings, examples)


def _collect_options(settings: Training, parts: list[str], classes: int) -> dict[str, Any]:
    found: dict[str, Any] = {each: getattr(settings, each) for part in parts for each in _SETTINGS.get(part, ())}
    if "ed" in parts:
        found |= {**settings.penalty_options, "weights": choose_weights(settings.degree_weights, settings.degree)}
    if "regmixup" in parts:
        found["loss"] = settings.mixed_loss
    if {"mixup", "cutmix", "regmixup"} & {*parts}:
        found["classes"] = classes
    if "jacobian" in parts:
        found["share"] = settings.jacobian_share
    return found


def _adapt(made: Method, settings: Training, examples: DeviceExamples) -> Method:
    """Replace what depends on the examples: the ends of paths, what the loss is taken on, and how batches are mixed."""
    if settings.ends != "data":
        assert isinstance(made.penalty, Penalty)
        made = replace(made, penalty=PenaltyToEnds(settings.ends, made.penalty, examples))
    if settings.loss_on != "examples":
        assert isinstance(made.penalty, Penalty)
        loss = LossOnPoints(made.penalty, examples.classes, boxes=settings.loss_on == "boxes")
        made = replace(made, penalty=loss)
    if settings.augment.endswith("cutmix"):
        cut = baselines.cutmix if settings.augment == "crop-flip-cutmix" else mix_cuts
        made = replace(made, mix=partial(cut, classes=examples.classes))
    if settings.augment == "swap-simple-half":
        made = replace(made, mix=partial(swap_half, half=find_simple_half(examples)))
    return made


def can_compile_penalty(settings: Training) -> bool:
    """Return whether the penalty can be compiled: one that differentiates twice or hooks a layer cannot."""
    return settings.at is None and "jacobian" not in settings.regularizer.split("+")


class LossOnPoints(nn.Module):
    """The effective degree of the points that replace the batch in training, with their mixed labels."""

    def __init__(self, penalty: Penalty, classes: int, *, boxes: bool) -> None:
        super().__init__()
        self.penalty, self._classes, self._boxes = penalty, classes, boxes

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        soft = soften(y, self._classes)
        points = self.penalty.points(x, soft)
        if self._boxes:
            inner = points.alpha[:, 1:-1]
            first, second = points.pairs.repeat_interleave(inner.shape[1], dim=0).unbind(1)
            part, share = draw_boxes(1 - inner.flatten(), x)
            # Boxes have whole pixels: the share of the first image is not exactly what was drawn.
            alpha = torch.cat([points.alpha[:, :1], (1 - share).view_as(inner), points.alpha[:, -1:]], dim=1)
            points = replace(points, inputs=torch.where(part, x[second], x[first]), alpha=alpha)
        outputs = model(points.inputs)
        return outputs, self.penalty.degree(outputs, points), points.interpolate(soft)


class PenaltyToEnds(nn.Module):
    """The effective degree along paths whose ends are not two examples; the larger one if there are two sets."""

    def __init__(self, ends: str, penalty: Penalty, examples: DeviceExamples) -> None:
        super().__init__()
        self.penalty, self._ends, self._examples = penalty, ends, examples
        self._half = find_simple_half(examples) if ends == "simple-half" else None

    def forward(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
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


class SumOfPenalties(nn.Module):
    """Two penalties, each in a forward pass of its own; the outputs are those of the first."""

    def __init__(self, first: nn.Module, second: nn.Module, ratio: float, teacher: nn.Module | None) -> None:
        super().__init__()
        self.first, self.second, self.ratio = first, second, ratio
        # Past nn.Module, so that the teacher does not become a submodule of this one.
        self.__dict__["teacher"] = teacher

    def forward(
        self, model: nn.Module, x: Tensor, y: Tensor, *, unlabeled: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        outputs, value = self.first(model, x, y, **self._options(self.first, x, unlabeled))
        _, other = self.second(model, x, y, **self._options(self.second, x, unlabeled))
        return outputs, value + self.ratio * other

    def _options(self, penalty: nn.Module, x: Tensor, unlabeled: Tensor | None) -> dict[str, Any]:
        if not isinstance(penalty, Penalty):
            return {"unlabeled": x if unlabeled is None else unlabeled}
        return {
            name: value for name, value in (("unlabeled", unlabeled), ("teacher", self.teacher)) if value is not None
        }


def _join_penalties(settings: Training, examples: DeviceExamples | None, teacher: nn.Module | None) -> Method:
    """Make regularizers of unlabeled examples, alone, with a method that mixes those with labels, or with ED."""
    parts = settings.regularizer.split("+")
    others = "+".join(part for part in parts if part not in ON_UNLABELED) or "plain"
    made = make_regularizer(settings.change({"regularizer": others, "unlabeled_batch": 0, "teacher": None}), examples)
    penalties = [
        made.penalty if part == "ed" else _make_on_unlabeled(part, settings, examples, teacher)
        for part in parts
        if part in {*ON_UNLABELED, "ed"}
    ]
    if len(penalties) > 2 or (made.penalty is not None and not isinstance(made.penalty, Penalty)):
        raise ValueError(
            f"regularizer={settings.regularizer}: join {', '.join(ON_UNLABELED)} with mixup or cutmix, or two of them, "
            "or one of them with ed."
        )
    penalty = penalties[0]
    if len(penalties) == 2 and penalty is not None and penalties[1] is not None:
        penalty = SumOfPenalties(penalty, penalties[1], settings.second_weight, teacher)
    return replace(made, name=settings.regularizer, penalty=penalty, weight=settings.weight or 0.0)


def _make_on_unlabeled(
    part: str, settings: Training, examples: DeviceExamples | None, teacher: nn.Module | None
) -> nn.Module | None:
    """Make one regularizer of unlabeled examples; None if it depends on what is not there when it is only checked."""
    if part == "ed-copies":
        return Penalty(**_collect_options(settings, ["ed"], classes=0), partners=COPIES)
    if part == "consistency":
        return Consistency(COPIES, teacher=teacher)
    if part == "ict":
        return None if teacher is None else ICT(teacher, alpha=settings.alpha)
    return None if examples is None else {"uda": UDA, "fixmatch": FixMatch}[part](examples.strengthen)


def _check_names(parts: list[str]) -> None:
    known = [each for each in (*baselines.names(), *ON_UNLABELED) if each not in _NOT_HERE]
    for part in parts:
        if part in _NOT_HERE:
            raise ValueError(f"regularizer={part} {_NOT_HERE[part]}.")
        if part not in known:
            hint = "Several that act in different places are joined by +, as in mixup+ed."
            raise ValueError(f"regularizer={part} is not known. {suggest(part, known)} {hint}")


def _check_unlabeled(settings: Training, parts: list[str]) -> None:
    """Raise if unlabeled examples or a teacher would not be used."""
    if "ict" in parts and settings.teacher is None:
        raise ValueError("regularizer=ict needs a teacher, such as teacher=0.99.")
    if (given := [each for each in parts if each in ON_UNLABELED]) and settings.weight is None:
        raise ValueError(f"regularizer={given[0]} needs the weight of its penalty, such as weight=7.")
    along_paths = {"ed", "ed-copies"} & {*parts} and settings.gives_own_ends
    if settings.teacher is not None and not (along_paths or {"ict", "consistency"} & {*parts}):
        raise ValueError(
            f"teacher={settings.teacher:g} gives targets to examples that have no label: use regularizer=ict or "
            "consistency, or ed or ed-copies with anchor=self or an unlabeled_batch."
        )
    if settings.unlabeled_batch and not {"ed", *ON_UNLABELED} & {*parts}:
        raise ValueError(
            f"unlabeled_batch={settings.unlabeled_batch} is for regularizer=ed, {', '.join(ON_UNLABELED)}; "
            f"{settings.regularizer} needs labels."
        )
    if (given or settings.unlabeled_batch) and (settings.ends != "data" or settings.loss_on != "examples"):
        what = f"regularizer={given[0]}" if given else "unlabeled_batch"
        raise ValueError(f"{what} works only with ends=data and loss_on=examples.")


def _check_points(settings: Training) -> None:
    if settings.regularizer != "ed" or settings.anchor != "labels" or settings.ends != "data":
        raise ValueError(f"loss_on={settings.loss_on} works only with regularizer=ed, anchor=labels and ends=data.")
    if settings.at is not None or settings.sampling == "chebyshev":
        raise ValueError(f"loss_on={settings.loss_on} works only with at=none and cosine or uniform nodes.")


def _check_ends(settings: Training, penalty: nn.Module | None) -> None:
    ends = settings.ends
    if not isinstance(penalty, Penalty):
        raise ValueError(f"ends={ends} is for the paths of regularizer=ed, not for {settings.regularizer}.")
    if ends == "cuts" and settings.anchor != "labels":
        raise ValueError("ends=cuts mixes the labels at the ends of its paths: set anchor=labels.")
    if ends != "cuts" and settings.anchor != "none":
        raise ValueError(f"ends={ends} joins images that have no labels: set anchor=none.")
    if settings.sampling == "uniform" or settings.at is not None:
        raise ValueError(f"ends={ends} works only with sampling=cosine or chebyshev and at=none.")
