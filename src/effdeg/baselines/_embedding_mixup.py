"""Mixup at the output of a layer: for token ids, and for features after any block."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import as_arguments, count_examples, examples_only
from effdeg._adapters.layers import FoundLayer, Layer, as_module, find_layer, replace_output
from effdeg._adapters.paths import check_real
from effdeg._utils.checks import check_generator
from effdeg._utils.tree import Tree
from effdeg.baselines._jacobian import use_buffer_copies
from effdeg.baselines._mixup import Mixing, check_alpha, check_labels, check_no_labels, soft_labels


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
    """Run a model with the output of a layer mixed between pairs of examples, and mix their labels in the same way.

    This is :func:`mixup` for inputs that cannot be mixed, such as token ids: the layer's output h becomes
    λ h + (1 − λ) h[partners], with one λ for the batch.

    The layers up to this one run twice: first on the batch as it is, to obtain h, then in the pass that uses the mixed
    rows, with the masks of both examples joined. Whatever bypasses the layer (a skip connection from before it, a
    decoder's own inputs) comes from the first example. Under ``torch.compile`` the graph breaks here and a compiled
    model runs uncompiled.

    Args:
        model: Any callable with the layer in it. It is called as usual.
        x: The batch: a tensor, a tuple (passed as arguments) or a mapping (passed as keywords).
        y: Class ids of any shape, or soft labels or targets in floating point.
        at: The layer, a name or a module. It runs once and returns a floating-point tensor with the examples first, or
            a tuple that begins with one.
        alpha: How strongly examples are mixed, as in :func:`mixup`.
        classes: The number of classes, if the labels are ids.
        generator: The source of randomness; by default torch's global one on the device of the layer's output.

    Returns:
        What the model returned, and the mixed labels.

    Raises:
        TypeError: If an argument is of the wrong type, or if the layer returns no floating-point tensor.
        ValueError: If ``alpha`` is not positive, labels do not match the batch or the classes, or examples cannot be
            mixed at the layer: it does not run exactly once, with one row per example, outside of
            ``torch.utils.checkpoint``.

    Example:
        >>> import torch, effdeg
        >>> from torch.nn.functional import cross_entropy
        >>> model = torch.nn.Sequential(torch.nn.EmbeddingBag(100, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> tokens, y = torch.randint(100, (16, 7)), torch.randint(2, (16,))
        >>> logits, soft = effdeg.baselines.embedding_mixup(model, tokens, y, at="0", classes=2)
        >>> loss = cross_entropy(logits, soft)
        >>> soft.shape, bool((soft.sum(1) - 1).abs().max() < 1e-6)
        (torch.Size([16, 2]), True)
    """
    check_alpha(alpha)
    check_generator(generator)
    check_no_labels(x)
    arguments, keywords = as_arguments(x)
    batch = count_examples((arguments, keywords))
    check_labels(y, batch, classes)
    check_real(examples_only(x, batch), "x")
    draw = partial(Mixing.draw, batch, alpha, generator=generator)
    outputs, mixing, dtype = _run(model, find_layer(model, at), arguments, keywords, batch, draw)
    return outputs, mixing.mix(soft_labels(y, classes, dtype))


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(
    model: Callable[..., Any],
    layer: FoundLayer,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    batch: int,
    draw: Callable[..., Mixing],
) -> tuple[Any, Mixing, torch.dtype]:
    replaced = partial(replace_output, layer, rows=batch, allow_checkpoint=False)
    inner = as_module(model)
    # Without DDP, which counts forward passes. BatchNorm counts the batch in the second pass, so not in this one.
    run = model if inner is None or not isinstance(model, nn.Module) else inner
    try:
        with replaced(_stop), use_buffer_copies(inner):
            run(*arguments, **keywords)
    except _Reached as reached:
        hidden: Tensor = reached.args[0]
    mixing = draw(device=hidden.device)
    mixed = mixing.mix(hidden)
    with replaced(lambda _: mixed):
        named = mixing.join_masks(name_arguments(arguments, model))
        outputs = model(*named.values(), **mixing.join_masks(keywords))
    return outputs, mixing, hidden.dtype


def _stop(hidden: Tensor) -> None:
    raise _Reached(hidden)


class _Reached(Exception):  # noqa: N818
    """Ends a forward pass at the layer, and carries its output."""
