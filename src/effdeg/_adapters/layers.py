"""The layers of a model: find them by name, look at their outputs and replace them."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from effdeg._adapters.frameworks import LanguageModel, framework_of
from effdeg._utils.checks import shorten, suggest
from effdeg._utils.threads import SharedContext, in_this_thread

Layer = str | nn.Module
"""A layer: its name in the model, as ``model.named_modules()`` gives it, or the module itself."""

_SEQUENCE_LAYERS = (
    *(nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *(nn.TransformerEncoder, nn.TransformerDecoder),
)


class FoundLayer(NamedTuple):
    """A layer, its name in messages, and the model that it belongs to."""

    name: str
    module: nn.Module
    model: object

    def has_positions_first(self) -> bool:
        """Return whether the layer, or one of torch's around it, was made with ``batch_first=False``."""
        base, modules = base_model(self.model), named_layers(self.model)
        around = [module for name, module in modules.items() if f"{self.name}.".startswith(f"{name}.") and name]
        sequence_layers = [each for each in (*around, self.module) if isinstance(each, _SEQUENCE_LAYERS)]
        parts = (part for each in sequence_layers for part in each.modules())
        return framework_of(base).positions_first(base) or any(not getattr(part, "batch_first", True) for part in parts)


def as_module(model: object) -> nn.Module | None:
    """Find the module behind a model: a wrapper's inside, a bound method's object; None behind a plain function."""
    model = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    while isinstance(model, nn.Module):
        if isinstance(model, (DistributedDataParallel, nn.DataParallel, AveragedModel)):
            inner = model.module
        else:
            compiled = getattr(model, "_orig_mod", None)  # where torch.compile keeps what it was given
            inner = framework_of(model).unwrap(model) if compiled is None else compiled
        if not isinstance(inner, nn.Module):
            return model
        model = inner
    return None


def base_model(model: object) -> Any:
    """Find the module whose class says what a model is: within FSDP and PEFT, too, through which it must be run."""
    module = as_module(model)
    sharded = getattr(module, "_fsdp_wrapped_module", None)
    return framework_of(module).base_model(module) if sharded is None else base_model(sharded)


def find_language_model(model: object) -> LanguageModel | None:
    """Return how a model is called if it is a causal language model, within wrappers too; else None."""
    if as_module(model) is None:
        return None
    base = base_model(model)
    return framework_of(base).language_model(base)


def named_layers(model: object) -> dict[str, nn.Module]:
    """List the layers of a model by name, without what torch.compile, DDP, FSDP and checkpointing put in front."""
    module = as_module(model)
    named = module.named_modules() if module is not None else ()
    wrappers = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(\.|$)")
    return {wrappers.sub("", name).rstrip("."): part for name, part in named}


def find_new_norms(model: object) -> tuple[str, ...]:
    """Return the names of BatchNorm layers whose running statistics are still those of a new layer."""
    return tuple(
        name
        for name, layer in named_layers(model).items()
        if isinstance(layer, _BatchNorm)
        and layer.num_batches_tracked is not None
        and not layer.num_batches_tracked
        # Statistics may also be written by hand, or come from a file that has no counter.
        and not bool(layer.running_mean.any())  # type: ignore[union-attr]
        and bool((layer.running_var == 1).all())  # type: ignore[union-attr]
    )


def check_layer(at: object, setting: str = "at") -> None:
    """Raise unless this can be a layer; the error names the setting."""
    if not isinstance(at, str | nn.Module):
        raise TypeError(f"{setting}={at!r} must be the name of a layer or a module.")


def find_layer(model: object, at: Layer, setting: str = "at") -> FoundLayer:
    """Find a layer by name or by reference; a reference also serves a model that is not a module."""
    check_layer(at, setting)
    modules = named_layers(model)
    if isinstance(at, nn.Module):
        name = next((name for name, module in modules.items() if module is at), None)
        if name is None and modules:
            raise ValueError(f"at={type(at).__name__}(…) is not a layer of this model. Pass one of model.modules().")
        return FoundLayer(name or type(at).__name__, at, model)
    if not modules:
        raise ValueError(f"at={at!r} names a layer, but the model is a plain function. Pass the module: at=module.")
    at = at if at in modules else at.removeprefix("module.")
    if at not in modules or not at:
        known = suggest(at, [name for name in modules if name])
        raise ValueError(f"{setting}={at!r} is not a layer of this model. {known}")
    if isinstance(modules[at], torch.jit.ScriptModule):
        raise ValueError(f"at={at!r} is a TorchScript layer, which takes no hooks. Pass the model before torch.jit.")
    return FoundLayer(at, modules[at], model)


# For the whole process: a thread that leaves must not let models of another be compiled.
_EAGER = SharedContext(lambda: torch.compiler.set_stance("force_eager"))


