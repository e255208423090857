"""A batch on its way through the penalty, and the losses that models compute themselves from its labels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effdeg._models.examples import count_examples, examples_only, has_rows
from effdeg._models.frameworks import framework_of
from effdeg._models.layers import as_module
from effdeg._models.outputs import IGNORED
from effdeg._models.paths import interpolate, join_masks
from effdeg._utils.tree import Tree, entry, named_map, named_tensors


class OwnLossError(ValueError):
    """A model computes a loss of its own, in which the points would be counted as examples."""


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """A batch and the labels of its examples.

    Attributes:
        inputs: What the points are appended to: ``x``, or the arguments and the keywords of a call.
        examples: The tensors with one row per example, named as messages name them, without labels.
        model_labels: The ``labels`` among the inputs, from which a model may compute a loss.
        labels: The labels for anchoring: ``y``, or else those among the inputs.
        size: The number of examples.
    """

    inputs: Tree
    examples: Tree
    model_labels: Any
    labels: Any
    size: int

    @classmethod
    def of_call(cls, arguments: tuple[Any, ...], keywords: dict[str, Any], y: Tensor | None) -> "TrainingBatch":
        """Return the batch that a model is called with."""
        named = {f"[{position}]": argument for position, argument in enumerate(arguments)} | keywords
        return cls.of_inputs(named, y, call=(arguments, keywords))

    @classmethod
    def of_inputs(cls, x: Tree, y: Tensor | None, call: Tree = None) -> "TrainingBatch":
        """Return the batch that a forward pass is given, if that is not a call of the model."""
        named, size = isinstance(x, Mapping), count_examples(x)
        own = x.get("labels") if named else None
        rest = {name: leaf for name, leaf in x.items() if name != "labels"} if named else x
        return cls(x if call is None else call, examples_only(rest, size), own, own if y is None else y, size)

    def points(self, pairs: Tensor, alpha: Tensor, *, between: bool) -> Tree:
        """Make the inputs of points: between the examples, or, for paths that begin at a layer, stand-ins for them."""

        def make(name: str, leaf: Any) -> Any:
            if not has_rows(leaf, self.size):
                return leaf
            if name == "labels" and leaf is self.model_labels:
                # The model's own loss leaves out the points.
                return torch.full((alpha.numel(), *leaf.shape[1:]), IGNORED, device=leaf.device)
            first, second = ({name: leaf[end]} for end in pairs.to(leaf.device).unbind(1))
            if between:
                return interpolate(first, second, alpha)[name]
            return join_masks(first, second)[name].repeat_interleave(alpha.shape[1], dim=0)

        return named_map(make, self.inputs)

    def check_model_labels(self, model: object, *, anchored: bool) -> None:
        """Raise if the model's own loss may count the points, or if it shifts labels that are to be anchored."""
        module, own = as_module(model), self.model_labels
        framework = framework_of(module)
        if isinstance(own, Tensor) and not framework.leaves_out_ignored(module, own):
            raise OwnLossError(
                "x holds 'labels', of which the model may make a loss of its own that counts the points too. Take them "
                "out of x, give them as y, and compute the loss from the outputs. If the model needs them for "
                "something else, pass them under another name by a function around it."
            )
        if anchored and self.labels is own and framework.shifts_labels(module):
            raise ValueError(
                f"anchor_labels=True puts labels where the outputs are, but {type(module).__name__} compares each "
                "output with the label of the next position. Use anchor_labels=False, or give shifted labels as y."
            )


def check_no_loss(returned: Any) -> None:
    """Raise if a model returned a number for the whole batch that can be trained, which the points are counted in."""
    for name, leaf in named_tensors(returned):
        if leaf.requires_grad and leaf.dim() <= 1 and leaf.numel() == 1:
            raise OwnLossError(
                f"the model returned {entry('a single number', name)} for the whole batch, such as a loss of its own, "
                "which counts the points as examples. Leave out the arguments it is made of and "
                "compute the loss from the outputs. If it is no loss, leave it out by a function around the model, "
                "such as penalty(lambda x: model(x)[0], x, y)."
            )
