"""Losses that models make themselves: in a joined batch they would count the points as examples."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from effdeg._models.layers import as_module
from effdeg._utils.tree import entry, named_tensors

_SHIFTING = ("ForCausalLM", "LMHeadModel")


class OwnLossError(ValueError):
    """A model makes a loss of its own, in which the points would be counted as examples."""


def check_own_loss(model: object, keywords: Mapping[str, Any]) -> None:
    """Raise if a model is given labels to make a loss of, unless its loss is known to leave out what is marked so."""
    labels = keywords.get("labels")
    if isinstance(labels, Tensor) and not leaves_out_ignored(model, labels):
        raise OwnLossError(
            "x holds 'labels', of which the model may make a loss of its own that counts the points too. Take them out "
            "of x, give them as y, and compute the loss from the outputs. If the model needs them for something else, "
            "pass them under another name by a function around it."
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


def leaves_out_ignored(model: object, labels: Tensor) -> bool:
    """Return whether a model's own loss is cross entropy that leaves out the label -100: many of Hugging Face's are."""
    inner = innermost(model)
    kind = type(inner)
    if not kind.__module__.startswith("transformers.") or labels.is_floating_point():
        return False
    if kind.__name__.endswith((*_SHIFTING, "ForMaskedLM", "ForTokenClassification")):
        return True
    classes = inner.config.problem_type in (None, "single_label_classification") and inner.config.num_labels > 1
    return classes and kind.__name__.endswith(("ForSequenceClassification", "ForImageClassification"))


def shifts_labels(model: object) -> bool:
    """Return whether a model compares its output at each position with the label of the next."""
    name = type(innermost(model)).__name__
    return name.endswith(_SHIFTING) and not name.startswith(("XLNet", "XLM", "Flaubert"))


def innermost(model: object) -> Any:
    """Return the module behind a model, within PEFT's wrapper too."""
    inner: Any = as_module(model)
    return inner.get_base_model() if type(inner).__module__.startswith("peft.") else inner
