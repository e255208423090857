"""Mixup at the output of a layer: of one that is named, such as the embeddings, or of one that is drawn."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from effdeg._adapters.arguments import name_arguments
from effdeg._adapters.examples import as_arguments, examples_only, is_plain_tuple
from effdeg._adapters.layers import (
    FoundLayer,
    Layer,
    as_module,
    check_layer,
    find_layer,
    find_layer_or_embeddings,
    replace_output,
)
from effdeg._adapters.paths import innermost_key, is_mask
from effdeg._utils.tree import Tree, named_tensors, tensors
from effdeg.baselines._jacobian import use_buffer_copies
from effdeg.baselines._mixup import Mixing, check_batch, check_mixable, soft_labels
from effdeg.baselines._shared import Call


def embedding_mixup(
    model: Callable[..., Any],
    x: Tree,
    y: Tensor,
    *,
    at: Layer | None = None,
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

    The layer ``at``, a name or a module, is by default the one that embeds token ids, in models with
    ``get_input_embeddings()``. It runs once and returns a floating-point tensor with the examples first, or a
    tuple that begins with one. The model is called as usual, with ``x``: a tensor, a tuple (passed as arguments) or a
    mapping (passed as keywords). The other arguments are those of :func:`mixup`.

    Returns:
        What the model returned, and the mixed labels.

    Raises:
        TypeError: If an argument is of the wrong type, or if a layer returns no floating-point tensor.
        ValueError: If ``alpha`` is not positive, ``x`` holds labels, ``y`` does not match the batch or the classes, or
            examples cannot be mixed at a layer: it does not run exactly once, with one row per example, outside of
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
    batch = check_batch(x, y, alpha=alpha, classes=classes, generator=generator)
    draw = partial(Mixing.draw, batch, alpha, generator=generator)
    outputs, mixing, dtype = _run_twice(model, find_layer_or_embeddings(model, at), as_arguments(x), batch, draw)
    return outputs, mixing.mix(soft_labels(y, classes, dtype))


def manifold_mixup(
    model: Callable[..., Any],
    x: Tree,
    y: Tensor,
    *,
    at: Sequence[Layer | None],
    alpha: float = 2.0,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Any, Tensor]:
    """Mix examples at the output of a layer that is drawn at every step, and their labels (Verma et al., 2019).

    One of the layers is drawn, uniformly, and its output h becomes λ h + (1 - λ) h[π], with one λ ~ Beta(α, α) and one
    permutation π for the batch, in a single forward pass. The labels become λ y + (1 - λ) y[π].

    The outputs of the other layers are mixed with λ = 1, which leaves them as they are: only the GPU knows which layer
    was drawn, so a CUDA graph draws anew at every replay. What bypasses the layer, such as a skip connection from
    before it, is not mixed. Masks cannot be joined after the layers that use them: for text use
    :func:`embedding_mixup`, whose other arguments are the same. ``at`` are the layers, and None for the inputs. The
    paper has the inputs and the outputs of the first blocks, and α = 2.

    Returns:
        What the model returned, and the mixed labels.

    Raises:
        TypeError: As :func:`embedding_mixup`; also if None is among the layers and the inputs cannot be mixed.
        ValueError: As :func:`embedding_mixup`; also if ``x`` holds masks.

    Example:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from effdeg.baselines import manifold_mixup
        >>> model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> x, y = torch.rand(16, 6), torch.randint(3, (16,))
        >>> logits, soft = manifold_mixup(model, x, y, at=[None, "1"], classes=3)
        >>> loss = cross_entropy(logits, soft)
        >>> soft.shape, torch.allclose(soft.sum(1), torch.ones(16))
        (torch.Size([16, 3]), True)
    """
    check_layers(at)
    batch = check_batch(x, y, alpha=alpha, classes=classes, generator=generator)
    _check_no_masks(examples_only(name_arguments(x, model) if is_plain_tuple(x) else x, batch))
    if None in at:
        check_mixable(x, batch)
    layers = [None if layer is None else find_layer(model, layer) for layer in at]
    device = tensors(x)[0].device
    mixing = Mixing.draw(batch, alpha, device=device, generator=generator)
    home = device if generator is None else generator.device
    drawn = torch.randint(len(at), (1,), device=home, generator=generator).to(device)
    mixings = [Mixing(torch.where(drawn == place, mixing.share, 1.0), mixing.partners) for place in range(len(at))]
    outputs, dtype = _run(model, x, list(zip(layers, mixings, strict=True)))
    return outputs, mixing.mix(soft_labels(y, classes, dtype))


def check_layers(at: object) -> None:
    """Raise unless these can be the layers of manifold mixup."""
    if not isinstance(at, Sequence) or isinstance(at, str) or not at:
        raise TypeError(
            f"at={at!r} must be a list of the layers to draw from, names or modules, with None for the inputs: "
            "at=[None, 'layer1', 'layer2']."
        )
    for layer in at:
        if layer is not None:
            check_layer(layer)


def _check_no_masks(examples: Tree) -> None:
    leaves = named_tensors(examples)
    masks = [name or "x" for name, leaf in leaves if is_mask(name, leaf) or "mask" in innermost_key(name)]
    if masks:
        raise ValueError(
            f"x holds a mask ({', '.join(masks)}), which layers before and behind the mixing would need in two forms. "
            "Use embedding_mixup, which joins the masks of both examples."
        )


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run(
    model: Callable[..., Any], x: Tree, mixings: list[tuple[FoundLayer | None, Mixing]]
) -> tuple[Any, torch.dtype]:
    """Run a model with the outputs of layers mixed; return what it returned, and the precision of what was mixed."""
    dtypes = [tensor.dtype for tensor in tensors(x) if tensor.is_floating_point()]

    def mix(hidden: Tensor, mixing: Mixing) -> Tensor:
        dtypes.append(hidden.dtype)
        mixed: Tensor = mixing.mix(hidden)
        return mixed

    with ExitStack() as stack:
        for layer, mixing in mixings:
            if layer is None:
                x = mixing.mix(x)
            else:
                change, rows = partial(mix, mixing=mixing), len(mixing.partners)
                stack.enter_context(replace_output(layer, change, rows=rows, allow_checkpoint=False))
        arguments, keywords = as_arguments(x)
        outputs = model(*arguments, **keywords)
    return outputs, dtypes[-1]


# torch.compile cannot follow hooks that come and go: it breaks the graph here, and refuses with fullgraph=True.
@torch._disable_dynamo  # type: ignore[attr-defined]
def _run_twice(
    model: Callable[..., Any],
    layer: FoundLayer,
    call: Call,
    batch: int,
    draw: Callable[..., Mixing],
) -> tuple[Any, Mixing, torch.dtype]:
    """Run a model up to the layer, and again with its output mixed; return also how, and the precision there."""
    arguments, keywords = call
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
