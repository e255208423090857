"""What the tensors of a batch are to a model: its arguments, by the names of its parameters, or labels."""

import inspect
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from effdeg._adapters.examples import LABELS, check_finite, describe_shapes, is_plain_tuple, split_labels
from effdeg._adapters.layers import as_module, base_model
from effdeg._adapters.outputs import are_distributions
from effdeg._adapters.paths import hides_ones, is_floating_mask, is_mask
from effdeg._utils.checks import shorten
from effdeg._utils.device import is_traced
from effdeg._utils.tree import Tree, map_tensors, named_tensors, tensors


class Parameter(NamedTuple):
    """A parameter of a model's forward function."""

    name: str
    required: bool
    takes_tensor: bool  # as a flag does not, by its default

    @classmethod
    def of(cls, name: str, *, has_default: bool, default: object) -> "Parameter":
        """Describe a parameter by its default."""
        return cls(name, not has_default, not has_default or default is None or isinstance(default, Tensor))

    @property
    def is_mask(self) -> bool:
        """Whether it is a mask by its name."""
        return "mask" in self.name.lower()

    @property
    def is_label(self) -> bool:
        """Whether it holds labels by its name."""
        return self.name in LABELS


class Signature(NamedTuple):
    """What a model's forward function takes."""

    parameters: Sequence[Parameter] | None = None  # by position; None if their names or number are not known
    keywords: Sequence[Parameter] = ()  # by name alone
    more_arguments: bool = False  # *args
    more_keywords: bool = False  # **kwargs

    @property
    def named(self) -> list[Parameter]:
        """The parameters with known names."""
        return [*(self.parameters or ()), *self.keywords]


class DataNote(UserWarning):
    """Tensors of the data are not used, or their use was inferred."""


class Item(NamedTuple):
    """A batch of a data set, divided by what its entries are to a model."""

    inputs: Tree
    labels: Any = None
    note: str | None = None  # on entries that are not used, or whose use was inferred


def _find_signature(model: object) -> Signature:
    if not isinstance(model, nn.Module):
        return _read_signature(model)
    # A wrapper such as PEFT's may pass on whatever it is given.
    signatures = [_read_signature(module) for module in dict.fromkeys((as_module(model), base_model(model)))]
    return next((signature for signature in signatures if signature.parameters is not None), signatures[-1])


def _read_signature(model: Any) -> Signature:
    if isinstance(model, torch.jit.ScriptModule):
        script: Any = model.forward
        return Signature([
            Parameter.of(each.name, has_default=each.has_default_value(), default=each.default_value)
            for each in script.schema.arguments[1:]
        ])
    try:
        # By the class, since the function may be replaced on an object while it is trained.
        function, skipped = (type(model).forward, 1) if isinstance(model, nn.Module) else (model, 0)
        parameters = list(inspect.signature(function).parameters.values())[skipped:]
    except (TypeError, ValueError):  # some builtins have none
        return Signature()
    by_kind: dict[Any, list[Parameter]] = defaultdict(list)
    for each in parameters:
        described = Parameter.of(each.name, has_default=each.default is not each.empty, default=each.default)
        by_kind[each.kind].append(described)
    kind = inspect.Parameter
    more = kind.VAR_POSITIONAL in by_kind
    return Signature(
        None if more else by_kind[kind.POSITIONAL_ONLY] + by_kind[kind.POSITIONAL_OR_KEYWORD],
        by_kind[kind.KEYWORD_ONLY],
        more_arguments=more,
        more_keywords=kind.VAR_KEYWORD in by_kind,
    )


def name_arguments(arguments: Sequence[Any], model: object) -> dict[str, Any]:
    """Return positional arguments by the names of their parameters, or as ``[0]``, ``[1]``, … where these are unknown.

    An argument that may be a mask is refused if it has no name, or that of another parameter.
    """
    return _name(arguments, _find_signature(model).parameters if len(arguments) > 1 else None)


