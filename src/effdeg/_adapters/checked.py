"""Which models were checked: on a GPU a check has to be waited for, so that only the first call of a model has it."""

import inspect
from functools import partial
from types import FunctionType
from typing import Any
from weakref import WeakSet, ref

from torch import nn

from effdeg._adapters.layers import as_module


class CheckedModels:
    """The models that have passed a check. They are not kept alive by it, and a copy has none."""

    def __init__(self) -> None:
        self._parts: WeakSet[Any] = WeakSet()

    def __contains__(self, model: object) -> bool:
        return all(part in self._parts for part in find_parts(model))

    def add(self, model: object) -> None:
        """Remember that a model has passed."""
        self._parts.update(find_parts(model))

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckedModels, ()


def find_parts(model: object) -> list[Any]:
    """Return what makes a model and stays, even if a function is written anew: its code, its object, its modules."""
    used: list[Any] = []
    while isinstance(model, partial):
        used += [*model.args, *model.keywords.values()]
        model = model.func
    if (module := as_module(model)) is not None:
        return [module]
    function = getattr(model, "__func__", model)
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, FunctionType):
        return [_as_weak(model)]
    names = inspect.getclosurevars(function)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    used += [*names.nonlocals.values(), *names.globals.values(), *defaults]
    owner = _as_weak(getattr(model, "__self__", None))
    return [function.__code__, owner, *(each for each in used if isinstance(each, nn.Module))]


def _as_weak(part: object) -> Any:
    """Return an object that a weak set can hold: its type if not itself."""
    try:
        hash(part)
        ref(part)
    except TypeError:
        return type(part)
    return part
