"""What the library asks about the models of other frameworks. The answers are in :mod:`effdeg.integrations`."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Framework:
    """What must be known about a framework's modules. The defaults are the answers for plain PyTorch."""

    # Returns the module that a wrapper calls, or None for what is no wrapper.
    unwrap: Callable[[Any], Any] = lambda _: None
    # Returns the module that computes the loss, within a model that was adapted for fine-tuning.
    base_model: Callable[[Any], Any] = lambda module: module
    # Returns whether a model's own loss, for such labels, is cross entropy that leaves out the label -100.
    leaves_out_ignored: Callable[[Any, Tensor], bool] = lambda _, __: False
    # Returns whether a model compares its output at each position with the label of the next.
    shifts_labels: Callable[[Any], bool] = lambda _: False


_PLAIN = Framework()
_KNOWN: dict[str, Framework] = {}


def framework_of(module: object) -> Framework:
    """Return what is known about the framework that a module's class is defined in."""
    load_frameworks()
    return _KNOWN.get(type(module).__module__.partition(".")[0], _PLAIN)


def load_frameworks() -> None:
    """Load the answers, which imports no framework; before a model is compiled, as torch.compile traces no imports."""
    if not _KNOWN:
        # By name: this part of the library does not depend on the integrations above it.
        _KNOWN.update(importlib.import_module("effdeg.integrations._frameworks").FRAMEWORKS)
