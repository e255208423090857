"""Mixup at the output of a layer: for token ids, and for features after any block."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._models.inference import as_arguments
from effdeg._models.layers import (
    Layer,
    as_module,
    changed_output,
    check_not_run_again,
    find_layer,
    first_tensor,
    hooked,
    ran_not_once,
)
from effdeg._models.paths import check_real
from effdeg._utils.checks import check_generator
from effdeg._utils.tree import Tree
from effdeg.baselines._jacobian import use_buffer_copies
from effdeg.baselines._mixup import Mixing, check_alpha, check_labels, check_no_labels, soft_labels
from effdeg.train._points import count_examples, examples_only

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments and keywords for a model."""


def embedding_mixup(
    model: Callable[..., Any],
    x: Tree,
    y: Tensor,
    *,
    at: Layer,
    alpha: float = 1.0,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Any, Tensor]:
    """Run a model with what a layer makes of each example mixed with another's, and mix their labels alike.

    This is :func:`mixup` where inputs cannot be mixed, such as token ids::

        outputs, soft = effdeg.baselines.embedding_mixup(model, inputs, y, at="bert.embeddings", classes=2)
        loss = cross_entropy(outputs.logits, soft)

    The layers up to this one run twice: first for the batch as it is, then on the way to the mixed rows, with the
    masks of both examples joined. What goes around the layer (a skip connection from before it, a decoder's own
    inputs) is the first example's. Under ``torch.compile`` the graph breaks here and a compiled model runs uncompiled.

    Args:
        model: Any callable with the layer in it. It is called as usual.
        x: The batch: a tensor, a tuple (which goes in as arguments) or a mapping (as keywords).
        y: Class ids of any shape, or soft labels or targets in floating point.
        at: The layer, a name or a module. It runs once and returns a floating-point tensor with the examples first, or
            a tuple that begins with one.
        alpha: How much is mixed, as in :func:`mixup`.
        classes: How many classes there are, if the labels are ids.
        generator: The source of randomness; by default torch's global one on the device of what the layer returns.

    Returns:
        What the model returned, and the mixed labels.
    """
    check_alpha(alpha)
    check_generator(generator)
    check_no_labels(x)
    parts = as_arguments(x)
    batch = count_examples(parts)
    check_labels(y, batch, classes)
    check_real(examples_only(x, batch), "x")
    draw = partial(Mixing.draw, batch, alpha, generator=generator)
    outputs, mixing, dtype = _run(model, parts, batch, *find_layer(model, at), draw)
    return outputs, mixing.mix(soft_labels(y, classes, dtype))


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(
    model: Callable[..., Any], parts: Arguments, batch: int, name: str, layer: nn.Module, draw: Callable[..., Mixing]
) -> tuple[Any, Mixing, torch.dtype]:
    hidden = first_tensor(_output_of(name, layer, model, parts), name, batch)
    mixing = draw(device=hidden.device)
    mixed: Tensor = mixing.mix(hidden)

    def replace(_: Tensor) -> Tensor:
        check_not_run_again(f"the layer {name!r}", "choose a layer outside it, such as the embeddings, with at=…")
        return mixed

    arguments, keywords = (mixing.join_masks(part) for part in parts)
    with changed_output(model, layer, batch, replace):
        return model(*arguments, **keywords), mixing, hidden.dtype


def _output_of(name: str, layer: nn.Module, model: Callable[..., Any], parts: Arguments) -> Any:
    """Run a model up to a layer, on the batch as it is, with masks that are not joined yet."""

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        raise _Reached(output)

    arguments, keywords = parts
    inner = as_module(model)
    # Not DDP, which counts forward passes; and BatchNorm before the layer counts the batch in the pass to come.
    run = model if inner is None or not isinstance(model, nn.Module) else inner
    with hooked(layer, stop), use_buffer_copies(inner):
        try:
            run(*arguments, **keywords)
        except _Reached as reached:
            return reached.output
    raise ran_not_once(name, 0)


class _Reached(Exception):  # noqa: N818
    """What a layer returned, on the way out of a forward pass that has gone far enough."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
