"""One forward pass for a batch and the points of its paths."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from effdeg._adapters.layers import Layer, as_module, eager, find_layer, named_layers, refuse_checkpoint, replace_output
from effdeg._utils.threads import in_this_thread
from effdeg.train._points import Points
from effdeg.train._settings import BatchNorm


def run_joined(run: Callable[[], Any], model: object, points: Points, *, at: Layer | None, batchnorm: BatchNorm) -> Any:
    """Run a model on a batch and its points; if paths lie at a layer, its output is interpolated there."""
    if at is None and batchnorm == "joint":
        return run()
    return _run_hooked(run, model, points, at, batchnorm)


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run_hooked(run: Callable[[], Any], model: object, points: Points, at: Layer | None, batchnorm: BatchNorm) -> Any:
    if batchnorm == "frozen" and as_module(model) is None:
        raise TypeError("batchnorm='frozen' must find the model's BatchNorm layers, but the model is a plain function.")
    at_paths = False

    def put_points(rows: Tensor) -> Tensor:
        nonlocal at_paths
        at_paths = True
        examples = rows[: points.examples]
        return torch.cat([examples, points.interpolate(rows if points.has_copies else examples)])

    def count_apart() -> int | None:
        if batchnorm == "frozen":
            return points.batch
        # Before the layer where paths begin there are only stand-ins for the points, which must not be counted.
        return None if at_paths else points.examples

    norms = {
        name: module
        for name, module in named_layers(model).items()
        # Others normalize with running statistics, not with those of the batch.
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
    }
    # Hooks, not a changed model: they are gone when the forward pass is over.
    with ExitStack() as stack:
        for name, module in norms.items():
            split = _BatchOnly(name, points, count_apart)
            stack.callback(module.register_forward_pre_hook(in_this_thread(split.before)).remove)
            stack.callback(module.register_forward_hook(in_this_thread(split.after)).remove)
        if at is not None:
            # After the hooks of BatchNorm, which may be the very layer where paths begin.
            layer = find_layer(model, at)
            stack.enter_context(replace_output(layer, put_points, rows=points.total, allow_checkpoint=False))
        elif norms:
            stack.enter_context(eager())
        return run()


class _BatchOnly:
    """A BatchNorm layer that sees the first rows alone; the others are normalized with the statistics it found."""

    def __init__(self, name: str, points: Points, count_apart: Callable[[], int | None]) -> None:
        self._name, self._points, self._count_apart = name, points, count_apart
        self._rest: Tensor | None = None

    def before(self, module: _BatchNorm, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        split = self._count_apart()
        if split is None:
            return None
        self._check(module, given[0])
        self._rest = given[0][split:]
        return (given[0][:split],)

    def after(self, module: _BatchNorm, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self._rest is None:
            return output
        rest, self._rest = self._rest, None
        return torch.cat([output, _normalize_like(given[0], rest, module).to(output.dtype)])

    def _check(self, module: _BatchNorm, rows: Tensor) -> None:
        if type(module).forward is not _BatchNorm.forward:
            raise TypeError(
                f"batchnorm='frozen', and paths at a layer after a BatchNorm, support torch's own BatchNorm1d, 2d and "
                f"3d; the layer {self._name!r} is a {type(module).__name__}. Use batchnorm='joint', with paths at the "
                "inputs or at a layer before it."
            )
        refuse_checkpoint(f"the BatchNorm layer {self._name!r}", "use batchnorm='joint' with paths at the inputs")
        if len(rows) != self._points.total:
            raise ValueError(
                f"the BatchNorm layer {self._name!r} got {len(rows)} rows for {self._points.examples} examples and "
                f"{len(self._points)} points, so they cannot be told apart there. Use batchnorm='joint', with paths at "
                "the inputs or at a layer before it."
            )


def _normalize_like(batch: Tensor, rest: Tensor, module: _BatchNorm) -> Tensor:
    """Normalize more rows with the statistics of a batch. These carry gradients, as those of the batch itself do."""
    dtype = torch.promote_types(batch.dtype, torch.float32)
    variance, mean = torch.var_mean(batch.to(dtype), [0, *range(2, batch.dim())], correction=0)
    scale = torch.rsqrt(variance + module.eps)
    shift = -mean * scale
    if module.weight is not None:
        scale, shift = scale * module.weight, shift * module.weight
    if module.bias is not None:
        shift = shift + module.bias
    by_channel = partial(Tensor.view, size=(1, -1, *[1] * (batch.dim() - 2)))
    return torch.addcmul(by_channel(shift), rest.to(dtype), by_channel(scale))