def check_argument_count(arguments: Sequence[Any], model: object) -> None:
    """Raise if a model takes fewer positional arguments than these."""
    parameters = _find_signature(model).parameters
    if parameters is not None and len(parameters) < len(arguments) and "forward" not in getattr(model, "__dict__", {}):
        takes = ", ".join(each.name for each in parameters) or "nothing"
        raise TypeError(
            f"inputs are {len(arguments)} tensors, but {type(as_module(model) or model).__name__} takes {takes}. Give "
            "inputs without labels, or a data set or DataLoader of (inputs, labels)."
        )


def _name(arguments: Sequence[Any], parameters: Sequence[Parameter] | None) -> dict[str, Any]:
    if parameters is not None and len(parameters) >= len(arguments):
        named = dict(zip((each.name for each in parameters), arguments, strict=False))
        _check_places(named, parameters)
        return named
    for position, argument in enumerate(arguments[1:], start=1):
        integers = isinstance(argument, Tensor) and argument.dtype != torch.bool and not argument.is_floating_point()
        if integers and _has_positions_of(arguments[0], argument):
            raise TypeError(
                f"inputs ('[{position}]') hold integers ({argument.dtype}), and the names of the model's parameters "
                "are not known: are they a mask? Pass a mask as booleans, .bool(); for anything else write a function "
                "with named parameters around the model."
            )
    return {f"[{position}]": argument for position, argument in enumerate(arguments)}


def _check_places(named: Mapping[str, Any], parameters: Sequence[Parameter]) -> None:
    """Raise if a mask would be passed as something else, as past values, by a model that takes masks elsewhere."""
    mask = _find_free_mask(parameters, named)
    (first, examples), *others = named.items()
    for name, entry in others if mask is not None else []:
        if not _has_positions_of(examples, entry) or entry.is_floating_point() or re.search("type|segment", name):
            continue
        # Numbers are not read on a GPU, which would wait, or where there are none.
        if entry.dtype == torch.bool or (entry.is_cpu and not is_traced() and _may_be_mask(entry)):
            raise TypeError(
                f"inputs ({name!r}, by their place) may be a mask, but the model takes one as {mask!r}. Give the "
                f"inputs by name: {{{first!r}: …, {mask!r}: …}}."
            )


def _find_free_mask(parameters: Iterable[Parameter], used: Collection[str]) -> str | None:
    """Return the name of the first parameter that is a mask if none of these is used."""
    masks = [each.name for each in parameters if each.is_mask]
    return masks[0] if masks and set(masks).isdisjoint(used) else None