def eager() -> AbstractContextManager[object]:
    """Run compiled models as they were written: they would not notice a hook that is newer than their compilation."""
    # Nothing is compiled where the compiler was not even loaded, and loading it takes seconds.
    return _EAGER if "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def replace_output(
    layer: FoundLayer, change: Callable[[Tensor], Tensor | None], *, rows: int, allow_checkpoint: bool = True
) -> Iterator[None]:
    """Let a function replace the tensor that a layer returns, or the first of a tuple, in one forward pass.

    A function that returns None only looks at it. The layer must run exactly once, on ``rows`` examples, and unless
    ``allow_checkpoint`` outside of ``torch.utils.checkpoint``, which runs it again without the function.
    """
    times = 0

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        nonlocal times
        if not allow_checkpoint:
            refuse_checkpoint(f"the layer {layer.name!r}", "choose a layer outside, such as the embeddings, with at=…")
        times += 1
        if times > 1:  # the error comes when it is known how often
            return None
        changed = change(_first_tensor(output, layer, rows))
        if changed is None or isinstance(output, Tensor):
            return changed
        entries = changed, *output[1:]
        return type(output)(*entries) if hasattr(output, "_fields") else type(output)(entries)

    handle = layer.module.register_forward_hook(in_this_thread(hook))
    try:
        with eager():
            yield
    finally:
        handle.remove()
    if times != 1:
        raise ValueError(
            f"the layer {layer.name!r} ran {times} times in one forward pass; a path can live only at the output of a "
            "layer that runs once. Choose another layer with at=…"
        )


def _first_tensor(output: Any, layer: FoundLayer, rows: int) -> Tensor:
    """Return the tensor that a layer returned, or the first of a tuple; raise unless it has one row per example."""
    name = layer.name
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        kind = f"{type(first).__name__} first" if first is not output else type(output).__name__
        raise TypeError(
            f"the layer {name!r} returns {kind}; a path needs a layer that returns a floating-point "
            "tensor, or a tuple with one first. Choose another layer with at=…"
        )
    # With as many positions as examples, the shape does not tell them apart.
    if first.dim() == 0 or len(first) != rows or (first.shape[1:2] == (rows,) and layer.has_positions_first()):
        raise ValueError(
            f"the layer {name!r} returned shape {tuple(first.shape)} for {rows} examples; a path needs a layer "
            "whose output has the examples first. Choose another layer with at=…"
        )
    return first


def refuse_checkpoint(what: str, instead: str) -> None:
    """Raise inside ``torch.utils.checkpoint``, which runs layers again in the backward pass, when hooks are gone."""
    # By the call stack: the two kinds of checkpointing leave no other trace that both have and nothing else has.
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            raise ValueError(
                f"{what} runs inside torch.utils.checkpoint, which would run it again in the backward pass without "
                f"the points: {instead}, or leave this layer out of the checkpointing."
            )


def find_embeddings(model: object) -> str | None:
    """Return the name of the layer whose output is a model's embedding of token ids; None if no one layer is known.

    It is the outermost embedding, by its name, around that of words: BERT's adds positions and types, GPT-2's does not.
    """
    # A model with an encoder and a decoder reads tokens at two places.
    reads_twice = getattr(getattr(base_model(model), "config", None), "is_encoder_decoder", False)
    return None if reads_twice else _find_words(model)


def find_layer_or_embeddings(model: object, at: Layer | None) -> FoundLayer:
    """Return the layer that was named, or else the one that embeds token ids."""
    at = find_embeddings(model) if at is None else at
    if at is None:
        raise TypeError(f"the embeddings of this model are not known. {advice_for_integers(model)}")
    return find_layer(model, at)


def _find_words(model: object) -> str | None:
    """Return what :func:`find_embeddings` does, whether or not the model reads tokens at a second place as well."""
    try:
        words: Any = as_module(base_model(model).get_input_embeddings())
    except (AttributeError, NotImplementedError):  # transformers raises the second for some of its models
        return None
    if not hasattr(words, "weight"):  # image patches are embedded by several layers
        return None
    layers = named_layers(model)
    # T5 returns an embedding that never runs, and runs another with its weight. The output layer may have it, too.
    alike = {name: layer for name, layer in layers.items() if type(layer) is type(words)}
    copies = [name for name, layer in alike.items() if getattr(layer, "weight", None) is words.weight]
    place = max(copies, key=lambda name: name.count("."), default="")
    while (parent := place.rpartition(".")[0]) and not hasattr(layers[parent], "get_input_embeddings"):
        # By the class or, in case that is a wrapper, by the attribute.
        if "Embedding" not in type(layers[parent]).__name__ and parent.rpartition(".")[2] != "embeddings":
            break
        place = parent
    return place or None


def advice_for_integers(model: object) -> str:
    """Advise what to do with inputs that no straight line joins."""
    advice = "Convert images to floating point (images.float() / 255); for token ids let the path live at a layer, at=…"
    places = _candidates_for_tokens(model)
    return f"{advice}, such as {shorten([f'at={name!r}' for name in places])}." if places else f"{advice}."


def _candidates_for_tokens(model: object) -> list[str]:
    """Return the names of layers at whose output token ids are embedded, the most likely first."""
    if (place := find_embeddings(model)) is not None:
        return [place]
    layers = {name: layer for name, layer in named_layers(model).items() if name}
    # Models within this one, such as an encoder and a decoder, which may have the configuration of both.
    places = {name: place for name, layer in layers.items() if (place := _find_words(layer)) is not None}
    if within := {f"{name}.{place}": named_layers(layers[name])[place] for name, place in places.items()}:
        # A layer that an encoder and a decoder share has two names and runs twice: no path can lie at it.
        return [name for name, layer in within.items() if list(within.values()).count(layer) == 1]
    embeddings = [name for name, layer in layers.items() if "Embedding" in type(layer).__name__]
    # The shortest name is the outermost layer: the one after which the whole example is embedded.
    return sorted(embeddings, key=lambda name: name.count("."))[:1]
