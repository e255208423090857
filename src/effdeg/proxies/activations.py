"""Which linear piece of a ReLU network a point lies in: which of its units are on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

KINKED = {"relu", "leaky_relu", "prelu", "rrelu", "threshold", "relu6", "hardtanh"}
"""Activations that are linear but for kinks; of the last two only the kink at zero is seen."""


class ActivationFlips(TorchFunctionMode):
    """Counts, between each row of a batch and the row before it, the units that switch on or off.

    Rows that follow each other are neighbouring nodes of a path, also across batches, so that the flips along a path
    are the linear pieces that it enters, or, if units flip to and fro between two nodes, fewer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: list[Tensor] = []
        self._now: list[Tensor] = []
        self._flips: Tensor | None = None

    def __enter__(self) -> "ActivationFlips":
        # A batch that ran out of memory may have left something.
        self._now, self._flips = [], None
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function.__name__.strip("_") in KINKED:
            # Before the call, which may work in place.
            self._see(args[0] if args else given["input"])
        return function(*args, **given)

    def take(self, rows: int) -> Tensor | None:
        """Give the flips of the batch that has just run, one number per row; None if no unit has a value per row."""
        flips, self._flips = self._flips, None
        self._last, self._now = self._now, []
        return flips if flips is not None and len(flips) == rows else None

    def _see(self, values: Tensor) -> None:
        on = (values > 0).flatten(1)
        before = self._last[len(self._now)] if self._last else on[0]
        first, others = (on[0] != before).sum()[None], (on[1:] != on[:-1]).sum(1)
        flips = torch.cat([first, others])
        self._now.append(on[-1].clone())
        self._flips = flips if self._flips is None else self._flips + flips