class ItemReader:
    """Decides what the entries of the items of a data set are to a model.

    A mapping has labels by name (:data:`LABELS`); what is no tuple is inputs alone. The entries of a tuple are, in this
    order: the arguments that the model requires; one further input, if the model has a parameter for it; and labels. A
    pair is inputs and labels unless its second entry has the shape of a mask and the model's second parameter is one.
    """

    def __init__(self, model: object) -> None:
        # Not the model itself, since processes that load data get a copy of this.
        self._name = type(as_module(model) or model).__name__
        self._signature = _find_signature(model)
        self._known = self._signature.parameters or []

    def __call__(self, item: Any) -> Item:
        """Divide a batch of items into what the model is called with, and labels; raise if either is unclear."""
        if isinstance(item, Mapping):
            inputs, labels = split_labels(item)
            return Item(inputs, labels, self._note_unknown(inputs))
        if not is_plain_tuple(item):
            return Item(item)
        if len(item) == 1 or is_plain_tuple(item[0]) or isinstance(item[0], Mapping):  # complete inputs
            return self._use(item, 1)
        # Without these the model cannot be called.
        optional = (i for i, each in enumerate(self._known) if not each.required or each.is_label)
        required = next(optional, len(self._known))
        count = max(1, min(required, len(item)))
        return self._use(item, count, self._choose(item, count) if len(item) > count else None)

    def _choose(self, item: Sequence[Any], count: int) -> Parameter | None:
        """Return the parameter that the entry after the first ones belongs to, None for labels; raise if unclear."""
        following = self._known[count] if count < len(self._known) else None
        masks_by_name = [each for each in self._signature.keywords if each.is_mask]
        further = [each for each in (*self._known[count:], *masks_by_name) if each.takes_tensor and not each.is_label]
        masks = [each for each in further if each.is_mask]
        entry, *others = item[count:]
        if others and self._signature.parameters is None:
            raise self._unclear(item)
        if not further or (following is not None and following.is_label):
            return None
        following = following if following in further else None
        has_positions = _has_positions_of(item[0], entry)
        if not others:
            if not has_positions:
                return None
            if following is not None and following.is_mask:
                return following
            # Token ids and their labels are a pair too.
            if (following is not None and entry.is_floating_point()) or (masks and _may_be_mask(entry)):
                raise self._unclear(item)
            return None
        if not isinstance(entry, Tensor) or entry.numel() == len(entry):  # one number per example
            if masks == further:  # which has more
                return None
            raise self._unclear(item)
        after = further[1:2] if following is not None else further[:1]
        if len(others) > 1 or (after and _has_positions_of(item[0], others[0]) and _holds_flags(others[0])):
            raise self._unclear(item)  # more inputs, perhaps in another order
        if masks and has_positions and following not in masks:
            following = masks[0] if len(masks) == 1 and _may_be_mask(entry) else None
        if following is None or (following.is_mask and not has_positions):
            raise self._unclear(item)
        return following

    def _use(self, item: Sequence[Any], count: int, parameter: Parameter | None = None) -> Item:
        """Use the first entries as inputs, a further one for a parameter, the next as labels; note what is left."""
        inputs = item[0] if count == 1 else tuple(item[:count])
        note = None
        if parameter is not None:
            further = item[count]
            if parameter.is_mask and not _may_be_mask(further, parameter.name):
                raise self._unclear(item)
            check_finite({parameter.name: further})
            names = [*(each.name for each in self._known[:count]), parameter.name]
            inputs, count = dict(zip(names, item, strict=False)), count + 1
            note = _note_passed(names)
        elif is_plain_tuple(inputs) and len(inputs) > 1:
            named = _name(inputs, self._signature.parameters)
            if count > 1:
                note = _note_passed(named)
            inputs = named if any("mask" in name.lower() or hides_ones(name) for name in named) else inputs
        labels, *unused = item[count:] or [None]
        used = {each.name for each in self._known[:count]} if parameter is None else set(inputs)
        if any(self._may_take(item, entry, used) for entry in item[count:]):
            raise self._unclear(item)
        if tensors(unused):
            # What has the positions of the inputs is hardly the labels if more follows.
            first = count if _has_positions_of(item[0], labels) else count + 1
            shapes = _describe_entries({f"[{place}]": entry for place, entry in enumerate(item) if place >= first})
            are = "is" if first == len(item) - 1 else "are"
            note = f"of each item of the data, {shapes} {are} not used by the model."
        elif note is None and (other := self._find_other_use(labels, count)) is not None:
            note = (
                f"of each item of the data, [{count}] is taken for labels, not for {other!r}; to pass it, give dicts."
            )
        return Item(inputs, labels, note or self._note_unknown(inputs))

    def _may_take(self, item: Sequence[Any], entry: Any, used: Collection[str]) -> bool:
        """Return whether an entry that is not passed to the model may be a mask, or another input, that it takes."""
        signature = self._signature
        if not _has_positions_of(item[0], entry):
            return False
        if entry.is_floating_point():
            return signature.more_arguments
        if entry.dtype != torch.bool:
            return _find_free_mask(signature.named, used) is not None and _may_be_mask(entry)
        # The second entry of a pair can be labels that the model has a parameter for.
        free = (each for each in signature.named if each.name not in used and (len(item) > 2 or not each.is_label))
        return signature.more_arguments or signature.more_keywords or any(each.takes_tensor for each in free)

    def _find_other_use(self, labels: Any, count: int) -> str | None:
        """Return the name of the next parameter if it may be meant for what is taken for labels, a row of amounts."""
        following = self._known[count : count + 1]
        takes = any(each.takes_tensor and not each.is_label and not each.is_mask for each in following)
        amounts = isinstance(labels, Tensor) and labels.is_floating_point() and labels[0].numel() > 1
        return following[0].name if takes and amounts and not are_distributions(labels) else None

    def _note_unknown(self, inputs: Tree) -> str | None:
        """Return a note on inputs by names that no parameter has, if the model takes any."""
        if not isinstance(inputs, Mapping) or not self._signature.more_keywords or not self._known:
            return None
        known = [each.name for each in self._signature.named]
        unknown = [repr(name) for name in inputs if name not in known]
        matches, them = ("match", "them") if len(unknown) > 1 else ("matches", "it")
        problem = f"of each item of the data, {', '.join(unknown)} {matches} no parameter of {self._name} by name"
        return f"{problem}; it may ignore {them}." if unknown else None

    def _unclear(self, item: Sequence[Any]) -> TypeError:
        first, names = "x", ["mask"]
        takes = (
            f"the names of the parameters of the model ({self._name}) are not known. Write a function with named "
            "parameters around it"
        )
        if self._signature.parameters is not None:
            known = self._signature.named
            first, *names = [each.name for i, each in enumerate(known) if i == 0 or not each.is_label] or ["x"]
            takes = f"{self._name} takes {shorten([each.name for each in known], 5)}"
            takes += " and any keywords" if self._signature.more_keywords else ""
        names = sorted(names, key=lambda name: "mask" not in name)[: max(1, len(item) - 2)]
        entries = ", ".join(f"{name!r}: …" for name in (first, *names))
        return TypeError(
            f"each item of the data holds {_describe_entries(tuple(item))}, and it is not clear which entries are "
            f"inputs of the model and which are labels: {takes}. Instead of tuples give dicts by the names of its "
            f"parameters, {{{entries}, 'labels': …}}, without what the model does not take."
        )


