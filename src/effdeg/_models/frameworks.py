"""What the library asks about the models of other frameworks. The answers are in :mod:`effdeg.integrations`."""

import importlib
from typing import Any

from torch import Tensor


class Framework:
    """What must be known about a module. These answers are those for plain PyTorch."""

    def unwrap(self, module: Any) -> Any:  # noqa: ARG002
        """Return the module that a wrapper calls, or None for what is no wrapper."""
        return None

    def base_model(self, module: Any) -> Any:
        """Return the module that computes the loss, within a model that was adapted for fine-tuning."""
        return module

    def leaves_out_ignored(self, module: Any, labels: Tensor) -> bool:  # noqa: ARG002
        """Return whether a model's own loss is cross entropy that leaves out the label -100."""
        return False

    def shifts_labels(self, module: Any) -> bool:  # noqa: ARG002
        """Return whether a model compares its output at each position with the label of the next."""
        return False


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
