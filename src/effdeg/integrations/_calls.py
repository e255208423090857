"""Let the calls of a model that somebody else's training loop makes run the points of paths along."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from effdeg.train._penalty import Penalty


def replace_attribute(owner: object, name: str, value: Any) -> Callable[[], None]:
    """Replace an attribute on this one object, and return what puts back the object's own one, or its class's."""
    had = name in vars(owner)
    own = vars(owner).get(name)
    setattr(owner, name, value)

    def put_back() -> None:
        if had:
            setattr(owner, name, own)
        else:
            delattr(owner, name)

    return put_back


@contextmanager
def joined_calls(model: nn.Module, penalty: Penalty, labels: Tensor | None) -> Iterator[list[Tensor]]:
    """Within it, calling the model gives what it always gives, and the list gains the effective degree of the call.

    ``forward`` is replaced on this one object, below its hooks, so that wrappers such as DDP, FSDP or mixed precision
    work as ever.
    """
    degrees: list[Tensor] = []
    run = model.forward

    def forward(*arguments: Any, **keywords: Any) -> Any:
        outputs, degree = penalty.joined(run, model, arguments, keywords, labels)
        degrees.append(degree)
        return outputs

    put_back = replace_attribute(model, "forward", forward)
    try:
        yield degrees
    finally:
        put_back()


def only(degrees: list[Tensor], what: str) -> Tensor:
    """Return the effective degree of the one call that there should have been."""
    if len(degrees) != 1:
        raise RuntimeError(
            f"{what} was called {len(degrees)} times in one training step, where the penalty expects one call. "
            + (
                "Name the module that is called, model='…'."
                if not degrees
                else "Use effdeg.Penalty in the step itself."
            )
        )
    return degrees[0]