def note_possible_masks(inputs: Tree) -> str | None:
    """Return a note on integers that may be a mask but do not have its name, so that they are those of one example."""
    leaves = named_tensors(inputs)

    def may_be_mask(name: str, leaf: Tensor) -> bool:
        named = is_mask(name, leaf) or re.search("type|segment|label", name)
        integers = _has_positions_of(leaves[0][1], leaf) and not leaf.is_floating_point()
        return integers and not named and _may_be_mask(leaf)

    names = ", ".join(repr(name) for name, leaf in leaves[1:] if may_be_mask(name, leaf))
    problem = f"inputs ({names}) hold the integers 0 and 1, and stay those of the first example along a path"
    return f"{problem}. If they are a mask, pass booleans: .bool()." if names else None


def note_floating_masks(inputs: Tree) -> str | None:
    """Return a note on masks of 0 and 1 in floating point, which are interpolated among the inputs, not joined."""
    leaves = named_tensors(inputs)
    names = [repr(name) for name, leaf in leaves if is_floating_mask(name, leaf) and _holds_flags(leaf)]
    problem = f"inputs ({', '.join(names)}) are a mask in floating point, which is interpolated along a path"
    advice = "To join the masks of both ends instead, pass booleans: .bool()."
    return f"{problem}. {advice}" if 0 < len(names) < len(leaves) else None


def _describe_entries(entries: Tree) -> str:
    """List the shapes of one item's entries, given a batch of them."""
    return describe_shapes(map_tensors(lambda leaf: leaf[0] if leaf.dim() and len(leaf) else leaf, entries))


def _note_passed(names: Collection[str]) -> str:
    return f"of each item of the data, the first {len(names)} entries are passed to the model: {', '.join(names)}."


def _has_positions_of(first: Any, entry: Any) -> TypeGuard[Tensor]:
    """Return whether an entry has a number for each position of the examples, as a mask has."""
    if not isinstance(entry, Tensor) or not isinstance(first, Tensor) or entry.dim() < 2:
        return False
    return entry.shape == first.shape[: entry.dim()]


def _holds_flags(entry: Tensor) -> bool:
    return bool(((entry == 0) | (entry == 1)).all())


def _may_be_mask(entry: Tensor, name: str = "") -> bool:
    """Return whether the numbers can be a mask: 0 and 1, in floating point also what is added to scores.

    A mask hides no example completely, but token types are often all 0.
    """
    if entry.dtype == torch.bool:
        return True
    if not _holds_flags(entry):
        return entry.is_floating_point() and bool((entry <= 0).all())
    return entry.is_floating_point() or hides_ones(name) or bool(entry.flatten(1).any(1).all())
