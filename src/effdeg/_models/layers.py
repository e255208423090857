"""The layers of a model: found by name, watched, and given another output."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from effdeg._utils.checks import suggest

Layer = str | nn.Module
"""A layer: its name in the model, as ``model.named_modules()`` gives it, or the module itself."""

Hook = Callable[[nn.Module, Any, Any], Any]


def as_module(model: object) -> nn.Module | None:
    """Find the module behind a model: a wrapper's inside, a bound method's object; None behind a plain function."""
    model = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    while isinstance(model, nn.Module):
        wrapped = isinstance(model, (DistributedDataParallel, nn.DataParallel, AveragedModel))
        # torch.compile and Lightning Fabric keep what they were given under these names.
        names = ("module",) if wrapped else ("_orig_mod", "_forward_module")
        inner = [part for name in names if isinstance(part := getattr(model, name, None), nn.Module)]
        if not inner:
            return model
        model = inner[0]
    return None


def named_layers(model: object) -> dict[str, nn.Module]:
    """List the layers of a model by name, without what torch.compile, DDP and checkpointing put in front."""
    module = as_module(model)
    named = module.named_modules() if module is not None else ()
    return {re.sub(r"(_orig_mod|_checkpoint_wrapped_module)(\.|$)", "", name).rstrip("."): part for name, part in named}


def check_layer(at: object) -> None:
    """Raise unless this can be a layer."""
    if not isinstance(at, str | nn.Module):
        raise TypeError(f"at={at!r} must be the name of a layer or a module.")


def find_layer(model: object, at: Layer) -> tuple[str, nn.Module]:
    """Find a layer by name or by reference; a reference also serves a model that is not a module."""
    check_layer(at)
    modules = named_layers(model)
    if isinstance(at, nn.Module):
        name = next((name for name, module in modules.items() if module is at), None)
        if name is None and modules:
            raise ValueError(
                f"at={type(at).__name__}(…) is not a layer of this model. Give one of model.modules() or a name."
            )
        return name or type(at).__name__, at
    at = at if at in modules else at.removeprefix("module.")
    if at not in modules or not at:
        if not modules:
            raise ValueError(
                f"at={at!r} names a layer, but the model is a plain function. Give the module itself: at=module."
            )
        raise ValueError(f"at={at!r} is not a layer of this model. {suggest(at, [name for name in modules if name])}")
    if isinstance(modules[at], torch.jit.ScriptModule):
        raise ValueError(f"at={at!r} is a TorchScript layer, which takes no hooks. Give the model before torch.jit.")
    return at, modules[at]


@contextmanager
def hooked(layer: nn.Module, hook: Hook) -> Iterator[None]:
    """See, and by what the hook returns replace, what a layer returns."""
    handle = layer.register_forward_hook(hook)
    try:
        with eager():
            yield
    finally:
        handle.remove()


def eager() -> AbstractContextManager[object]:
    """Run compiled models as they were written: they would not notice a hook that is newer than their compilation."""
    # Nothing is compiled where the compiler was not even loaded, and loading it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def first_tensor(output: Any, name: str, examples: int) -> Tensor:
    """Return the tensor that a layer returned, or the first of a tuple; raise unless it has one row per example."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise TypeError(
            f"the layer {name!r} returns {type(output).__name__}; a path needs a layer that returns a floating-point "
            "tensor, or a tuple with one first. Choose another layer with at=…"
        )
    if first.dim() == 0 or len(first) != examples:
        raise ValueError(
            f"the layer {name!r} returned shape {tuple(first.shape)} for {examples} examples; a path needs a layer "
            "whose output has the examples first. Choose another layer with at=…"
        )
    return first


def with_first_tensor(output: Any, tensor: Tensor) -> Any:
    """Return what a layer returned with another tensor in the place of its first."""
    return tensor if isinstance(output, Tensor) else (tensor, *output[1:])


@contextmanager
def changed_output(model: object, at: Layer, examples: int, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Let a function change what a layer, which must run once, returns for a batch."""
    name, layer = find_layer(model, at)
    times = 0

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal times
        times += 1
        return with_first_tensor(output, change(first_tensor(output, name, examples)))

    with hooked(layer, hook):
        yield
    if times != 1:
        raise ran_not_once(name, times)


def ran_not_once(name: str, times: int) -> ValueError:
    """Return the error for a layer that does not run once per forward pass."""
    return ValueError(
        f"the layer {name!r} ran {times} times in one forward pass; a path can live only at the output of a layer "
        "that runs once. Choose another layer with at=…"
    )


def check_not_run_again(what: str, instead: str) -> None:
    """Raise inside ``torch.utils.checkpoint``, which runs layers again in the backward pass, when hooks are gone."""
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            raise ValueError(
                f"{what} runs inside torch.utils.checkpoint, which would run it again in the backward pass without "
                f"the points: {instead}, or leave this layer out of the checkpointing."
            )


def advice_for_integers(model: object) -> str:
    """Advise what to do with inputs that no straight line joins."""
    advice = "Convert images to floating point (images.float() / 255); for token ids let the path live at a layer, at=…"
    layers = named_layers(model)
    embeddings = [name for name, module in layers.items() if name and "Embedding" in type(module).__name__]
    if embeddings:
        # The shortest name is the outermost layer: the one after which the whole example is embedded.
        advice += f", such as at={min(embeddings, key=lambda name: name.count('.'))!r}"
    return advice + "."
