"""A whole training step in one CUDA graph, which replays it without the cost of launching its kernels."""

from collections.abc import Callable

import torch
from torch import nn


class CapturedStep:
    """A training step that is replayed by calling it.

    Capturing runs the step three times and leaves weights, optimizer and random state changed: put them back after.
    """

    def __init__(self, model: nn.Module, step: Callable[[], None]) -> None:
        # The graph works in the memory of what the step holds on to: the model, the optimizer's state and the batch.
        self.step = step
        # Work that is to be captured runs on a stream of its own a few times before.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        model.zero_grad(set_to_none=True)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()

    def __call__(self) -> None:
        """Replay the step."""
        self.graph.replay()
