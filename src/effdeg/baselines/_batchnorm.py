"""The running statistics of BatchNorm and its like, kept as they are through a forward pass that is not to count."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from effdeg._models.layers import eager

# By name, as torch's BatchNorm, SyncBatchNorm and InstanceNorm and most people's own have them.
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


@contextmanager
def statistics_kept(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Put back, at its end, the running statistics of those modules that are in training."""
    kept = [
        (module, name, buffer.clone())
        for module in modules
        if module.training
        for name in _RUNNING
        if isinstance(buffer := getattr(module, name, None), Tensor)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, copy in kept:
                getattr(module, name).copy_(copy)


@contextmanager
def buffers_lent(module: nn.Module | None) -> Iterator[None]:
    """Let a module work on copies of its buffers, for a forward pass whose backward pass comes later.

    Buffers that are put back, as :func:`statistics_kept` does, look changed to that backward pass.
    """
    owners = list(module.modules()) if module is not None else []
    kept = [(owner, name, buffer) for owner in owners for name, buffer in owner._buffers.items() if buffer is not None]
    # By the buffers themselves: one that several layers share stays one.
    copies = {buffer: buffer.clone() for _, _, buffer in kept}
    try:
        for owner, name, buffer in kept:
            owner._buffers[name] = copies[buffer]
        yield
    finally:
        for owner, name, buffer in kept:
            owner._buffers[name] = buffer


@contextmanager
def modules_called() -> Iterator[dict[nn.Module, None]]:
    """Collect the modules that are called within it, with all that is in them, in the order of their calls."""
    called: dict[nn.Module, None] = {}

    def note(module: nn.Module, _: object) -> None:
        if module not in called:
            called.update(dict.fromkeys(module.modules()))

    handle = register_module_forward_pre_hook(note)
    try:
        # Compiled code calls no hooks, or is compiled anew for them; and torch warns of just that.
        with eager(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
            yield called
    finally:
        handle.remove()
