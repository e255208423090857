"""Add the points of paths to the calls of a model inside a framework's training loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from effdeg.train._penalty import Penalty


@contextmanager
def replace_attribute(owner: object, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute on this one object; afterwards restore the object's own, or its class's."""
    had = name in vars(owner)
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, own)
        else:
            delattr(owner, name)


@contextmanager
def join_calls(model: nn.Module, penalty: Penalty, labels: Tensor | None) -> Iterator[list[Tensor]]:
    """Let calls of the model run the points too; they return what they always do, and the list collects the degrees.

    ``forward`` is replaced on this one object, below its hooks: wrappers such as DDP, FSDP and mixed precision work.
    """
    degrees: list[Tensor] = []
    run = model.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        outputs, degree = penalty.joined(run, model, arguments, keywords, labels)
        degrees.append(degree)
        return outputs

    with replace_attribute(model, "forward", forward):
        yield degrees


def get_only(degrees: list[Tensor], what: str) -> Tensor:
    """Return the effective degree of the one call that there should have been."""
    if len(degrees) != 1:
        advice = "Use effdeg.Penalty in the step itself." if degrees else "Name the module that is called, model='…'."
        raise RuntimeError(f"{what} was called {len(degrees)} times in one training step, not once. {advice}")
    return degrees[0]
