"""From what a model returned to the values that are fitted."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from effdeg._utils.checks import check_choice
from effdeg._utils.tree import named_tensors

TOLERANCE = 0.01
"""How far probabilities may sum from 1. Labels mixed or smoothed in bfloat16, which has eight bits, or written with
three decimals sum to 1 within this; logits, percentages and several labels per example do not. An error of this size
changes the effective degree by about as little."""

_FEATURES = {"last_hidden_state", "hidden_states", "encoder_last_hidden_state", "pooler_output"}
"""The names of outputs of Hugging Face's models without a head."""

Output = Literal["softmax", "sigmoid", "identity"] | Callable[[Any], Tensor]
"""What is fitted: probabilities of classes, independent probabilities, the output as it is, or any function of it."""


class Picked(NamedTuple):
    """The tensor of a model's output that is fitted."""

    tensor: Tensor
    name: str | None  # "output" if the model returned nothing else, "logits", a key, "[0]" …; None for a function
    others: tuple[str, ...] = ()  # tensors that could have been meant as well, where the first was chosen


@dataclass(frozen=True)
class Described:
    """What was fitted, for a record of the settings: see :class:`effdeg.Settings`."""

    tensor: str | None = None
    other_tensors: tuple[str, ...] = ()
    outputs: tuple[int, ...] = ()
    dtype: str | None = None


class OutputReader:
    """Reads the values that are fitted from what a model returned, and remembers what they were."""

    def __init__(self, output: Output) -> None:
        check_output(output)
        self._output = output
        self.described = Described()

    def __call__(self, returned: Any, points: int) -> Tensor:
        """Return one row of values per point."""
        picked = _pick(returned, self._output, (points,))
        values = _transform(picked, self._output, (points,))
        if self.described.dtype is None:
            if self._output == "softmax":
                _check_no_probabilities(picked.tensor)
            dtype = str(picked.tensor.dtype).removeprefix("torch.")
            self.described = Described(picked.name, picked.others, tuple(values.shape[1:]), dtype)
        return values.reshape(len(values), -1)


def check_output(output: Output) -> None:
    """Raise unless the output is one of the known names or a function."""
    if not callable(output):
        check_choice("output", output, ("softmax", "sigmoid", "identity"))


_TOKENS: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


def output_name(output: Output) -> str:
    """Return the name of the output for messages."""
    return output if isinstance(output, str) else getattr(output, "__name__", type(output).__name__)


def identify_output(output: Output) -> str:
    """Return a name of the output for a record of the settings, which two different functions do not share.

    A lambda, a function with variables of its surroundings, and an object have no name that says what they compute: a
    random number follows theirs, the same one for the same object.
    """
    named = getattr(output, "__name__", "<lambda>") != "<lambda>" and not getattr(output, "__closure__", None)
    if isinstance(output, str) or named:
        return output_name(output)
    try:
        token = _TOKENS.setdefault(output, uuid4().hex[:8])
    except TypeError:  # neither hashable nor weakly referenced
        token = f"{id(output):x}"
    return f"{output_name(output)} {token}"


def as_values(returned: Any, output: Output, *, points: int | tuple[int, ...]) -> Tensor:
    """Return one row of values per point; if several numbers of points are given, any of them may be the number."""
    values = shaped_values(returned, output, points=points)
    return values.reshape(len(values), -1)


def shaped_values(returned: Any, output: Output, *, points: int | tuple[int, ...], look: bool = False) -> Tensor:
    """Do as :func:`as_values` does but keep the shape of the outputs.

    With ``look``, which waits for a GPU, raise if softmax is asked for and the outputs are probabilities already, and
    warn if another tensor could have been meant.
    """
    possible = (points,) if isinstance(points, int) else points
    picked = _pick(returned, output, possible)
    values = _transform(picked, output, possible)
    if look and picked.others:
        warnings.warn(
            f"the model returned several tensors. {picked.name} is used, not {', '.join(picked.others)}; to choose "
            "another one, write output=lambda returned: …, such as returned[1].softmax(-1).",
            stacklevel=2,
        )
    if look and output == "softmax":
        _check_no_probabilities(picked.tensor)
    return values


def softmax_axis_error(shape: torch.Size) -> ValueError:
    """Return the error for maps of logits, whose classes are usually first while softmax is over the last dimension."""
    return ValueError(
        f"output='softmax' is over the last dimension, but outputs of shape {tuple(shape)} per example look like maps "
        "with the classes first. Say which it is: output=lambda returned: returned.softmax(1), or of returned.logits."
    )


