"""From what a model returned to the values that are fitted."""

import sys
import sysconfig
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any, Literal, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from effdeg._utils.checks import check_choice
from effdeg._utils.tree import check_plain, named_leaves, named_tensors

TOLERANCE = 0.01
"""How far probabilities may sum from 1: those in bfloat16 or with three decimals do within this, logits do not."""

_PERCENT = 100
"""What percentages sum to, which are taken for probabilities: softmax would make them nearly certain."""

_ENOUGH = 64
"""This many outputs that are all between 0 and 1 are probabilities; fewer may be the logits of a new network."""

_LOOKED_AT = 2**22
"""This many outputs are looked at to find what they are."""

_FEATURES = {"last_hidden_state", "hidden_states", "encoder_last_hidden_state", "pooler_output"}
"""The names of outputs of Hugging Face's models without a head."""

Output = Literal["softmax", "sigmoid", "identity"] | Callable[[Any], Tensor]
"""What is fitted: probabilities of classes, independent probabilities, the output as it is, or any function of it."""


class Picked(NamedTuple):
    """The tensor of a model's output that is fitted."""

    tensor: Tensor
    name: str | None  # "output" if the model returned nothing else, "logits", a key, "[0]" …; None for a function
    returned: Any  # what the model returned
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
        self._checked = 0  # the largest number of points that was checked: a first trial may have only a few
        self.described = Described()

    def __call__(self, returned: Any, points: int) -> Tensor:
        """Return one row of values per point."""
        picked = _pick(returned, self._output, (points,))
        values = _transform(picked, self._output, (points,))
        if points > self._checked:
            rows = max(1, _LOOKED_AT * len(picked.tensor) // max(1, picked.tensor.numel()))
            some = picked.tensor[:rows]
            _check_no_probabilities(some, self._output)
            _warn_of_rounded_logits(some, self._output)
            self._checked = points
            dtype = str(_find_precision(some)).removeprefix("torch.")
            self.described = Described(picked.name, picked.others, tuple(values.shape[1:]), dtype)
        return values.reshape(len(values), -1)


def _find_precision(values: Tensor) -> torch.dtype:
    """Return the precision of outputs: a coarser one than their type if all are rounded to it, as within a model."""
    if values.dtype not in (torch.float32, torch.float64) or torch.unique(values).numel() < _ENOUGH:
        return values.dtype
    if torch.equal(values, values.round()):  # whole numbers say nothing
        return values.dtype
    rounded = (dtype for dtype in (torch.bfloat16, torch.float16) if torch.equal(values.to(dtype).to(values), values))
    return next(rounded, values.dtype)


def _warn_of_rounded_logits(values: Tensor, output: Output) -> None:
    """Warn if logits are so large that their rounding changes the probabilities."""
    if output not in ("softmax", "sigmoid") or values.dtype not in (torch.float32, torch.float64):
        return
    size = float(values.abs().max())
    step = size * torch.finfo(values.dtype).eps
    if 0.01 < step < torch.inf:
        warnings.warn(
            f"the logits (up to {size:.2g}) are rounded to {str(values.dtype).removeprefix('torch.')} in steps of "
            f"about {step:.1g}, which the value counts. Subtract what they have in common, or use dtype=torch.float64.",
            stacklevel=2,
        )


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

    A function's ends with a hash of its code and of the values and functions that this refers to. That of a method, an
    object, or a function that refers to other objects ends with a number of the object.
    """
    if isinstance(output, str | BuiltinFunctionType | MethodDescriptorType):
        return output_name(output)
    if isinstance(output, FunctionType):
        # Some have no description: cells without contents, sparse tensors, lists that hold themselves.
        with suppress(TypeError, ValueError, RuntimeError):
            return f"{output_name(output)} {sha256(repr(_describe_value(output, [])).encode()).hexdigest()[:8]}"
    try:
        token = _TOKENS.setdefault(getattr(output, "__self__", output), uuid4().hex[:8])
    except TypeError:  # neither hashable nor weakly referenced
        token = f"{id(output):x}"
    return f"{output_name(output)} {token}"


_Plain = int | float | complex | str | bytes | slice | EllipsisType | torch.dtype | torch.device | np.generic


def _describe_value(value: Any, seen: list[Any]) -> Any:
    """Describe a value, or what a function does, so that equal descriptions mean the same.

    Raises:
        TypeError: If it cannot be described.
    """
    if isinstance(value, Tensor):
        array = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return [str(value.dtype), tuple(value.shape), sha256(array.tobytes()).hexdigest()]
    if isinstance(value, np.ndarray) and value.dtype != object:
        return [str(value.dtype), value.shape, sha256(value.tobytes()).hexdigest()]
    if isinstance(value, tuple | list):
        return [type(value).__name__, *(_describe_value(each, seen) for each in value)]
    if isinstance(value, frozenset):
        return sorted(map(repr, value))  # in an order that is the same in every process
    if isinstance(value, dict):
        return [(key, _describe_value(each, seen)) for key, each in value.items()]
    if isinstance(value, FunctionType) and not _is_installed(value.__code__.co_filename):
        if value in seen:  # described already, or calls itself
            return f"function {seen.index(value)}"
        seen.append(value)
        return _describe_function(value, seen)
    if isinstance(value, ModuleType | type | FunctionType | BuiltinFunctionType | MethodDescriptorType):
        return f"{getattr(value, '__module__', '')}.{value.__name__}"
    if value is None or isinstance(value, _Plain):
        return repr(value)
    raise TypeError(f"a {type(value).__name__} has no description")


def _describe_function(function: FunctionType, seen: list[Any]) -> list[Any]:
    cells = [each.cell_contents for each in function.__closure__ or ()]
    described = [_describe_value(each, seen) for each in (function.__defaults__, function.__kwdefaults__, cells)]
    waiting = [function.__code__]
    for code in waiting:
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
        constants = [_describe_value(each, seen) for each in code.co_consts if not isinstance(each, CodeType)]
        described += [code.co_code, code.co_names, constants]
        for name in code.co_names:
            value = function.__globals__.get(name)
            described.append(_describe_value(value, seen))
            # The code names attributes of modules and classes, too.
            if isinstance(value, ModuleType | type) and not _is_installed(_find_file(value)):
                parts = [getattr(value, part) for part in code.co_names if hasattr(value, part)]
                described += [_describe_value(part, seen) for part in parts]
    return described


def _find_file(value: Any) -> str | None:
    module = value if isinstance(value, ModuleType) else sys.modules.get(value.__module__)
    return getattr(module, "__file__", None)


def _is_installed(file: str | None) -> bool:
    """Return whether code is that of Python or of a package, which is known by its name."""
    installed = file is not None and {"site-packages", "dist-packages"} & set(Path(file).parts)
    return file is None or bool(installed) or file.startswith((sysconfig.get_path("stdlib"), "<frozen"))


def as_values(returned: Any, output: Output, *, points: int) -> Tensor:
    """Return one row of values per point."""
    values = shaped_values(returned, output, points=points)
    return values.reshape(len(values), -1)


def shaped_values(
    returned: Any, output: Output, *, points: int | tuple[int, ...], look: bool = False, whose: str = "model"
) -> Tensor:
    """Do as :func:`as_values` does but keep the shape of the outputs; of several ``points`` any may be their number.

    With ``look``, which waits for a GPU, raise if the outputs are probabilities where logits are needed, and warn if
    another tensor could have been meant. Messages say ``whose`` outputs they are.
    """
    possible = (points,) if isinstance(points, int) else points
    picked = _pick(returned, output, possible, whose)
    values = _transform(picked, output, possible, whose)
    if look and picked.others:
        other = "write output=lambda returned: …, such as returned[1].softmax(-1)"
        warnings.warn(
            f"the {whose} returned several tensors. {picked.name} is used, not {', '.join(picked.others)}; to choose "
            f"another one, {other if whose == 'model' else 'let it return that alone'}.",
            stacklevel=2,
        )
    if look:
        check_plain(f"the {whose}'s outputs", picked.tensor)
        _check_no_probabilities(picked.tensor, output, whose)
    return values


def pick_tensor(returned: Any, points: int) -> Tensor:
    """Return the tensor of a model's output that is fitted, as the model returned it."""
    return _pick(returned, "softmax", (points,)).tensor


def softmax_axis_error(shape: torch.Size, code: str = "returned") -> ValueError:
    """Return the error for maps of logits, whose classes may be first; ``code`` takes them from what is returned."""
    last = "" if shape[-1] == 1 else f", {code}.softmax(-1) if they come last"
    single = " For one logit each use output='sigmoid', for a regression 'identity'." if shape[-1] == 1 else ""
    return ValueError(
        f"output='softmax' is over the last dimension, but outputs of shape {tuple(shape)} per example may have their "
        f"classes in another one. Write output=lambda returned: {code}.softmax(1) if the classes come first{last}; or "
        f"let the model return probabilities, with output='identity'.{single}"
    )


def _pick(returned: Any, output: Output, points: tuple[int, ...], whose: str = "model") -> Picked:
    """Find the tensor that is fitted: what ``output`` returns, a lone tensor, ``logits``, or the first with a batch."""
    if callable(output):
        values: Any = output(returned)
        if not isinstance(values, Tensor):
            problem = f"output={output_name(output)!r} returned {type(values).__name__}; expected a tensor."
            raise TypeError(problem + _advise_on_arrays(values))
        return Picked(values, None, returned)
    if isinstance(returned, Tensor):
        return Picked(returned, "output", returned)
    _check_distribution(returned, output, whose)
    logits = returned.get("logits") if isinstance(returned, Mapping) else getattr(returned, "logits", None)
    if isinstance(logits, Tensor):
        return Picked(logits, "logits", returned)
    named = named_tensors(returned)
    for name, leaf in named_leaves(returned):
        if isinstance(leaf, Distribution):  # a critic's value next to it would be taken instead
            advice = "Let it return logits" if whose == "network" else "Say what is fitted: output=lambda returned: …"
            raise TypeError(f"the {whose} returned a {type(leaf).__name__}{name and f' at {name}'}. {advice}.")
    if not named:
        advice = _advise_on_arrays(returned) or " Say where the values are: output=…, a function of what it returns."
        raise TypeError(f"the {whose} returned {type(returned).__name__}, in which there is no tensor.{advice}")
    # A loss or predicted classes may come first.
    rows = [(name, leaf) for name, leaf in named if leaf.dim() > 0 and _equals_any(leaf.size(0), points)]
    candidates = [(name, leaf) for name, leaf in rows if leaf.is_floating_point() or leaf.is_complex()] or rows or named
    (name, tensor), *others = candidates
    # One number per example next to several, such as a critic's value, is not what is meant.
    return Picked(tensor, name, returned, tuple(other for other, leaf in others if leaf.dim() > 1 or tensor.dim() < 2))


def _check_distribution(returned: Any, output: Output, whose: str) -> None:
    """Raise if the logits of a distribution are not those of classes, of which one is drawn: Bernoulli's, say."""
    constraints = getattr(type(returned), "arg_constraints", None) if isinstance(returned, Distribution) else None
    logits = constraints.get("logits") if isinstance(constraints, dict) else None
    if logits is None or logits.event_dim > 0 or (whose != "network" and output != "softmax"):
        return
    advice = "Use output='sigmoid'" if whose == "model" else "Let it return logits of classes"
    raise ValueError(
        f"the {whose} returned a {type(returned).__name__}, whose logits are those of independent probabilities, not "
        f"of classes, of which one is drawn. {advice}."
    )


def _advise_on_arrays(returned: Any) -> str:
    arrays = any(isinstance(leaf, np.ndarray) for _, leaf in named_leaves(returned))
    return " Convert numpy's arrays before they are returned: torch.from_numpy(array)." if arrays else ""


def _transform(picked: Picked, output: Output, possible: tuple[int, ...], whose: str = "model") -> Tensor:
    values = picked.tensor
    if not values.is_meta:  # with which a training step can be tried out without its values
        check_plain(f"the {whose}'s outputs", values)
    if values.dim() == 0 or not _equals_any(len(values), possible):
        raise ValueError(
            f"the {whose} returned a tensor of shape {tuple(values.shape)} for a batch of {possible[0]}; its first "
            "dimension must be the batch. If it reduces over the batch (a loss, a mean), pass the part before that."
        )
    if values.numel() == 0:
        raise ValueError(f"the {whose} returned no outputs: a tensor of shape {tuple(values.shape)}.")
    _check_real(values, whose)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if output == "softmax":
        _check_classes(values, picked)
        return values.softmax(-1)
    if output == "sigmoid":
        return values.sigmoid()
    # A copy: some models write every batch's output into the same memory.
    return values.clone()


def _check_real(values: Tensor, whose: str) -> None:
    """Raise unless the outputs are real: torch would drop imaginary parts, and class ids are not amounts."""
    if values.is_complex():
        raise TypeError(
            f"the {whose}'s outputs are complex ({values.dtype}), and only real values are fitted. Say which: "
            "output=torch.view_as_real for both parts, output=torch.abs for the magnitude (or a function that first "
            "takes the tensor out of what the model returns)."
        )
    if not values.is_floating_point():
        raise TypeError(
            f"the {whose}'s outputs are integers or flags ({values.dtype}), such as predicted classes. Let the {whose} "
            "return the scores that these come from, or, if the numbers are amounts, use output=lambda y: y.float()."
        )


def _check_classes(values: Tensor, picked: Picked) -> None:
    name, shape = picked.name, values.shape[1:]
    if name is not None and name.split(".")[-1].split("[")[0] in _FEATURES:
        raise ValueError(
            f"output='softmax' makes probabilities of logits, but the model returned {name} of shape "
            f"{tuple(shape)} per example, which are features. Use output='identity', or a model with a head."
        )
    if shape.numel() == 1:
        raise ValueError(
            f"output='softmax' of a single output (shape {tuple(values.shape)}) is always 1. Use output='identity' "
            "for a regression, output='sigmoid' for one logit."
        )
    if len(shape) > 2 or shape[-1] == 1:
        raise softmax_axis_error(shape, _find_code(picked.returned, picked.tensor) or "returned")


def _find_code(returned: Any, tensor: Tensor, code: str = "returned") -> str | None:
    """Return the Python code that takes a tensor from what the model returned."""
    if returned is tensor:
        return code
    if isinstance(returned, Mapping):
        entries = [(f"{code}[{key!r}]", returned[key]) for key in returned]
    elif isinstance(returned, tuple | list):
        entries = [(f"{code}[{index}]", entry) for index, entry in enumerate(returned)]
    else:
        names = getattr(returned, "__dataclass_fields__", ("logits",))
        entries = [(f"{code}.{name}", getattr(returned, name)) for name in names if hasattr(returned, name)]
    return next(filter(None, (_find_code(entry, tensor, within) for within, entry in entries)), None)


def are_distributions(values: Tensor) -> bool:
    """Return whether no output is negative, and those of the last dimension sum to 1, or all to 100 percent."""
    sums = values.double().sum(-1)
    known = (((sums / total - 1).abs() <= TOLERANCE).all() for total in (1, _PERCENT))
    return bool((values >= 0).all()) and any(map(bool, known))


def as_class_logits(outputs: Tensor) -> Tensor:
    """Return logits, examples × classes, of outputs; a single one is the logit of class 1 of two."""
    if outputs.dim() > 2:
        raise ValueError(f"one prediction per example is needed; the outputs have shape {tuple(outputs.shape)}.")
    logits = outputs.reshape(len(outputs), -1)
    single = logits.shape[1] == 1
    if not single and are_distributions(logits):
        raise ValueError(
            "the outputs are probabilities already: none is negative, and they sum to 1 or 100. Let the model return "
            "logits."
        )
    if (bounds := _bounds_like_probabilities(logits)) is not None:
        problem = f"the outputs are all {bounds.text}, as probabilities are"
        if bounds.wide:
            raise ValueError(f"{problem}. Let the model return logits.")
        if single:
            warnings.warn(f"{problem}; they are taken for logits.", stacklevel=2)
    return torch.cat([torch.zeros_like(logits), logits], dim=1) if single else logits


def _check_no_probabilities(values: Tensor, output: Output, whose: str = "model") -> None:
    """Raise if outputs are already probabilities, which softmax or sigmoid would make nearly equal."""
    advice = "Use output='identity'" if whose == "model" else "Let it return logits"
    if output == "softmax" and are_distributions(values):
        raise ValueError(
            f"output='softmax' makes probabilities of logits, but the {whose}'s outputs are probabilities already: "
            f"none is negative, and they sum to 1 or 100. {advice}."
        )
    if output == "sigmoid" and values.dim() > 1 and values.shape[-1] > 1 and are_distributions(values.exp()):
        raise ValueError(
            f"output='sigmoid' makes probabilities of logits, but the {whose}'s outputs are logarithms of "
            "probabilities that sum to 1, as of log_softmax. Use output='softmax'."
        )
    if output not in ("softmax", "sigmoid") or (bounds := _bounds_like_probabilities(values)) is None:
        return
    if output == "softmax" and not bounds.wide:  # as the logits of many networks before training
        return
    transform = "torch.sigmoid" if output == "sigmoid" else "lambda logits: logits.softmax(-1)"
    problem = (
        f"output={output!r} makes probabilities of logits, but the {whose}'s outputs are all {bounds.text}, as "
        f"probabilities are. {advice} if they are; if they are logits, use output={transform}."
    )
    # A single logit of a new network is between 0 and 1 for all examples in a few percent of all cases.
    if output == "sigmoid" and (values[0].numel() > 1 or bounds.wide):
        raise ValueError(problem)
    warnings.warn(problem, stacklevel=2)


class _Bounds(NamedTuple):
    text: str
    wide: bool


def _bounds_like_probabilities(values: Tensor) -> _Bounds | None:
    """Return what bounds many outputs if these lie between 0 and 1, and whether they reach far; None if they do not."""
    least, most = (float(bound) for bound in values.detach().aminmax())
    # A last layer that starts at zero returns the same for all examples.
    if not 0 <= least < most <= 1 or values.numel() < _ENOUGH:
        return None
    return _Bounds(f"from {least:.2g} to {most:.2g}", least < 0.1 and most > 0.9)


def _equals_any(rows: int, possible: tuple[int, ...]) -> bool:
    # Not `in`: under torch.compile rows may be symbolic, and are then found in no tuple.
    return any(rows == each for each in possible)