def _pick(returned: Any, output: Output, points: tuple[int, ...]) -> Picked:
    """Find the tensor that is fitted: what ``output`` returns, a lone tensor, ``logits``, or the first with a batch."""
    if callable(output):
        values = output(returned)
        if not isinstance(values, Tensor):
            raise TypeError(f"output={output_name(output)!r} returned {type(values).__name__}; expected a tensor.")
        return Picked(values, None)
    if isinstance(returned, Tensor):
        return Picked(returned, "output")
    if isinstance(getattr(returned, "logits", None), Tensor):
        return Picked(returned.logits, "logits")
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        return Picked(returned["logits"], "logits")
    found = named_tensors(returned)
    if not found:
        raise TypeError(
            f"the model returned {type(returned).__name__}, in which there is no tensor. Say where the values are with "
            "output=…, a function of what the model returns."
        )
    # A loss or predicted classes may come first.
    rows = [(name, leaf) for name, leaf in found if leaf.dim() > 0 and _equals_any(len(leaf), points)]
    candidates = [(name, leaf) for name, leaf in rows if leaf.is_floating_point() or leaf.is_complex()] or rows or found
    (name, tensor), *others = candidates
    # One number per example next to several, such as a critic's value, is not what is meant.
    return Picked(tensor, name, tuple(other for other, leaf in others if leaf.dim() > 1 or tensor.dim() < 2))


def _transform(picked: Picked, output: Output, possible: tuple[int, ...]) -> Tensor:
    """Check the picked tensor and turn it into the values that are fitted."""
    values = picked.tensor
    if values.dim() == 0 or not _equals_any(len(values), possible):
        raise ValueError(
            f"the model returned a tensor of shape {tuple(values.shape)} for a batch of {possible[0]}; its first "
            "dimension must be the batch. If it reduces over the batch (a loss, a mean), pass the part before that."
        )
    if values.numel() == 0:
        raise ValueError(f"the model returned no outputs: a tensor of shape {tuple(values.shape)}.")
    _check_real(values)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if output == "softmax":
        _check_classes(values, picked.name)
        return values.softmax(-1)
    if output == "sigmoid":
        return values.sigmoid()
    # A copy: some models write every batch's output into the same memory.
    return values.clone()


def _check_real(values: Tensor) -> None:
    """Raise unless the outputs are real: torch would drop imaginary parts, and class ids are not amounts."""
    if values.is_complex():
        raise TypeError(
            f"the model's outputs are complex ({values.dtype}), and only real values are fitted. Say which: "
            "output=torch.view_as_real for both parts, output=torch.abs for the magnitude (or a function that first "
            "takes the tensor out of what the model returns)."
        )
    if not values.is_floating_point():
        raise TypeError(
            f"the model's outputs are integers or flags ({values.dtype}), such as predicted classes. Let the model "
            "return the scores that these come from, or, if the numbers are amounts, use output=lambda y: y.float()."
        )


def _check_classes(values: Tensor, name: str | None) -> None:
    """Raise unless the last dimension can be classes."""
    if name is not None and name.split(".")[-1].split("[")[0] in _FEATURES:
        raise ValueError(
            f"output='softmax' makes probabilities of logits, but the model returned {name} of shape "
            f"{tuple(values.shape[1:])} per example, which are features. Use output='identity', or a model with a head."
        )
    if values.dim() == 1 or values.shape[-1] == 1:
        raise ValueError(
            f"output='softmax' of a single output (shape {tuple(values.shape)}) is always 1. Use output='identity' "
            "for a regression, output='sigmoid' for one logit."
        )
    if values.dim() > 3:
        raise softmax_axis_error(values.shape[1:])


def _check_no_probabilities(values: Tensor) -> None:
    """Raise if outputs are already distributions, which softmax would make nearly uniform."""
    sums = values.double().sum(-1)
    if bool((values >= 0).all() & ((sums - 1).abs() <= TOLERANCE).all()):
        raise ValueError(
            "output='softmax' makes probabilities of logits, but the model's outputs are probabilities already: none "
            "is negative, and they sum to 1. Use output='identity'."
        )


def _equals_any(rows: int, possible: tuple[int, ...]) -> bool:
    # Not `in`: under torch.compile rows may be symbolic, and are then found in no tuple.
    return any(rows == each for each in possible)
